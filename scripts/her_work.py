"""The work of scripts/benchmark_her.py: a goal environment, and buffers full of its transitions."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.registry import import_object

LENGTH = 50  # steps of an episode
TOY = "her_work:ToyReach-v0"  # as the workers of a SubprocVecEnv find it
BUFFERS = {"sb3": "stable_baselines3:HerReplayBuffer", "ours": "zoo_plugins.buffers:FastHerReplayBuffer"}
HER_KWARGS = dict(n_sampled_goal=4, goal_selection_strategy="future")
Step = tuple[dict[str, Any], dict[str, Any], Any, Any, Any, list[dict[str, Any]]]


class ToyReachEnv(gym.Env[dict[str, Any], Any]):
    """A point that moves towards a goal, in next to no time, with spaces of the shapes and dtypes of FetchPush."""

    def __init__(self) -> None:
        goal = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        observation = spaces.Box(-np.inf, np.inf, (25,), np.float64)
        self.observation_space = spaces.Dict(observation=observation, achieved_goal=goal, desired_goal=goal)
        self.action_space = spaces.Box(-1, 1, (4,), np.float32)
        self.observation = np.zeros(25)
        self.goal = np.zeros(3)

    def _observe(self) -> dict[str, Any]:
        observation = self.observation.copy()
        return {"observation": observation, "achieved_goal": observation[:3].copy(), "desired_goal": self.goal.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Put point and goal somewhere.

        :param seed: Random seed
        :param options: Not used
        :return: observation and an empty info dict
        """
        super().reset(seed=seed)
        self.observation = np.zeros(25)
        self.observation[:3], self.goal = self.np_random.uniform(-0.15, 0.15, size=(2, 3))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """
        Move the point.

        :param action: By how much. Shape: (4,)
        :return: observation, reward, False, False and an info dict
        """
        self.observation[:3] += 0.05 * action[:3]
        self.observation[3:7] = action
        reward = float(self.compute_reward(self.observation[:3], self.goal, {}))
        return self._observe(), reward, False, False, {"is_success": reward == 0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """
        Reward being near the goal.

        :param achieved_goal: Where the point is. Shape: (..., 3)
        :param desired_goal: Where it should be. Shape: (..., 3)
        :param info: Not used
        :return: 0 if it is there, otherwise -1. Shape: (...)
        """
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.05).astype(np.float32)


if "ToyReach-v0" not in gym.registry:
    gym.register("ToyReach-v0", entry_point="her_work:ToyReachEnv", max_episode_steps=LENGTH)


def make_buffer(side: str, env: VecEnv, n_rows: int) -> HerReplayBuffer:
    """
    Make a buffer.

    :param side: Whose buffer, "sb3" or "ours"
    :param env: The environment
    :param n_rows: Number of transitions that it holds
    :return: the buffer
    """
    arguments = dict(device="cpu", n_envs=env.num_envs, **HER_KWARGS)
    return import_object(BUFFERS[side])(n_rows, env.observation_space, env.action_space, env, **arguments)


class Feed:
    """
    A buffer, and an endless stream of transitions for it: one episode of random numbers per environment, again and again.

    :param buffer: The buffer
    :param env: The environment
    """

    def __init__(self, buffer: HerReplayBuffer, env: VecEnv):
        self.buffer = buffer
        self._steps = itertools.cycle(make_episode(env))

    def add(self, n_steps: int = 1) -> None:
        """
        Add steps of all environments.

        :param n_steps: Number of steps
        """
        for step in itertools.islice(self._steps, n_steps):
            self.buffer.add(*step)

    def fill(self) -> None:
        """Add as many transitions as the buffer holds."""
        self.add(self.buffer.buffer_size)


def make_episode(env: VecEnv) -> list[Step]:
    """
    Make up an episode.

    :param env: The environment
    :return: the arguments of ``add()`` for each step
    """
    rng = np.random.default_rng(0)
    assert isinstance(env.observation_space, spaces.Dict)
    observations = [
        {key: rng.normal(size=(env.num_envs, *space.shape)) for key, space in env.observation_space.items() if space.shape}
        for _ in range(LENGTH + 1)
    ]
    steps: list[Step] = []
    for obs, next_obs in itertools.pairwise(observations):
        is_last = len(steps) == LENGTH - 1
        actions = np.stack([env.action_space.sample() for _ in range(env.num_envs)])
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": True} if is_last else {} for _ in range(env.num_envs)]
        steps.append((obs, next_obs, actions, np.full(env.num_envs, -1.0), np.full(env.num_envs, is_last), infos))
    return steps


def whole_episodes(n_rows: float, n_envs: int) -> int:
    """
    Round a number of transitions.

    :param n_rows: Number of transitions
    :param n_envs: Number of environments
    :return: the largest smaller number that is whole episodes of all environments, two at least
    """
    return max(2, int(n_rows) // (n_envs * LENGTH)) * n_envs * LENGTH
