"""Pendulum as tensors."""

import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.envs.single_env import SingleEnv
from zoo_plugins.envs.tensor_env import TensorEnv

MAX_SPEED = 8.0
MAX_TORQUE = 2.0
TIME_STEP = 0.05


class TensorPendulum(TensorEnv):
    """
    Gymnasium's ``Pendulum-v1``.

    The state is angle and angular velocity.

    :param num_envs: Number of copies
    :param max_episode_steps: Steps after which an episode is truncated, ``None``: never
    :param device: Where it all happens, e.g. "cpu" or "cuda"
    :param dtype: Type of the state, ``torch.float32`` or ``torch.float64``, or its name
    :param mask_velocity: Whether velocities are 0 in observations
    :param render_mode: "rgb_array" to make images, ``None`` for none
    :param g: Acceleration of gravity, in metres per square second
    """

    twin = "Pendulum-v1"
    velocities = (2,)

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int | None = 200,
        device: th.device | str = "cpu",
        dtype: th.dtype | str = th.float32,
        mask_velocity: bool = False,
        render_mode: str | None = None,
        g: float = 10.0,
    ):
        high = np.array([1, 1, MAX_SPEED], np.float32)
        self.single_observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.single_action_space = spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
        super().__init__(num_envs, 2, max_episode_steps, device, dtype, mask_velocity, render_mode)
        self.g = g
        self._angle, self._speed = self.state
        self._torque = self._zeros(num_envs)

    def _draw(self, states: th.Tensor, options: dict[str, Any]) -> None:
        states.uniform_(-1, 1, generator=self.generator)
        states[0].mul_(float(options.get("x_init", math.pi)))
        states[1].mul_(float(options.get("y_init", 1.0)))

    def move(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Change ``state`` by one step (see base class).

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: rewards, and whether a terminal state was reached. Shape of both: ``(num_envs,)``
        """
        th.clamp(actions.view(-1).to(self.dtype), -MAX_TORQUE, MAX_TORQUE, out=self._torque)
        deviation = self._angle.add(math.pi).remainder_(2 * math.pi).sub_(math.pi)
        rewards = deviation.square_().neg_()
        rewards.addcmul_(self._speed, self._speed, value=-0.1).addcmul_(self._torque, self._torque, value=-0.001)
        self._speed.add_(self._angle.sin(), alpha=1.5 * self.g * TIME_STEP).add_(self._torque, alpha=3 * TIME_STEP)
        self._speed.clamp_(-MAX_SPEED, MAX_SPEED)
        self._angle.add_(self._speed, alpha=TIME_STEP)
        return rewards.float(), th.zeros(self.num_envs, dtype=th.bool, device=self.device)

    def _observe(self) -> th.Tensor:
        return th.stack((self._angle.cos(), self._angle.sin(), self._speed), dim=1).float()

    def _drawn_states(self, n_images: int | None) -> list[tuple[np.ndarray, float | None]]:
        torques = self._torque[:n_images].tolist()
        return [(state, torque) for (state, _), torque in zip(super()._drawn_states(n_images), torques, strict=True)]


class Pendulum(SingleEnv):
    """One copy of :class:`TensorPendulum`, for ``gymnasium.make``."""

    batch_class = TensorPendulum
