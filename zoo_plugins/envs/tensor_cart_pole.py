"""CartPole as tensors."""

import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.envs.single_env import SingleEnv
from zoo_plugins.envs.tensor_env import TensorEnv, reset_bounds

GRAVITY = 9.8
TOTAL_MASS = 1.1
POLE_MASS = 0.1
HALF_LENGTH = 0.5
FORCE = 10.0
TIME_STEP = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360
POLE_SHARE = POLE_MASS * HALF_LENGTH / TOTAL_MASS


class TensorCartPole(TensorEnv):
    """
    Gymnasium's ``CartPole-v1``.

    The state is position, velocity, angle and angular velocity.

    :param num_envs: Number of copies
    :param max_episode_steps: Steps after which an episode is truncated, ``None``: never
    :param device: Where it all happens, e.g. "cpu" or "cuda"
    :param dtype: Type of the state, ``torch.float32`` or ``torch.float64``, or its name
    :param mask_velocity: Whether velocities are 0 in observations
    :param render_mode: "rgb_array" to make images, ``None`` for none
    """

    twin = "CartPole-v1"
    velocities = (1, 3)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 500,
        device: th.device | str = "cpu",
        dtype: th.dtype | str = th.float32,
        mask_velocity: bool = False,
        render_mode: str | None = None,
    ):
        high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)
        self.single_observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.single_action_space = spaces.Discrete(2)
        super().__init__(num_envs, 4, max_episode_steps, device, dtype, mask_velocity, render_mode)
        # Views and places for results, made once: making a view costs as much as an addition of few numbers
        self._positions, self._speeds = self.state[0::2], self.state[1::2]
        self._angle, self._angular_speed = self.state[2], self.state[3]
        self._accelerations = self._zeros(2, num_envs)
        self._acceleration, self._angular_acceleration = self._accelerations
        self._forces = self.state.new_tensor([-FORCE / TOTAL_MASS, FORCE / TOTAL_MASS])
        self._inertia = self.state.new_tensor(HALF_LENGTH * 4 / 3)
        self._limits = self.state.new_tensor([[MAX_POSITION], [MAX_ANGLE]])

    def _draw(self, states: th.Tensor, options: dict[str, Any]) -> None:
        states.uniform_(*reset_bounds(options, -0.05, 0.05), generator=self.generator)

    def move(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Change ``state`` by one step (see base class).

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: rewards, and whether a terminal state was reached. Shape of both: ``(num_envs,)``
        """
        cos, sin = self._angle.cos(), self._angle.sin()
        push = self._forces.index_select(0, actions)
        push.addcmul_(self._angular_speed.square(), sin, value=POLE_SHARE)
        inertia = th.addcmul(self._inertia, cos, cos, value=-POLE_SHARE)
        torque = sin.mul_(GRAVITY).addcmul_(cos, push, value=-1)
        th.div(torque, inertia, out=self._angular_acceleration)
        th.addcmul(push, self._angular_acceleration, cos, value=-POLE_SHARE, out=self._acceleration)
        self._positions.add_(self._speeds, alpha=TIME_STEP)
        self._speeds.add_(self._accelerations, alpha=TIME_STEP)
        terminated = (self._positions.abs() > self._limits).any(0)
        return th.ones(self.num_envs, device=self.device), terminated

    def _observe(self) -> th.Tensor:
        return self.state.t().to(th.float32, copy=True, memory_format=th.contiguous_format)


class CartPole(SingleEnv):
    """One copy of :class:`TensorCartPole`, for ``gymnasium.make``."""

    batch_class = TensorCartPole
