"""Environments whose copies are stepped together, as tensors on a device."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from zoo_plugins.envs.frames import Frames
from zoo_plugins.vec_envs.tensor_step import TensorStep

# As good as none, and still an int32
NO_LIMIT = 2**31 - 1


class TensorEnv(VectorEnv[th.Tensor, th.Tensor, th.Tensor]):
    """
    Copies of one environment, and the arithmetic of episodes around their physics.

    It is a ``gymnasium.vector.VectorEnv`` whose arrays are tensors on a device, and which resets in the same step. Each object
    has its own random generator. No method waits for the device, and all shapes are constant: copies that need no reset are
    given new states too, which are thrown away. What is kept from step to step stays in one place in memory, as CUDA graphs
    need it.

    A subclass says what its spaces are, and writes ``move``, ``_draw`` and ``_observe``.

    :param num_envs: Number of copies
    :param state_size: Numbers that are the state of one copy
    :param max_episode_steps: Steps after which an episode is truncated, ``None``: never
    :param device: Where it all happens, e.g. "cpu" or "cuda"
    :param dtype: Type of the state, ``torch.float32`` or ``torch.float64``, or its name. Observations and rewards are float32
    :param mask_velocity: Whether velocities are 0 in observations, as in the zoo's NoVel environments
    :param render_mode: "rgb_array" to make images, ``None`` for none
    """

    # Of one copy; velocities are elements of the observation
    single_observation_space: gym.spaces.Box
    velocities: ClassVar[tuple[int, ...]]
    # gymnasium's environment, which draws
    twin: ClassVar[str]
    # What makes it a BatchSim (zoo_plugins.vec_envs.batch_sim)
    final_obs = "exact"
    autoreset_mode = AutoresetMode.SAME_STEP
    infos: ClassVar[dict[str, Any]] = {}
    reset_info: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        num_envs: int,
        state_size: int,
        max_episode_steps: int | None,
        device: th.device | str,
        dtype: th.dtype | str,
        mask_velocity: bool,
        render_mode: str | None,
    ):
        if num_envs < 1:
            raise ValueError(f"num_envs: {num_envs!r} is no positive number")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps: {max_episode_steps!r} is neither a positive number nor None")
        self.num_envs = num_envs
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.max_episode_steps = max_episode_steps
        self.device = th.empty(0, device=device).device  # "cuda" is some "cuda:0", which tensors are compared with
        self.dtype = _float_type(dtype)
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": Frames.fps(self.twin),
            "autoreset_mode": self.autoreset_mode,
        }
        self.render_mode = render_mode
        self._frames = None if render_mode is None else Frames(self.twin, render_mode)

        self.generator = th.Generator(self.device)
        self.generator.seed()
        # A row for each number, so that physics work on contiguous memory. Shape: (state_size, num_envs)
        self.state = self._zeros(state_size, num_envs)
        self._fresh = th.zeros_like(self.state)
        self._returns = th.zeros(num_envs, device=self.device)
        self._lengths = th.zeros(num_envs, dtype=th.int32, device=self.device)
        self._limit = NO_LIMIT if max_episode_steps is None else max_episode_steps
        self._zero, self._zero_steps = self._returns.new_zeros(()), self._lengths.new_zeros(())
        self._mask = th.ones(self.single_observation_space.shape, device=self.device) if mask_velocity else None
        if self._mask is not None:
            self._mask[list(self.velocities)] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[th.Tensor, dict[str, Any]]:
        """
        Reset all copies.

        :param seed: Seed of the random generator, ``None`` to go on with it
        :param options: What gymnasium's environment understands; for this reset only
        :return: first observations, shape ``(num_envs, *obs_shape)``, and no info
        """
        super().reset(seed=seed)
        if seed is not None:
            self.generator.manual_seed(seed)
        self._draw(self.state, options or {})
        self._returns.zero_()
        self._lengths.zero_()
        return self.observe(), {}

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all copies, and reset those whose episode ends.

        :param actions: Their actions. Shape: ``(num_envs, *action_shape)``
        :return: what happened
        """
        rewards, terminated = self.move(actions)
        final_obs = self.observe()
        lengths = self._lengths + 1
        returns = self._returns + rewards
        truncated = (lengths >= self._limit).logical_and_(~terminated)
        done = terminated | truncated
        self._draw(self._fresh, {})
        th.where(done, self._fresh, self.state, out=self.state)
        th.where(done, self._zero, returns, out=self._returns)
        th.where(done, self._zero_steps, lengths, out=self._lengths)
        return TensorStep(self.observe(), rewards, terminated, truncated, final_obs, returns, lengths)

    def step(self, actions: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        Step all copies, as gymnasium does.

        :param actions: Their actions, a tensor or an array. Shape: ``(num_envs, *action_shape)``
        :return: observations, rewards, terminated, truncated, and ``final_obs`` where one of the latter is true
        """
        step = self.step_tensors(th.as_tensor(actions, device=self.device))
        info = {"final_obs": step.final_obs, "_final_obs": step.terminated | step.truncated}
        assert isinstance(step.obs, th.Tensor)
        return step.obs, step.rewards, step.terminated, step.truncated, info

    def move(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Change ``state`` by one step: nothing ends, and nothing is reset.

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: rewards, float32, and whether a terminal state was reached, bool; both in memory of their own
        """
        raise NotImplementedError

    def observe(self) -> th.Tensor:
        """
        Observe all copies.

        :return: observations, in memory of their own. Shape: ``(num_envs, *obs_shape)``
        """
        obs = self._observe()
        return obs if self._mask is None else obs.mul_(self._mask)

    def set_state(self, state: Any) -> None:
        """
        Put all copies into given states.

        :param state: The states, in the order of gymnasium's environment. Shape: ``(num_envs, state_size)``
        """
        self.state.copy_(th.as_tensor(state).t())

    def render(self, n_images: int | None = None) -> tuple[np.ndarray, ...] | None:
        """
        Make images, by gymnasium's environment.

        :param n_images: Of how many copies, the first ones; ``None``: of all
        :return: an image of each, ``None`` without a render mode. Shape: ``(height, width, 3)``
        """
        if self._frames is None:
            return None
        return tuple(self._frames.draw(*row) for row in self._drawn_states(n_images))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the window in which images are made."""
        if self._frames is not None:
            self._frames.close()

    def _draw(self, states: th.Tensor, options: dict[str, Any]) -> None:
        """
        Write random first states.

        :param states: Where to. Shape: ``(state_size, num_envs)``
        :param options: Options of the reset
        """
        raise NotImplementedError

    def _observe(self) -> th.Tensor:
        """
        Observe ``state``.

        :return: observations, float32, in memory of their own
        """
        raise NotImplementedError

    def _drawn_states(self, n_images: int | None) -> list[tuple[np.ndarray, float | None]]:
        return [(state, None) for state in self.state[:, :n_images].t().double().cpu().numpy()]

    def _zeros(self, *shape: int) -> th.Tensor:
        return th.zeros(shape, dtype=self.dtype, device=self.device)


def reset_bounds(options: dict[str, Any], low: float, high: float) -> tuple[float, float]:
    """
    Read the bounds of first states.

    :param options: Options of a reset: numbers ``low`` and ``high``, or nothing
    :param low: Lower bound without options
    :param high: Upper bound without options
    :return: lower and upper bound
    """
    low, high = float(options.get("low", low)), float(options.get("high", high))
    if low > high:
        raise ValueError(f"options: low {low} is above high {high}")
    return low, high


def _float_type(dtype: th.dtype | str) -> th.dtype:
    for valid in (th.float32, th.float64):
        if dtype in (valid, str(valid), str(valid).removeprefix("torch.")):
            return valid
    raise ValueError(f"dtype: {dtype!r} is neither float32 nor float64")
