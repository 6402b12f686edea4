"""Small environments whose observations tell where they come from."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class LenEnv(gym.Env):
    """Observation: [env_id, episode, t]; reward: t of the observation acted on; episode lengths cycle; actions do nothing."""

    def __init__(
        self, lengths: Sequence[int], env_id: int = 0, end: str = "truncated", action_space: spaces.Space | None = None
    ):
        self.lengths = tuple(lengths)
        self.env_id = env_id
        self.end = end  # "truncated", "terminated" or "both"
        self.episode = -1
        self.t = 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2) if action_space is None else action_space

    def _observation(self) -> np.ndarray:
        return np.array([self.env_id, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(self.t)
        self.t += 1
        over = self.t >= self.lengths[self.episode % len(self.lengths)]
        return self._observation(), reward, over and self.end != "truncated", over and self.end != "terminated", {}


class ImageEnv(gym.Env):
    """Random uint8 images; reward 1 for the action that is the parity of t; episodes of 3 to 12 steps, half truncated."""

    def __init__(self):
        self.observation_space: spaces.Space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(2)

    def _observation(self):
        return self.np_random.integers(0, 256, (36, 36, 1), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.t = 0
        self.length = int(self.np_random.integers(3, 13))
        return self._observation(), {}

    def step(self, action):
        reward = float(action == self.t % 2)
        self.t += 1
        over = self.t >= self.length
        return self._observation(), reward, over and self.length % 2 == 0, over and self.length % 2 == 1, {}


class DictImageEnv(ImageEnv):
    """ImageEnv with Dict observations: the image as "img" and a random vector as "vec"."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict({"img": self.observation_space, "vec": spaces.Box(-10, 10, (3,), np.float32)})

    def _observation(self):
        return {"img": super()._observation(), "vec": self.np_random.normal(size=3).clip(-10, 10).astype(np.float32)}
