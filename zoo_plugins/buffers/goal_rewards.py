"""Rewards of transitions whose goal was replaced."""

import dataclasses
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

SOURCES = ("auto", "vec_env")


class GoalRewards:
    """
    The ``compute_reward()`` of an environment, without asking another process for it where that can be avoided.

    An environment that lives in another process is made once more here, from its ``spec`` (without wrappers that can't be made
    from it), only to call its ``compute_reward()``. What that gives is compared with what the VecEnv gives at the 1st, 2nd,
    4th, 8th, ... call; once they differ, the VecEnv is asked for good.

    :param env: The training environment
    :param source: "auto", or "vec_env" to always ask the VecEnv
    """

    def __init__(self, env: VecEnv, source: str = "auto"):
        self.env = env
        self.n_calls = 0
        self.local_env: gym.Env[Any, Any] | None = None
        if source == "auto" and not isinstance(env.unwrapped, DummyVecEnv):
            self.local_env = self._make_local_env()

    def __call__(self, achieved_goals: np.ndarray, desired_goals: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """
        Compute rewards.

        :param achieved_goals: Goals achieved by the transitions. Shape: (n, *goal_shape)
        :param desired_goals: Goals in place of those that were desired. Shape: (n, *goal_shape)
        :param infos: An info dict for each transition
        :return: float32 rewards. Shape: (n,)
        :raises ValueError: if the environment does not give as many rewards
        """
        self.n_calls += 1
        if self.local_env is None:
            return self._ask_vec_env(achieved_goals, desired_goals, infos)
        if self.n_calls & (self.n_calls - 1) == 0:  # a power of two
            rewards = self._ask_vec_env(achieved_goals, desired_goals, infos)
            if not np.array_equal(rewards, self._ask_local_env(achieved_goals, desired_goals, infos), equal_nan=True):
                self._stay_with_vec_env("a second environment, made from its spec, computes other rewards")
            return rewards
        return self._ask_local_env(achieved_goals, desired_goals, infos)

    def _ask_vec_env(self, achieved_goals: np.ndarray, desired_goals: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        # The first environment answers for all, as in SB3
        rewards = self.env.env_method("compute_reward", achieved_goals, desired_goals, infos, indices=[0])[0]
        return _as_rewards(rewards, len(infos))

    def _ask_local_env(self, achieved_goals: np.ndarray, desired_goals: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        assert self.local_env is not None
        compute_reward = self.local_env.get_wrapper_attr("compute_reward")
        return _as_rewards(compute_reward(achieved_goals, desired_goals, infos), len(infos))

    def _make_local_env(self) -> gym.Env[Any, Any] | None:
        try:
            # A worker of SubprocVecEnv dies of a spec that can't be pickled: look at the one of the same name here first
            name = self.env.env_method("__str__", indices=[0])[0]
            pickle.dumps(gym.spec(name.rstrip(">").rpartition("<")[2]))
            spec = self.env.get_attr("spec", indices=[0])[0]
            # SB3's Monitor, for one, does not say how to make it again
            wrappers = tuple(wrapper for wrapper in spec.additional_wrappers if wrapper.kwargs is not None)
            return gym.make(dataclasses.replace(spec, additional_wrappers=wrappers))
        except Exception as error:  # whatever the constructor of an environment may raise
            self._stay_with_vec_env(f"no second environment could be made: {type(error).__name__}: {error}")
            return None

    def close(self) -> None:
        """Close the environment that was made here."""
        if self.local_env is not None:
            self.local_env.close()
            self.local_env = None

    def _stay_with_vec_env(self, reason: str) -> None:
        warnings.warn(
            f"rewards of replaced goals are asked of the VecEnv, which takes longer: {reason}. "
            "replay_buffer_kwargs: {reward_source: vec_env} does so without this warning",
            stacklevel=2,
        )
        self.close()


def _as_rewards(rewards: Any, n: int) -> np.ndarray:
    rewards = np.asarray(rewards, dtype=np.float32)
    if rewards.size != n:
        raise ValueError(f"compute_reward() must give one reward per goal, but gave shape {rewards.shape} for {n} goals")
    return rewards.reshape(n)
