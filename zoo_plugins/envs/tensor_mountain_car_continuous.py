"""MountainCarContinuous as tensors."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.envs.single_env import SingleEnv
from zoo_plugins.envs.tensor_env import TensorEnv, reset_bounds

MIN_POSITION, MAX_POSITION, GOAL_POSITION = -1.2, 0.6, 0.45
MAX_SPEED = 0.07
POWER = 0.0015
SLOPE = 0.0025


class TensorMountainCarContinuous(TensorEnv):
    """
    Gymnasium's ``MountainCarContinuous-v0``.

    The state is position and velocity.

    :param num_envs: Number of copies
    :param max_episode_steps: Steps after which an episode is truncated, ``None``: never
    :param device: Where it all happens, e.g. "cpu" or "cuda"
    :param dtype: Type of the state, ``torch.float32`` or ``torch.float64``, or its name
    :param mask_velocity: Whether velocities are 0 in observations
    :param render_mode: "rgb_array" to make images, ``None`` for none
    :param goal_velocity: Velocity with which the goal has to be reached, at least
    """

    twin = "MountainCarContinuous-v0"
    velocities = (1,)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 999,
        device: th.device | str = "cpu",
        dtype: th.dtype | str = th.float32,
        mask_velocity: bool = False,
        render_mode: str | None = None,
        goal_velocity: float = 0.0,
    ):
        high = np.array([MAX_POSITION, MAX_SPEED], np.float32)
        self.single_observation_space = spaces.Box(np.array([MIN_POSITION, -MAX_SPEED], np.float32), high, dtype=np.float32)
        self.single_action_space = spaces.Box(-1, 1, (1,), np.float32)
        super().__init__(num_envs, 2, max_episode_steps, device, dtype, mask_velocity, render_mode)
        self.goal_velocity = goal_velocity
        self._position, self._speed = self.state

    def _draw(self, states: th.Tensor, options: dict[str, Any]) -> None:
        position, speed = states
        position.uniform_(*reset_bounds(options, -0.6, -0.4), generator=self.generator)
        speed.zero_()

    def move(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Change ``state`` by one step (see base class).

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: rewards, and whether a terminal state was reached. Shape of both: ``(num_envs,)``
        """
        action = actions.view(-1).to(self.dtype)
        self._speed.add_(action.clamp(-1, 1), alpha=POWER).add_((self._position * 3).cos_(), alpha=-SLOPE)
        self._speed.clamp_(-MAX_SPEED, MAX_SPEED)
        self._position.add_(self._speed).clamp_(MIN_POSITION, MAX_POSITION)
        # The wall on the left stops the car
        self._speed.masked_fill_((self._position <= MIN_POSITION) & (self._speed < 0), 0)
        terminated = (self._position >= GOAL_POSITION) & (self._speed >= self.goal_velocity)
        # The action, and not the clipped one, is what costs
        rewards = action.square().mul_(-0.1).add_(terminated, alpha=100)
        return rewards.float(), terminated

    def _observe(self) -> th.Tensor:
        return self.state.t().to(th.float32, copy=True, memory_format=th.contiguous_format)


class MountainCarContinuous(SingleEnv):
    """One copy of :class:`TensorMountainCarContinuous`, for ``gymnasium.make``."""

    batch_class = TensorMountainCarContinuous
