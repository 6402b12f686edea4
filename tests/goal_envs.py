"""Goal environments whose observations tell which environment, episode and step they are from."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

GOAL = spaces.Box(-np.inf, np.inf, (2,), np.float64)


class GoalEnv(gym.Env):
    """
    Observation [env, episode, t], achieved goal [100 * env + episode, t], desired goal [-1, -1].

    :param length: Steps of an episode, or of one after the other
    :param number: Number of this environment
    :param terminates: Whether episodes end as terminated, not truncated
    :param info: Whether the info dict is ``{"t": t}``
    :param render_mode: "rgb_array" for black frames
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Dict(
        observation=spaces.Box(-np.inf, np.inf, (3,), np.float32), achieved_goal=GOAL, desired_goal=GOAL
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(
        self,
        length: int | Sequence[int] = 5,
        number: int = 0,
        terminates: bool = False,
        info: bool = False,
        render_mode: str | None = None,
    ):
        self.render_mode = render_mode
        self.lengths = [length] if isinstance(length, int) else list(length)
        self.number, self.terminates, self.info = number, terminates, info
        self.episode, self.t = -1, 0
        self.reward_calls: list[tuple[Any, ...]] = []

    def _observe(self) -> dict[str, np.ndarray]:
        return {
            "observation": np.array([self.number, self.episode, self.t], np.float32),
            "achieved_goal": np.array([100 * self.number + self.episode, self.t], np.float64),
            "desired_goal": np.full(2, -1.0),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        obs = self._observe()
        ends = self.t == self.lengths[self.episode % len(self.lengths)]
        info = {"t": self.t} if self.info else {}
        reward = float(compute_reward(obs["achieved_goal"], obs["desired_goal"]))
        return obs, reward, ends and self.terminates, ends and not self.terminates, info

    def render(self):
        return np.zeros((32, 32, 3), np.uint8)

    def compute_reward(self, achieved_goal, desired_goal, infos):
        self.reward_calls.append((achieved_goal, desired_goal, infos))
        if self.info:
            assert [info["t"] for info in infos] == achieved_goal[:, 1].tolist()
            for info in infos:
                info["t"] = None
        return compute_reward(achieved_goal, desired_goal)


class ShiftingGoalEnv(GoalEnv):
    """A goal environment whose rewards depend on what only the training environment was told."""

    shift = 0.0

    def change_rewards(self, shift: float) -> None:
        self.shift = shift

    def compute_reward(self, achieved_goal, desired_goal, infos):
        return super().compute_reward(achieved_goal, desired_goal, infos) + self.shift


def compute_reward(achieved_goal: np.ndarray, desired_goal: np.ndarray) -> np.ndarray:
    return -(np.abs(achieved_goal - desired_goal).sum(axis=-1) > 0.1).astype(np.float32)


def make_goal_envs(lengths: Sequence[int | Sequence[int]], **kwargs: Any) -> DummyVecEnv:
    """One environment for each length."""
    return DummyVecEnv([lambda i=i, n=n: GoalEnv(n, i, **kwargs) for i, n in enumerate(lengths)])


for name in ("GoalEnv", "ShiftingGoalEnv"):
    if f"{name}-v0" not in gym.registry:
        gym.register(f"{name}-v0", f"tests.goal_envs:{name}", max_episode_steps=50, kwargs={"length": 50})
