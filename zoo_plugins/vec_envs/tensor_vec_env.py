"""Many environments as one, stepped as tensors on a device."""

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from zoo_plugins.envs.tensor_env import TensorEnv
from zoo_plugins.vec_envs.batch_sim import BatchSim
from zoo_plugins.vec_envs.batches import make_sim
from zoo_plugins.vec_envs.env_fns import EnvFns, made_by
from zoo_plugins.vec_envs.numpy_face import NumpyFace
from zoo_plugins.vec_envs.sim_steps import SimSteps
from zoo_plugins.vec_envs.tensor_infos import extras_of
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep

# More images than that are not seen, and fill the memory
MAX_IMAGES = 16


class TensorVecEnv(NumpyFace):
    """
    A VecEnv over one environment that steps many copies, with tensors for those who know them and NumPy for all others.

    ``reset_tensors`` and ``step_tensors`` never leave the device, nor wait for it. ``reset`` and ``step`` are SB3's, for any
    algorithm and callback. Both work on the same episodes. What they return is the caller's.

    Episodes are counted as by SB3's ``Monitor``, and end in the same step. Environments share one random generator:
    ``seed(s)`` makes the batch repeatable, and not each copy for itself.

    :param env: Id of a registered environment with a ``vector_entry_point``; or a
        :class:`~zoo_plugins.vec_envs.batch_sim.BatchSim`; or functions that make an environment each, as SB3's
        ``make_vec_env`` and the zoo have them: one of them is asked what it makes
    :param num_envs: Number of copies of a registered environment, 1 without
    :param device: Where tensors are: "auto" (as the policy's), "cpu", "cuda", ...
    :param check_finite: "raise" to stop when an observation or reward is NaN or infinite, naming environment and step;
        "reset" to truncate that episode (simulators with AutoresetMode.DISABLED only); ``None``: not to look. "raise" waits
        for the device in each step
    :param env_kwargs: Keyword arguments of a registered environment
    :raises ValueError: if there is no such environment, or it can't be had in a batch
    :raises AttributeError: if an object lacks an attribute of a BatchSim
    """

    def __init__(
        self,
        env: str | BatchSim | EnvFns,
        num_envs: int | None = None,
        device: th.device | str = "auto",
        check_finite: str | None = None,
        **env_kwargs: Any,
    ):
        self.device = th.empty(0, device=get_device(device)).device
        sim: Any = env
        if isinstance(env, str):
            sim = make_sim(env, 1 if num_envs is None else num_envs, self.device, env_kwargs)
        elif isinstance(env, list | tuple):
            env_id, kwargs = made_by(env, type(self).__name__)
            sim = make_sim(env_id, len(env), self.device, {**kwargs, **env_kwargs})
        elif env_kwargs:
            raise ValueError(f"{type(env).__name__} is made already: it can't be given {', '.join(env_kwargs)}")
        # Ours have the right form already, if nothing wraps them
        is_ours = isinstance(sim, TensorEnv) and sim.device == self.device and check_finite is None
        self.batch: TensorEnv | SimSteps = sim if is_ours else SimSteps(sim, self.device, check_finite)
        if num_envs not in (None, self.batch.num_envs):
            raise ValueError(f"num_envs: {num_envs!r}, but {type(self._base()).__name__} has {self.batch.num_envs}")
        shape = self.batch.single_action_space.shape
        self._action_shape = (self.batch.num_envs, *(() if shape is None else shape))
        self._start = time.time()
        super().__init__(self.batch.num_envs, self.batch.single_observation_space, self.batch.single_action_space)

    @property
    def generator(self) -> th.Generator | None:
        """
        Get the random generator of the environments, which a recording of their steps as a CUDA graph has to know.

        :return: the generator; ``None`` for simulators other than ours, whose steps can't be recorded
        """
        return self.batch.generator if isinstance(self.batch, TensorEnv) else None

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: first observations. Shape: ``(n_envs, *obs_shape)``
        :raises ValueError: if environments were given different options
        """
        options = self._options[0] if self._options else {}
        if any(other != options for other in self._options):
            raise ValueError("environments of one batch have the same options, and not different ones")
        obs, _ = self.batch.reset(seed=self._seeds[0], options=options)
        # Seeds and options are only used once
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device. Shape: ``(n_envs, *action_shape)``
        :return: what happened
        :raises ValueError: if actions have another shape, or are elsewhere
        """
        if actions.shape != self._action_shape or actions.device != self.device:
            raise ValueError(
                f"actions have shape {tuple(actions.shape)} on {actions.device}, and not {self._action_shape} on {self.device}"
            )
        return self.batch.step_tensors(actions)

    def close(self) -> None:
        """Close the environments."""
        self.batch.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """
        Let environments render.

        :return: images of the first environments, 16 at most; ``None`` instead if the render mode is not "rgb_array"
        """
        n_images = min(self.num_envs, MAX_IMAGES)
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * n_images
        return list(self.batch.render(n_images) or ())

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Return an attribute of the batch.

        :param attr_name: Name of the attribute
        :param indices: Indices of environments, ``None`` for all
        :return: its value, once for each
        :raises AttributeError: if there is none
        """
        value = self._find(attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        Set an attribute of the batch.

        :param attr_name: Name of the attribute
        :param value: Its value
        :param indices: Indices of environments: all of them, or ``None``
        :raises ValueError: if only some are meant
        """
        if sorted({range(self.num_envs)[index] for index in self._get_indices(indices)}) != list(range(self.num_envs)):
            raise ValueError(f"{attr_name}: environments of one batch share their attributes; leave out indices")
        setattr(self._base(), attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of the batch, once.

        :param method_name: Name of the method
        :param method_args: Positional arguments
        :param indices: Indices of environments, ``None`` for all
        :param method_kwargs: Keyword arguments
        :return: what it returned, once for each
        """
        method: Callable[..., Any] = self._find(method_name)
        result = method(*method_args, **method_kwargs)
        return [result for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        Check if environments are wrapped.

        :param wrapper_class: The wrapper
        :param indices: Indices of environments, ``None`` for all
        :return: whether each is: by a ``Monitor``, since episodes are counted, and nothing else
        """
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def check_numpy_face(self) -> None:
        """
        Refuse a simulator whose steps can't be told in NumPy.

        :raises ValueError: if it spends steps on resets
        """
        if self.batch.autoreset_mode is AutoresetMode.NEXT_STEP:
            raise ValueError(
                f"{type(self._base()).__name__} spends a step on resetting an environment (AutoresetMode.NEXT_STEP), from "
                "which SB3 would learn. Algorithms on tensors leave it out; for all others choose SAME_STEP"
            )

    def seconds(self) -> float:
        """
        Tell for how long the environments exist.

        :return: the time since they were made, in seconds
        """
        return time.time() - self._start

    def note_resets(self, envs: Iterable[int]) -> None:
        """
        Keep what the simulator told of new episodes, in ``reset_infos``.

        :param envs: Indices of the environments in which the last call began one
        """
        info = copy.deepcopy(self.batch.reset_info) if self.batch.reset_info else {}
        for env in envs:
            self.reset_infos[env] = extras_of(info, env)

    def extras(self) -> dict[str, Any]:
        """
        Tell what else the simulator told in the last step.

        :return: its info, which is the caller's
        """
        return copy.deepcopy(self.batch.infos) if self.batch.infos else {}

    def _sim(self) -> Any:
        return self.batch.sim if isinstance(self.batch, SimSteps) else self.batch

    def _base(self) -> Any:
        return getattr(self._sim(), "unwrapped", self._sim())

    def _find(self, name: str) -> Any:
        for holder in (self._base(), self._sim()):
            if hasattr(holder, name):
                return getattr(holder, name)
        if name == "render_mode":  # which SB3 asks for
            return None
        raise AttributeError(f"{type(self._base()).__name__} has no attribute {name!r}")
