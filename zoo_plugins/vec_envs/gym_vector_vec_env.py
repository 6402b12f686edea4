"""Gymnasium's vector environments."""

import functools
from typing import Any

import gymnasium as gym
import torch as th
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from zoo_plugins.vec_envs.batch_sim import FinalObs, autoreset_mode
from zoo_plugins.vec_envs.batches import make_batch
from zoo_plugins.vec_envs.env_fns import EnvFns, made_by
from zoo_plugins.vec_envs.tensor_vec_env import TensorVecEnv

OF_ENV_FNS = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}
MODES = (*OF_ENV_FNS, "vector_entry_point")


class GymVectorSim:
    """
    A vector environment of gymnasium as a :class:`~zoo_plugins.vec_envs.batch_sim.BatchSim`.

    :param env: The vector environment, with any automatic resets
    """

    final_obs: FinalObs = "exact"

    def __init__(self, env: VectorEnv[Any, Any, Any]):
        self.unwrapped = env
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.autoreset_mode = autoreset_mode(env)
        self.render_mode = env.render_mode
        self.reset, self.step, self.render, self.close = env.reset, env.step, env.render, env.close


class GymVectorVecEnv(TensorVecEnv):
    """
    A VecEnv over one of gymnasium's vector environments.

    :param env: A vector environment; or the id of a registered one; or functions that make an environment each, as SB3's
        ``make_vec_env`` and the zoo have them
    :param num_envs: Number of environments, if ``env`` is an id
    :param vectorization_mode: What steps them, if ``env`` is no vector environment: "sync" one after the other, "async" in
        processes, both with resets in the same step; "vector_entry_point" the vector environment that is registered, which is
        the fastest. Many of those spend a step on each reset (``AutoresetMode.NEXT_STEP``): only algorithms on tensors can
        leave that out, and ``reset()`` refuses it for all others
    :param device: Where tensors are: "auto" (as the policy's), "cpu", "cuda", ...
    :param check_finite: "raise" to stop when an observation or reward is NaN or infinite, ``None`` not to look
    :param env_kwargs: Keyword arguments of the environment
    :raises ValueError: if there is no such environment
    """

    def __init__(
        self,
        env: str | VectorEnv[Any, Any, Any] | EnvFns,
        num_envs: int | None = None,
        vectorization_mode: str = "sync",
        device: th.device | str = "auto",
        check_finite: str | None = None,
        **env_kwargs: Any,
    ):
        if vectorization_mode not in MODES:
            raise ValueError(f"vectorization_mode: {vectorization_mode!r} is none of {', '.join(MODES)}")
        vector_env = env
        if not isinstance(env, VectorEnv):
            vector_env = _vector_env(env, num_envs, vectorization_mode, env_kwargs)
        elif env_kwargs:
            raise ValueError(f"{env} is made already: it can't be given {', '.join(env_kwargs)}")
        super().__init__(GymVectorSim(vector_env), num_envs, device, check_finite)  # type: ignore[arg-type]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Return an attribute of environments, or of the vector environment if it steps none one by one.

        :param attr_name: Name of the attribute
        :param indices: Indices of environments, ``None`` for all
        :return: its value in each
        """
        base = self._base()
        if attr_name != "render_mode" and isinstance(base, SyncVectorEnv | AsyncVectorEnv):
            values = base.get_attr(attr_name)
            return [values[index] for index in self._get_indices(indices)]
        return super().get_attr(attr_name, indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of environments, or of the vector environment if it steps none one by one.

        :param method_name: Name of the method
        :param method_args: Positional arguments
        :param indices: Indices of environments, ``None`` for all
        :param method_kwargs: Keyword arguments
        :return: what each call returned
        :raises ValueError: if some of the environments are meant, and they are in processes
        """
        base = self._base()
        if isinstance(base, SyncVectorEnv):
            envs = [base.envs[index] for index in self._get_indices(indices)]
            return [env.get_wrapper_attr(method_name)(*method_args, **method_kwargs) for env in envs]
        if isinstance(base, AsyncVectorEnv):
            if indices is not None:
                raise ValueError(f"{method_name}: environments in processes are called all together; leave out indices")
            return list(base.call(method_name, *method_args, **method_kwargs))
        return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)


def _vector_env(env: Any, num_envs: int | None, mode: str, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    """
    Make a vector environment.

    :param env: Id of an environment, or functions that make an environment each
    :param num_envs: Number of environments of an id
    :param mode: What steps them
    :param kwargs: Keyword arguments of the environment
    :return: the vector environment
    """
    if mode == "vector_entry_point":
        if isinstance(env, str):
            return make_batch(env, num_envs or 1, th.device("cpu"), kwargs)
        env_id, own_kwargs = made_by(env, GymVectorVecEnv.__name__)
        return make_batch(env_id, len(env), th.device("cpu"), {**own_kwargs, **kwargs})
    if isinstance(env, str):
        env = [functools.partial(gym.make, env, **kwargs)] * (num_envs or 1)
    elif kwargs:
        raise ValueError(f"env_fns make environments themselves: they can't be given {', '.join(kwargs)}")
    return OF_ENV_FNS[mode](env, autoreset_mode=AutoresetMode.SAME_STEP)
