"""Acrobot as tensors."""

import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.envs.single_env import SingleEnv
from zoo_plugins.envs.tensor_env import TensorEnv, reset_bounds

TIME_STEP = 0.2
MAX_SPEEDS = (4 * math.pi, 9 * math.pi)
GRAVITY = 9.8


class TensorAcrobot(TensorEnv):
    """
    Gymnasium's ``Acrobot-v1``.

    The state is the two angles and their velocities. Both links have length, mass and moment of inertia 1, and their centre
    of mass in the middle.

    :param num_envs: Number of copies
    :param max_episode_steps: Steps after which an episode is truncated, ``None``: never
    :param device: Where it all happens, e.g. "cpu" or "cuda"
    :param dtype: Type of the state, ``torch.float32`` or ``torch.float64``, or its name
    :param mask_velocity: Whether velocities are 0 in observations
    :param render_mode: "rgb_array" to make images, ``None`` for none
    """

    twin = "Acrobot-v1"
    velocities = (4, 5)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 500,
        device: th.device | str = "cpu",
        dtype: th.dtype | str = th.float32,
        mask_velocity: bool = False,
        render_mode: str | None = None,
    ):
        high = np.array([1, 1, 1, 1, *MAX_SPEEDS], np.float32)
        self.single_observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.single_action_space = spaces.Discrete(3)
        super().__init__(num_envs, 4, max_episode_steps, device, dtype, mask_velocity, render_mode)
        self._angles, self._speeds = self.state[:2], self.state[2:]
        self._max_speeds = self.state.new_tensor(MAX_SPEEDS).unsqueeze(1)

    def _draw(self, states: th.Tensor, options: dict[str, Any]) -> None:
        states.uniform_(*reset_bounds(options, -0.1, 0.1), generator=self.generator)

    def move(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Change ``state`` by one step (see base class).

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: rewards, and whether a terminal state was reached. Shape of both: ``(num_envs,)``
        """
        torque = actions.to(self.dtype).sub_(1)
        # Runge-Kutta of order 4
        k1 = _derivative(self.state, torque)
        k2 = _derivative(th.add(self.state, k1, alpha=TIME_STEP / 2), torque)
        k3 = _derivative(th.add(self.state, k2, alpha=TIME_STEP / 2), torque)
        k4 = _derivative(th.add(self.state, k3, alpha=TIME_STEP), torque)
        self.state.add_(k1.add_(k4).add_(k2.add_(k3), alpha=2), alpha=TIME_STEP / 6)
        self._angles.add_(math.pi).remainder_(2 * math.pi).sub_(math.pi)
        self._speeds.clamp_(-self._max_speeds, self._max_speeds)
        terminated = self._angles[0].cos() + self._angles.sum(0).cos_() < -1
        return terminated.float().sub_(1), terminated

    def _observe(self) -> th.Tensor:
        cos, sin = self._angles.cos(), self._angles.sin()
        return th.stack((cos[0], sin[0], cos[1], sin[1], self._speeds[0], self._speeds[1]), dim=1).float()


def _derivative(state: th.Tensor, torque: th.Tensor) -> th.Tensor:
    """
    Differentiate the state with respect to time (Sutton and Barto's equations).

    :param state: Angles and their velocities. Shape: ``(4, num_envs)``
    :param torque: Torque at the joint between the links. Shape: ``(num_envs,)``
    :return: their derivatives. Shape: ``(4, num_envs)``
    """
    angle1, angle2, speed1, speed2 = state
    cos2, half_sin2 = angle2.cos(), angle2.sin().mul_(0.5)
    d1 = cos2 + 3.5
    d2 = cos2.mul_(0.5).add_(1.25)
    # cos(angle - pi/2) is sin(angle)
    phi2 = (angle1 + angle2).sin_().mul_(0.5 * GRAVITY)
    phi1 = th.add(phi2, angle1.sin(), alpha=1.5 * GRAVITY)
    phi1.addcmul_(half_sin2, th.add(speed2, speed1, alpha=2).mul_(speed2), value=-1)
    ratio = d2 / d1
    force = th.addcmul(torque, ratio, phi1).addcmul_(half_sin2, speed1.square(), value=-1).sub_(phi2)
    acceleration2 = force.div_(th.rsub(d2 * ratio, 1.25))
    acceleration1 = phi1.addcmul_(d2, acceleration2).div_(d1).neg_()
    return th.stack((speed1, speed2, acceleration1, acceleration2))


class Acrobot(SingleEnv):
    """One copy of :class:`TensorAcrobot`, for ``gymnasium.make``."""

    batch_class = TensorAcrobot
