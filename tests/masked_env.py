"""An environment in which most actions are invalid, and that remembers or refuses those that are taken nevertheless."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from zoo_plugins.algos.masking import count_choices


class MaskedEnv(gym.Env):
    """
    The first observation of an episode tells which choice pays in each sub-action; the others are zeros.

    Reward: the share of sub-actions that pay; -10 for an invalid one.

    :param action_space: Discrete, MultiDiscrete or MultiBinary
    :param valid: Probability that a choice that does not pay is valid
    :param length: Length of an episode, in timesteps
    :param strict: Raise an error when an invalid action is taken
    :param mask_shape: Shape of the masks
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (gymnasium's)

    def __init__(self, action_space=None, valid=0.3, length=5, strict=True, mask_shape=(-1,), render_mode=None):
        self.action_space = spaces.Discrete(6) if action_space is None else action_space
        self.valid, self.length, self.strict, self.mask_shape = valid, length, strict, mask_shape
        self.render_mode = render_mode
        self.choices = count_choices(self.action_space)
        self.observation_space = spaces.Box(0, 1, (sum(self.choices),), np.float32)
        self.offsets = np.cumsum([0, *self.choices[:-1]])
        self.n_invalid = 0
        self.n_masks = 0

    def _draw_masks(self) -> None:
        self.masks = self.np_random.random(sum(self.choices)) < self.valid
        self.masks[self.paying] = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.paying = self.offsets + self.np_random.integers(self.choices)
        self._draw_masks()
        obs = np.zeros(sum(self.choices), np.float32)
        obs[self.paying] = 1
        return obs, {}

    def step(self, action):
        taken = self.offsets + np.ravel(action)
        reward = float(np.mean(taken == self.paying))
        if not self.masks[taken].all():
            assert not self.strict, f"invalid action {action}"
            self.n_invalid += 1
            reward = -10.0
        self.t += 1
        self._draw_masks()
        return np.zeros(sum(self.choices), np.float32), reward, self.t >= self.length, False, {}

    def action_masks(self) -> np.ndarray:
        self.n_masks += 1
        return self.masks.reshape(self.mask_shape)

    def render(self) -> np.ndarray:
        return np.zeros((32, 32, 3), np.uint8)


gym.register("Masked-v0", entry_point=MaskedEnv, disable_env_checker=True)
