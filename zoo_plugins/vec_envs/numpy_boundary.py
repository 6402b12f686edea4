"""The one place where arrays of VecEnvs on the CPU become tensors on a device, and actions become arrays."""

import warnings
from typing import Any, cast

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.vec_envs.numpy_face import steps_tensors
from zoo_plugins.vec_envs.tensor_step import StepsTensors, TensorObs, TensorStep


def shows_tensors(venv: VecEnv) -> bool:
    """
    Tell whether a VecEnv steps tensors itself, and warn if there is one inside that would.

    :param venv: Any VecEnv
    :return: whether it does
    """
    if steps_tensors(venv):
        return True
    if steps_tensors(venv.unwrapped):
        warnings.warn(
            f"{type(venv).__name__} turns the tensors of {type(venv.unwrapped).__name__} into NumPy arrays, "
            "which is slow: use a wrapper for tensors",
            stacklevel=3,
        )
    return False


def tensor_face(venv: VecEnv, device: th.device) -> StepsTensors:
    """
    Get the face of a VecEnv that algorithms on tensors see.

    :param venv: Any VecEnv
    :param device: The algorithm's device
    :return: the VecEnv itself if it has that face, a :class:`NumpyBoundary` otherwise
    :raises ValueError: if the VecEnv's tensors are on another device
    """
    if not shows_tensors(venv):
        return NumpyBoundary(venv, device)
    face = cast(StepsTensors, venv)
    # Without its index, cuda is not equal to cuda:0
    if th.empty(0, device=face.device).device != th.empty(0, device=device).device:
        raise ValueError(f"the environments are on device {face.device}, the algorithm on {device}: choose the same one")
    return face


class NumpyBoundary:
    """
    Any VecEnv on the CPU, as :class:`StepsTensors`.

    Each array crosses once, through pinned memory if the device is a GPU. The memory is used again at the next step: by then,
    the actions have been fetched, and with them all that was sent before has arrived.

    Values of the last observations of truncated episodes are used where SB3 uses them: an episode without
    ``terminal_observation`` counts as terminated.

    :param venv: The VecEnv
    :param device: Device of the tensors
    """

    def __init__(self, venv: VecEnv, device: th.device):
        self.venv = venv
        self.device = device
        self.num_envs = venv.num_envs
        # Of the last step, as the VecEnv gave them
        self.dones = np.zeros(venv.num_envs, dtype=bool)
        self.infos: list[dict[str, Any]] = []
        self._pinned: dict[str, th.Tensor] = {}

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments. See :meth:`StepsTensors.reset_tensors`.

        :return: first observations. Shape: ``(n_envs, *obs_shape)``
        """
        return self.send_obs(self.venv.reset())

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments. See :meth:`StepsTensors.step_tensors`.

        :param actions: Their actions. Shape: ``(n_envs, *action_shape)``
        :return: what happened. Returns of episodes are NaN, and lengths 0, where no Monitor tells them
        """
        arrays, rewards, self.dones, self.infos = self.venv.step(actions.cpu().numpy())
        truncated = np.zeros(self.num_envs, dtype=bool)
        returns = np.full(self.num_envs, np.nan, dtype=np.float32)
        lengths = np.zeros(self.num_envs, dtype=np.int32)
        for idx in np.flatnonzero(self.dones):
            info = self.infos[idx]
            truncated[idx] = info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None
            if "episode" in info:
                returns[idx], lengths[idx] = info["episode"]["r"], info["episode"]["l"]

        obs = self.send_obs(arrays)
        return TensorStep(
            obs=obs,
            rewards=self._send("rewards", rewards.astype(np.float32, copy=False)),
            terminated=self._send("terminated", self.dones & ~truncated),
            truncated=self._send("truncated", truncated),
            final_obs=self._send_final_obs(arrays, truncated) if truncated.any() else obs,
            episode_returns=self._send("returns", returns),
            episode_lengths=self._send("lengths", lengths),
        )

    def send_obs(self, obs: Any, name: str = "obs") -> TensorObs:
        """
        Send observations to the device.

        :param obs: Observations of the VecEnv. Shape: ``(n_envs, *obs_shape)``, a dict of them for Dict spaces
        :param name: What they are: those of the same name use the same pinned memory
        :return: the same as tensors
        """
        if isinstance(obs, dict):
            return {key: self._send(f"{name} {key}", array) for key, array in obs.items()}
        return self._send(name, obs)

    def _send_final_obs(self, obs: Any, truncated: np.ndarray) -> TensorObs:
        if isinstance(obs, dict):
            final_obs: Any = {key: array.copy() for key, array in obs.items()}
            for idx in np.flatnonzero(truncated):
                for key, array in final_obs.items():
                    array[idx] = self.infos[idx]["terminal_observation"][key]
        else:
            final_obs = obs.copy()
            for idx in np.flatnonzero(truncated):
                final_obs[idx] = self.infos[idx]["terminal_observation"]
        return self.send_obs(final_obs, "final_obs")

    def _send(self, name: str, array: np.ndarray) -> th.Tensor:
        tensor = th.from_numpy(np.ascontiguousarray(array))
        if self.device.type != "cuda":
            return tensor.to(self.device)
        if name not in self._pinned:
            self._pinned[name] = th.empty_like(tensor, pin_memory=True)
        return self._pinned[name].copy_(tensor).to(self.device, non_blocking=True)
