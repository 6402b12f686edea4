"""Rollout buffer whose steps are tensors that stay on one device."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from zoo_plugins.vec_envs.tensor_step import TensorObs

Array = TypeVar("Array", th.Tensor, np.ndarray)


@dataclass
class Rollout:
    """
    The steps of a rollout. Shape of each tensor: ``(n_steps, n_envs)``, and what is said below.

    :param observations: Observations, of the space's type. Shape: ``(*obs_shape,)``, by key for Dict spaces
    :param actions: Actions, of the space's type, but float32 for MultiBinary ones. Shape: ``(action_dim,)``
    :param rewards: Rewards, float32
    :param episode_starts: Whether an episode starts with the step, float32
    :param values: Predicted values, float32
    :param log_probs: Log likelihood of the actions, float32
    :param advantages: Advantages, float32
    :param returns: Estimated returns, float32
    :param valid: Whether it is a step to learn from, bool
    """

    observations: TensorObs
    actions: th.Tensor
    rewards: th.Tensor
    episode_starts: th.Tensor
    values: th.Tensor
    log_probs: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    valid: th.Tensor


class TensorRolloutBuffer(RolloutBuffer):
    """
    Rollout buffer for any observation space, Dict included, that is allocated once, on the device, and never leaves it.

    Given the same permutation, it yields the minibatches of SB3's buffers, in the same order. What SB3's are attributes, and
    NumPy arrays, are tensors in :attr:`rollout` here. Only ``values`` and ``returns``, which SB3's ``PPO.train`` reads once,
    are NumPy arrays that are made when they are read.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    """

    rollout: Rollout

    def reset(self) -> None:
        """Forget the rollout, but keep its memory."""
        self.pos = 0
        self.full = False
        # Positions of valid steps in SB3's order, None for all
        self.valid_steps: th.Tensor | None = None
        self.all_valid = True
        if not hasattr(self, "rollout"):
            self.rollout = self._allocate()

    def _allocate(self) -> Rollout:
        def zeros(shape: tuple[int, ...] = (), dtype: Any = np.float32) -> th.Tensor:
            torch_dtype = th.from_numpy(np.empty(0, dtype)).dtype
            return th.zeros((self.buffer_size, self.n_envs, *shape), dtype=torch_dtype, device=self.device)

        observations: TensorObs
        if isinstance(self.observation_space, spaces.Dict):
            shapes: Any = self.obs_shape
            observations = {key: zeros(shapes[key], space.dtype) for key, space in self.observation_space.spaces.items()}
        else:
            observations = zeros(self.obs_shape, self.observation_space.dtype)
        # There is no Bernoulli log probability of an integer
        is_binary = isinstance(self.action_space, spaces.MultiBinary)
        actions = zeros((self.action_dim,), np.float32 if is_binary else self.action_space.dtype)
        rewards, episode_starts, values, log_probs, advantages, returns = (zeros() for _ in range(6))
        valid = zeros(dtype=np.bool_)
        return Rollout(observations, actions, rewards, episode_starts, values, log_probs, advantages, returns, valid)

    def add(  # type: ignore[override]  # of tensors
        self,
        obs: TensorObs,
        action: th.Tensor,
        reward: th.Tensor,
        episode_start: th.Tensor,
        value: th.Tensor | None,
        log_prob: th.Tensor,
        valid: th.Tensor | None = None,
    ) -> None:
        """
        Add a step of all environments.

        Numbers per environment may be of any type, and of shape ``(n_envs,)`` or ``(n_envs, 1)``.

        :param obs: Observations. Shape: ``(n_envs, *obs_shape)``
        :param action: Actions. Shape: ``(n_envs, *action_shape)``
        :param reward: Rewards
        :param episode_start: Whether an episode starts with this step
        :param value: Predicted values, ``None`` if whoever adds steps writes all of them into :attr:`rollout` later
        :param log_prob: Log likelihood of the actions
        :param valid: Whether this is a step to learn from, ``None`` for everywhere. One that is not must be an episode of its
            own: an episode starts with it, and another with the next step
        :raises ValueError: if the shape of something does not fit
        """
        rollout, step = self.rollout, self.pos
        if isinstance(rollout.observations, dict):
            assert isinstance(obs, dict)
            for key, stored in rollout.observations.items():
                stored[step].copy_(obs[key].reshape(stored.shape[1:]))
        else:
            assert not isinstance(obs, dict)
            rollout.observations[step].copy_(obs.reshape(rollout.observations.shape[1:]))
        rollout.actions[step].copy_(action.reshape(self.n_envs, self.action_dim))
        rollout.rewards[step].copy_(self._per_env(reward, "rewards"))
        rollout.episode_starts[step].copy_(self._per_env(episode_start, "episode starts"))
        if value is not None:
            rollout.values[step].copy_(self._per_env(value, "values"))
        rollout.log_probs[step].copy_(self._per_env(log_prob, "log probabilities"))
        if valid is not None:
            if self.all_valid:
                rollout.valid.fill_(True)
                self.all_valid = False
            rollout.valid[step].copy_(self._per_env(valid, "valid"))
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: th.Tensor) -> None:  # type: ignore[override]
        """
        Compute advantages (GAE) and returns of all steps, as SB3's buffers do.

        :param last_values: Values of the observations after the last step. Shape: ``(n_envs,)`` or ``(n_envs, 1)``
        :param dones: Whether the last step ended an episode. Shape: ``(n_envs,)`` or ``(n_envs, 1)``
        """
        rollout = self.rollout
        ends = th.cat([rollout.episode_starts[1:], self._per_env(dones, "dones").float()[None]])
        next_values = th.cat([rollout.values[1:], self._per_env(last_values, "last values")[None]])
        goes_on = 1.0 - ends
        deltas = rollout.rewards + self.gamma * next_values * goes_on - rollout.values
        factors = self.gamma * self.gae_lambda * goes_on
        advantages = th.zeros_like(deltas[0])
        for step in reversed(range(self.buffer_size)):
            advantages = th.addcmul(deltas[step], factors[step], advantages, out=rollout.advantages[step])
        th.add(rollout.advantages, rollout.values, out=rollout.returns)

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """
        Shuffle the steps and cut them into minibatches.

        :param batch_size: Number of steps, ``None`` for all
        :return: minibatches
        :raises ValueError: if no step is valid
        """
        assert self.full, "the rollout is not complete"
        if not self.all_valid and self.valid_steps is None:
            # The only wait for the device, once per rollout: how many there are
            self.valid_steps = self.rollout.valid.t().flatten().nonzero().squeeze(1)
        n_valid = self.buffer_size * self.n_envs if self.valid_steps is None else len(self.valid_steps)
        if n_valid == 0:
            raise ValueError("no step of the rollout is valid: n_steps must be larger, as environments take steps to reset")
        order = self.permutation(n_valid)
        if self.valid_steps is not None:
            order = self.valid_steps[order]
        # In SB3's order, all steps of an environment come before those of the next one; in memory, they do not
        positions = order % self.buffer_size * self.n_envs + order // self.buffer_size
        for part in positions.split(batch_size or n_valid):
            yield self._get_samples(part)

    def permutation(self, n: int) -> th.Tensor:
        """
        Draw the order of the steps, from PyTorch's global generator of the device.

        :param n: Number of steps
        :return: a permutation of ``range(n)``
        """
        return th.randperm(n, device=self.device)

    def _get_samples(self, batch_inds: th.Tensor, env: Any = None) -> RolloutBufferSamples:  # type: ignore[override]
        def gather(stored: th.Tensor) -> th.Tensor:
            return stored.flatten(0, 1).index_select(0, batch_inds)

        rollout = self.rollout
        numbers = (rollout.values, rollout.log_probs, rollout.advantages, rollout.returns)
        others = [gather(rollout.actions), *map(gather, numbers)]
        if isinstance(rollout.observations, dict):
            observations = {key: gather(stored) for key, stored in rollout.observations.items()}
            return DictRolloutBufferSamples(observations, *others)  # type: ignore[return-value]
        return RolloutBufferSamples(gather(rollout.observations), *others)

    @property
    def values(self) -> np.ndarray:  # type: ignore[override]
        """
        :return: a copy of the predicted values. Shape: ``(n_steps, n_envs)``
        """
        return self.rollout.values.cpu().numpy()

    @property
    def returns(self) -> np.ndarray:  # type: ignore[override]
        """
        :return: a copy of the estimated returns. Shape: ``(n_steps, n_envs)``
        """
        return self.rollout.returns.cpu().numpy()

    def _per_env(self, numbers: th.Tensor, name: str) -> th.Tensor:
        if numbers.shape in ((self.n_envs,), (self.n_envs, 1)):
            return numbers.reshape(self.n_envs)
        raise ValueError(f"{name} must have shape ({self.n_envs},) or ({self.n_envs}, 1), not {tuple(numbers.shape)}")
