"""Environments of EnvPool."""

from typing import Any

import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode

from zoo_plugins.vec_envs.batch_sim import FinalObs
from zoo_plugins.vec_envs.env_fns import EnvFns, made_by
from zoo_plugins.vec_envs.tensor_vec_env import TensorVecEnv


class EnvPoolSim:
    """
    Environments of EnvPool as a :class:`~zoo_plugins.vec_envs.batch_sim.BatchSim`.

    EnvPool itself would reset in the next step, and ignore that step's action. It is asked for a reset at once instead: the
    step that ends an episode returns its last observation.

    :param task_id: Name of the task
    :param num_envs: Number of environments
    :param kwargs: Other arguments of ``envpool.make``
    :raises ImportError: if EnvPool is not installed
    :raises ValueError: if there is no such task
    """

    final_obs: FinalObs = "exact"
    autoreset_mode = AutoresetMode.DISABLED

    def __init__(self, task_id: str, num_envs: int, **kwargs: Any):
        try:
            import envpool
        except ImportError as error:
            raise ImportError("EnvPool is not installed: pip install 'zoo-plugins[envpool]'") from error
        if task_id not in envpool.list_all_envs():
            raise ValueError(f"EnvPool has no task {task_id!r}; envpool.list_all_envs() lists them")
        if kwargs.get("batch_size", num_envs) != num_envs:
            raise ValueError("batch_size: all environments are stepped together")
        self._envpool: Any = envpool
        self._arguments = {"task_id": task_id, "num_envs": num_envs, **kwargs}
        self.num_envs = num_envs
        self.unwrapped = self._make()
        self.single_observation_space = self.unwrapped.observation_space
        self.single_action_space = self.unwrapped.action_space
        self.render_mode = self.unwrapped.render_mode
        self.max_episode_steps = self.unwrapped.config.get("max_episode_steps")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Reset environments.

        :param seed: Seed of the environments, which are made anew with it: EnvPool has no other way. ``None`` to go on
        :param options: ``reset_mask``: which environments to reset; nothing else
        :return: observations of all environments, and no info
        """
        if seed is not None:
            self.unwrapped.close()
            self.unwrapped = self._make(seed=seed % 2**31)
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        if options:
            raise ValueError(f"EnvPool's environments have no options: {', '.join(options)}")
        if mask is None:
            self._obs, _ = self.unwrapped.reset()
        else:
            fresh, info = self.unwrapped.reset(np.flatnonzero(mask).astype(np.int32))
            _write(self._obs, info["env_id"], fresh)
        return self._obs, {}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """
        Step all environments.

        :param actions: Their actions. Shape: ``(num_envs, *action_shape)``
        :return: observations, rewards, terminated, truncated, and EnvPool's info
        """
        self._obs, rewards, terminated, truncated, info = self.unwrapped.step(actions)
        return self._obs, rewards, terminated, truncated, info

    def render(self) -> Any:
        """
        Make images.

        :return: an image of each environment
        """
        return self.unwrapped.render(np.arange(self.num_envs, dtype=np.int32))

    def close(self) -> None:
        """End EnvPool's threads."""
        self.unwrapped.close()

    def _make(self, **kwargs: Any) -> Any:
        return self._envpool.make_gymnasium(**{**self._arguments, **kwargs})


class EnvPoolVecEnv(TensorVecEnv):
    """
    A VecEnv over environments of `EnvPool <https://envpool.readthedocs.io>`_, which steps them in threads of its own.

    :param env: Name of a task, such as "Ant-v5"; or functions that make an environment each, as SB3's ``make_vec_env`` and the
        zoo have them: EnvPool's task of the same name takes their place
    :param num_envs: Number of environments, if ``env`` is a name
    :param device: Where tensors are: "auto" (as the policy's), "cpu", "cuda", ...
    :param check_finite: "raise" to stop when an observation or reward is NaN or infinite, "reset" to truncate that episode,
        ``None`` not to look
    :param kwargs: Arguments of ``envpool.make``, e.g. ``num_threads``
    :raises ImportError: if EnvPool is not installed
    :raises ValueError: if there is no such task
    """

    def __init__(
        self,
        env: str | EnvFns,
        num_envs: int | None = None,
        device: th.device | str = "auto",
        check_finite: str | None = None,
        **kwargs: Any,
    ):
        if not isinstance(env, str):
            num_envs = len(env)
            env, own_kwargs = made_by(env, type(self).__name__)
            kwargs = {**own_kwargs, **kwargs}
        super().__init__(EnvPoolSim(env, num_envs or 1, **kwargs), num_envs, device, check_finite)


def _write(obs: Any, envs: np.ndarray, fresh: Any) -> None:
    for key in obs if isinstance(obs, dict) else [None]:
        rows, values = (obs, fresh) if key is None else (obs[key], fresh[key])
        rows[envs] = values
