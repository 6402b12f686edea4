"""Environments whose observations tell where they come from, and which do what they are ordered. Workers import this file."""

import copy
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "box64": spaces.Box(-1, 1, (2, 3), np.float64),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(3),
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
}
SPACES["dict"] = spaces.Dict(dict(SPACES))
SPACES["vectors"] = spaces.Dict({"box": SPACES["box"], "discrete": SPACES["discrete"]})
SPACES["tuple"] = spaces.Tuple([SPACES["box"], SPACES["discrete"], SPACES["image"]])


class RandomEnv(gym.Env):
    """Random observations and rewards, and infos that are sometimes empty; episodes of 3 to 12 steps that end in any way."""

    def __init__(self, space: str, action_space: str | None = None):
        # Copies, as spaces have generators
        self.observation_space = copy.deepcopy(SPACES[space])
        self.action_space = copy.deepcopy(SPACES[action_space or space])

    def _observation(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        self.length = int(self.np_random.integers(3, 13))
        self.info = {"length": self.length} if self.length % 2 else {}
        return self._observation(), dict(self.info)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        over = self.t == self.length
        info = {"t": self.t, "array": np.full(2, self.t)} if self.t % 3 == 0 else {}
        return self._observation(), self.np_random.random(), over and self.length % 3 > 0, over and self.length % 4 < 2, info


class OrderedEnv(gym.Env):
    """
    Observation: [env_id, number of resets, t], always the same array; reward: t; info: always the same dict.

    The next step, or whatever ``at`` says, does what ``order`` was given. It writes into its action, and keeps it.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, env_id: int = 0, length: int = 5, render_mode: str | None = None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.render_mode = render_mode
        self.length = length
        self.level = 0
        self.target = np.zeros(2)
        self.observation = np.array([env_id, 0, 0], np.float32)
        self.info: dict[str, Any] = {}
        self.actions: list[np.ndarray] = []
        self.orders: dict[str, str] = {}

    def order(self, what: str, at: str = "step") -> None:
        self.orders[at] = what

    def _obey(self, at: str) -> None:
        what = self.orders.pop(at, None)
        if what == "raise":
            raise RuntimeError("simulator exploded at t=2")
        if what == "raise own":
            raise OwnError("a", "b")
        if what == "exit":
            raise SystemExit(3)
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what is not None:
            time.sleep(float(what))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._obey("reset")
        self.observation[1] += 1
        self.observation[2] = 0
        return self.observation, {"seed": seed, "options": options}

    def step(self, action):
        self._obey("step")
        action *= 0.5
        self.actions.append(action)
        self.target += 1
        self.observation[2] += 1
        return self.observation, self.observation[2], False, self.observation[2] >= self.length, self.info

    def render(self):
        self._obey("render")
        return np.full((4, 6, 3), self.observation[0], np.uint8)

    def close(self):
        self._obey("close")

    def pid(self) -> int:
        return os.getpid()


class LargeEnv(gym.Env):
    """Observations of 80 MB, that are the sum of 0, 1, 2, ... and t; episodes of two steps."""

    SIZE = 20_000_000

    def __init__(self):
        self.observation_space = spaces.Box(0, np.inf, (self.SIZE,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.observation = np.arange(self.SIZE, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation, {}

    def step(self, action):
        self.t += 1
        return self.observation + np.float32(self.t), 1.0, False, self.t == 2, {}


class TracedEnv(gym.Env):
    """
    A goal environment whose observations tell where they come from: see :func:`trace`.

    Observation: the last action; achieved goal: environment, process, episode and t, scaled so that float32 holds them and
    networks bear them. Lengths of episodes follow from environment and episode; each third one is terminated.
    """

    # Powers of two, so that nothing is rounded: process ids of Linux are less than 2**22
    UNITS = 2.0 ** np.array([-3, -22, -10, -4])
    observation_space = spaces.Dict(
        observation=spaces.Box(-1, 1, (1,), np.float32),
        achieved_goal=spaces.Box(-1, 1, (4,), np.float32),
        desired_goal=spaces.Box(-1, 1, (4,), np.float32),
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, number: int):
        self.number, self.episode, self.dies = number, -1, False

    def _observation(self, action: np.ndarray) -> dict[str, np.ndarray]:
        place = (self.number, os.getpid(), self.episode, self.t) * self.UNITS
        return {"observation": action, "achieved_goal": place.astype(np.float32), "desired_goal": np.full(4, -1, np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observation(np.zeros(1, np.float32)), {}

    def step(self, action):
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.t += 1
        observation = self._observation(action)
        reward = self.compute_reward(observation["achieved_goal"], observation["desired_goal"], {})
        over = self.t == episode_length(self.number, self.episode)
        return observation, float(reward), over and self.episode % 3 == 0, over and self.episode % 3 > 0, {}

    def compute_reward(self, achieved_goal, desired_goal, infos):
        """How many steps the goal is away."""
        return (desired_goal - achieved_goal)[..., 3] / self.UNITS[3]

    def die(self) -> None:
        """End the process in the middle of the next step."""
        self.dies = True


def episode_length(number, episode):
    """Tell how many steps an episode of a TracedEnv has: 2 to 14."""
    return 2 + (5 * number + 7 * episode) % 13


def trace(achieved_goal):
    """Tell environment, process, episode and t of an achieved goal of a TracedEnv."""
    return np.moveaxis((np.asarray(achieved_goal, np.float64) / TracedEnv.UNITS).astype(int), -1, 0)


class OwnError(ValueError):
    """An exception whose constructor takes something else than what it keeps."""

    def __init__(self, first: str, second: str):
        super().__init__(f"{first} and {second}")


def ordered(env_id: int, **kwargs: Any) -> OrderedEnv:
    return OrderedEnv(env_id, **kwargs)


class FilesEnv(OrderedEnv):
    """It can't be made while there is a file "broken", and tells by a file that it was closed."""

    def __init__(self, folder: Path, env_id: int):
        if (folder / "broken").exists():
            raise PermissionError("no licence left")
        super().__init__(env_id)
        self.path = folder / str(env_id)

    def close(self):
        self.path.touch()
