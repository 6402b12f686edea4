"""What scripts/benchmark_tensor.py compares: SB3's algorithms and ours on the same environments, stepped in several ways."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins import SeqRecurrentPPO, TensorPPO
from zoo_plugins.vec_envs import EnvPoolVecEnv, GymVectorVecEnv, TensorVecEnv


class ThinVecEnv(VecEnv):
    """
    The least that makes SB3 step a batch of environments, as its users write it. For speed only.

    The batch spends a step on each reset (``AutoresetMode.NEXT_STEP``), from which SB3 learns something wrong.

    :param batch: A vector environment of gymnasium, or of EnvPool with gymnasium's methods
    :param n_envs: Number of environments
    :param observation_space: Observation space of one environment
    :param action_space: Action space of one environment
    """

    def __init__(self, batch: Any, n_envs: int, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.batch = batch
        self.returns, self.lengths = np.zeros(n_envs), np.zeros(n_envs, dtype=int)
        super().__init__(n_envs, observation_space, action_space)

    def reset(self) -> Any:
        """Reset all environments."""
        return self.batch.reset()[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions."""
        self.actions = actions.astype(self.action_space.dtype)

    def step_wait(self) -> Any:
        """Step all environments."""
        obs, rewards, terminated, truncated, _ = self.batch.step(self.actions)
        dones = terminated | truncated
        self.returns += rewards
        self.lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            infos[i]["episode"] = {"r": float(self.returns[i]), "l": int(self.lengths[i]), "t": 0.0}
            infos[i]["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
            infos[i]["terminal_observation"] = obs[i]
        self.returns[dones], self.lengths[dones] = 0, 0
        return obs, rewards, dones, infos

    def close(self) -> None:
        """Close the environments."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Tell that there is no render mode."""
        return [getattr(self.batch, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Do nothing."""

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Do nothing."""
        return [None for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Tell that nothing is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Make no images."""
        return [None] * self.num_envs


def thin_gym_vector(env_id: str, n_envs: int) -> VecEnv:
    """
    Have gymnasium's own vector environment in a thin adapter.

    :param env_id: Its id
    :param n_envs: Number of environments
    :return: the VecEnv
    """
    batch = gym.make_vec(env_id, n_envs, vectorization_mode="vector_entry_point")
    return ThinVecEnv(batch, n_envs, batch.single_observation_space, batch.single_action_space)


def thin_envpool(env_id: str, n_envs: int) -> VecEnv:
    """
    Have EnvPool's environments, stepped by one thread, in a thin adapter.

    :param env_id: Name of the task
    :param n_envs: Number of environments
    :return: the VecEnv
    """
    import envpool

    batch = envpool.make_gymnasium(env_id, num_envs=n_envs, num_threads=1, seed=0)
    return ThinVecEnv(batch, n_envs, batch.observation_space, batch.action_space)


def has_vector_form(env_id: str) -> bool:
    """
    Find out whether gymnasium has a vector environment of its own.

    :param env_id: Id of an environment
    :return: whether it does
    """
    return gym.spec(env_id).vector_entry_point is not None


def dummy(env_id: str, n_envs: int) -> VecEnv:
    """
    Have environments in a DummyVecEnv.

    :param env_id: Their id
    :param n_envs: Number of environments
    :return: the VecEnv
    """
    return make_vec_env(env_id, n_envs, seed=0)


def tensors(env_id: str, n_envs: int) -> VecEnv:
    """
    Have environments in a TensorVecEnv.

    :param env_id: Their id, without "Tensor"
    :param n_envs: Number of environments
    :return: the VecEnv
    """
    return TensorVecEnv(f"Tensor{env_id}", n_envs, device="cpu")


SIDES: dict[str, tuple[type[OnPolicyAlgorithm], Callable[[str, int], VecEnv]]] = {
    "sb3": (PPO, dummy),
    "sb3-gym-vector": (PPO, thin_gym_vector),
    "sb3-envpool": (PPO, thin_envpool),
    "ours-dummy": (TensorPPO, dummy),
    "ours-gym-vector": (
        TensorPPO,
        lambda env_id, n_envs: GymVectorVecEnv(env_id, n_envs, vectorization_mode="vector_entry_point", device="cpu"),
    ),
    "ours-envpool": (TensorPPO, lambda env_id, n_envs: EnvPoolVecEnv(env_id, n_envs, device="cpu", num_threads=1)),
    "ours": (TensorPPO, tensors),
    "ours-compiled": (TensorPPO, tensors),
    "lstm": (SeqRecurrentPPO, tensors),
    "lstm-dummy": (SeqRecurrentPPO, dummy),
    "lstm-sb3": (RecurrentPPO, dummy),
}
