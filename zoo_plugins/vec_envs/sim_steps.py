"""Steps of a simulator as steps of tensors: arrays are copied, episodes counted, automatic resets understood."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode

from zoo_plugins.vec_envs.batch_sim import BatchSim, attribute, autoreset_mode, maybe_attribute
from zoo_plugins.vec_envs.finite import NonFiniteEnds, refuse_non_finite
from zoo_plugins.vec_envs.tensor_arrays import ObsTensors, copied, obs_where, per_env, to_tensor
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class SimSteps:
    """
    Steps a :class:`~zoo_plugins.vec_envs.batch_sim.BatchSim`.

    :param sim: The simulator
    :param device: Where tensors are to be
    :param check_finite: "raise" to stop when an observation or reward is not finite, "reset" to end that episode instead
        (simulators without automatic resets only), ``None`` not to look. Looking waits for the device in each step
    :raises AttributeError: if the simulator lacks an attribute
    """

    def __init__(self, sim: BatchSim, device: th.device, check_finite: str | None = None):
        self.sim = sim
        self.num_envs = int(attribute(sim, "num_envs"))
        self.single_observation_space = attribute(sim, "single_observation_space")
        self.single_action_space = attribute(sim, "single_action_space")
        self.final_obs = attribute(sim, "final_obs")
        self.autoreset_mode = autoreset_mode(sim)
        self.render_mode = maybe_attribute(sim, "render_mode")
        self.device = th.empty(0, device=device).device
        # What else the simulator told: of the last step, and of episodes that the last call began
        self.infos: dict[str, Any] = {}
        self.reset_info: dict[str, Any] = {}
        if self.final_obs not in ("exact", "none"):
            raise ValueError(f"final_obs: {self.final_obs!r} is none of exact, none")
        if self.final_obs == "none":
            warnings.warn(
                f"{type(sim).__name__} does not tell last observations of episodes (final_obs: none): values of truncated "
                "episodes can't be bootstrapped, and count as 0",
                stacklevel=2,
            )
        if check_finite not in (None, "raise", "reset"):
            raise ValueError(f"check_finite: {check_finite!r} is none of raise, reset, None")
        if check_finite == "reset" and self.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"check_finite: reset needs a simulator that resets when it is asked to, and {type(sim).__name__} does not "
                f"(autoreset_mode {self.autoreset_mode.name})"
            )
        self._check_finite = check_finite
        self._n_steps = 0
        self._obs_tensors = ObsTensors(self.single_observation_space, self.num_envs, self.device)
        self._returns = th.zeros(self.num_envs, device=self.device)
        self._lengths = th.zeros(self.num_envs, dtype=th.int32, device=self.device)
        self._numpy: bool | None = None  # whether the simulator's arrays are NumPy's, which the first reset shows
        # Environments that the next step resets instead of stepping them
        self._waiting = th.zeros(self.num_envs, dtype=th.bool, device=self.device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[TensorObs, dict[str, Any]]:
        """
        Reset all environments.

        :param seed: Seed of all random generators, ``None`` to go on with them
        :param options: Options of this reset
        :return: first observations, and the simulator's info
        """
        obs, info = self.sim.reset(seed=seed, **({"options": options} if options else {}))
        self.infos, self.reset_info = {}, info
        self._numpy = _is_numpy(obs)
        self._returns.zero_()
        self._lengths.zero_()
        self._waiting.zero_()
        tensors = self._obs_tensors(obs)
        self._ends = NonFiniteEnds(tensors) if self._check_finite == "reset" else None
        return tensors, info

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Actions, on the device. Shape: ``(num_envs, *action_shape)``
        :return: what happened
        """
        raw_obs, rewards, terminated, truncated, info = self.sim.step(self._for_sim(actions))
        obs = self._obs_tensors(raw_obs)
        rewards = per_env("rewards", rewards, self.num_envs, self.device, th.float32)
        terminated = per_env("terminated", terminated, self.num_envs, self.device, th.bool)
        truncated = per_env("truncated", truncated, self.num_envs, self.device, th.bool)
        valid = None
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            valid = ~self._waiting
            rewards.masked_fill_(self._waiting, 0)
            terminated &= valid
            truncated &= valid
        if self._ends is not None:
            obs, rewards, terminated, truncated = self._ends.end(obs, rewards, terminated, truncated)
        truncated &= ~terminated
        done = terminated | truncated

        returns = self._returns + rewards
        lengths = self._lengths + (1 if valid is None else valid)
        self._returns.copy_(returns.masked_fill(done, 0))
        self._lengths.copy_(lengths.masked_fill(done, 0))
        obs, final_obs = self._across_ends(obs, done, info)
        success = self._success(info)
        step = TensorStep(obs, rewards, terminated, truncated, final_obs, returns, lengths, valid, success)
        self.infos = info
        self._n_steps += 1
        if self._check_finite == "raise":
            refuse_non_finite(step, self._n_steps)
        return step

    def close(self) -> None:
        """Close the simulator."""
        close = maybe_attribute(self.sim, "close")
        if close is not None:
            close()

    def render(self, n_images: int | None = None) -> Any:
        """
        Make images.

        :param n_images: Of how many environments, the first ones; ``None``: of all
        :return: an image of each, ``None`` if there are none
        """
        images = attribute(self.sim, "render")()
        return None if images is None else images[:n_images]

    def _across_ends(self, obs: TensorObs, done: th.Tensor, info: dict[str, Any]) -> tuple[TensorObs, TensorObs | None]:
        """
        Tell apart last and first observations of episodes.

        :param obs: What the step returned
        :param done: Which episodes have ended. Shape: ``(num_envs,)``
        :param info: The simulator's info
        :return: observations that go on, and last ones
        """
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            self.reset_info = info
            return obs, None if self.final_obs == "none" else self._final_obs(obs, done, info)
        final_obs = None if self.final_obs == "none" else copied(obs)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._waiting.copy_(done)
            return obs, final_obs
        obs = self._reset_where(done, obs)
        if self._ends is not None:
            self._ends.go_on(obs)
        return obs, final_obs

    def _reset_where(self, done: th.Tensor, obs: TensorObs) -> TensorObs:
        mask: Any = done.clone()
        if self._numpy:
            mask = done.cpu().numpy().copy()
            if not mask.any():
                return obs
        # Others are asked in each step, so that nothing waits for a device
        fresh, self.reset_info = self.sim.reset(options={"reset_mask": mask})
        return obs_where(done, self._obs_tensors(fresh), obs)

    def _final_obs(self, obs: TensorObs, done: th.Tensor, info: dict[str, Any]) -> TensorObs:
        final = info.get("final_obs")
        if final is None:
            if (self._numpy or done.device.type == "cpu") and not done.any():
                return copied(obs)
            raise KeyError(
                f"{type(self.sim).__name__} has exact final_obs, and none in the info of a step that ended an episode"
            )
        if isinstance(final, np.ndarray) and final.dtype == object:
            return self._gathered(final, obs)
        return self._obs_tensors(final)

    def _gathered(self, final: np.ndarray, obs: TensorObs) -> TensorObs:
        """
        Put observations of single environments, as gymnasium has them, where they belong.

        :param final: Array of observations, and ``None``. Shape: ``(num_envs,)``
        :param obs: Observations for the other environments
        :return: all of them
        """
        all_obs = copied(obs)
        for env, one in enumerate(final):
            if one is None:
                continue
            for key, part in all_obs.items() if isinstance(all_obs, dict) else [(None, all_obs)]:
                part[env] = to_tensor(one if key is None else one[key], self.device, part.dtype)
        return all_obs

    def _success(self, info: dict[str, Any]) -> th.Tensor | None:
        """
        Look for ``is_success``.

        :param info: The simulator's info: what is told of episodes that have ended comes before what is told of the next ones
        :return: 1 or 0 for each environment, NaN where there is none; ``None`` if there is none at all
        """
        told = info.get("final_info", info)
        values = told.get("is_success") if isinstance(told, Mapping) else None
        if values is None:
            return None
        if isinstance(values, np.ndarray):
            # Of single environments, an array of objects, some of which are None
            values = values.astype(np.float32)
        success = per_env("is_success", values, self.num_envs, self.device, th.float32)
        mask = told.get("_is_success")
        return success if mask is None else success.masked_fill_(~to_tensor(mask, self.device, th.bool), th.nan)

    def _for_sim(self, actions: th.Tensor) -> Any:
        if self._numpy is None:
            raise RuntimeError("environments have to be reset before they are stepped")
        copy = actions.clone()
        return np.asarray(copy.cpu(), self.single_action_space.dtype) if self._numpy else copy


def _is_numpy(obs: Any) -> bool:
    return isinstance(next(iter(obs.values())) if isinstance(obs, dict) else obs, np.ndarray)
