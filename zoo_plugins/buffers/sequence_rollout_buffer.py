"""Rollout buffers that cut minibatches into sequences."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import TensorDict


class SequenceBatch(NamedTuple):
    """
    A minibatch of ``n_steps`` consecutive timesteps that holds ``n_seq`` sequences.

    A sequence ends where an episode, an environment or the minibatch ends, so no episode starts in the middle
    of one and an LSTM reads all of them in a single call. Everything that is not recurrent (features, heads, losses)
    works on the timesteps themselves, in the order of collection; only the LSTM sees padding::

        timesteps            a0 a1 a2 b0 c0 c1          (n_steps, *shape)

        pad()                a0 b0 c0                   (max_length, n_seq, *shape)
                             a1  0 c1
                             a2  0  0

        unpad()              a0 a1 a2 b0 c0 c1          (n_steps, *shape)

    :param observations: Observations. Shape: (n_steps, *obs_shape), a dict of them for Dict spaces
    :param actions: Actions. Shape: (n_steps, action_dim)
    :param old_values: Values predicted while acting. Shape: (n_steps,)
    :param old_log_prob: Log probabilities of the actions while acting. Shape: (n_steps,)
    :param advantages: GAE advantages. Shape: (n_steps,)
    :param returns: TD(lambda) returns. Shape: (n_steps,)
    :param lstm_states: Hidden and cell states with which the LSTM enters each sequence, for the actor and the critic:
        the recorded ones, or zeros where the sequence starts an episode. Shape of each: (n_layers, n_seq, hidden_size)
    :param positions: Row of each timestep in the flattened padded array. Shape: (n_steps,)
    :param n_seq: Number of sequences
    :param max_length: Length of the longest one, in timesteps
    """

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: RNNStates
    positions: th.Tensor
    n_seq: int
    max_length: int

    def pad(self, steps: th.Tensor) -> th.Tensor:
        """
        Lay the sequences side by side, with zeros after the shorter ones.

        :param steps: One row per timestep. Shape: (n_steps, *shape)
        :return: Padded sequences. Shape: (max_length, n_seq, *shape)
        """
        if self.n_seq == 1:
            return steps.unsqueeze(1)
        padded = steps.new_zeros((self.max_length * self.n_seq, *steps.shape[1:]))
        return padded.index_copy(0, self.positions, steps).unflatten(0, (self.max_length, self.n_seq))

    def unpad(self, sequences: th.Tensor) -> th.Tensor:
        """
        Inverse of :meth:`pad`.

        :param sequences: Padded sequences. Shape: (max_length, n_seq, *shape)
        :return: One row per timestep. Shape: (n_steps, *shape)
        """
        if self.n_seq == 1:
            return sequences.squeeze(1)
        return sequences.flatten(0, 1).index_select(0, self.positions)


def locate_sequences(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """
    Find where each timestep goes when the sequences of a minibatch are laid side by side.

    :param starts: Whether a sequence starts at the timestep; the first must. Shape: (n_steps,)
    :return: timesteps that start a sequence, shape (n_seq,); rows of the timesteps in the flattened
        ``(max_length, n_seq)`` array, shape (n_steps,); length of the longest sequence
    """
    first = np.flatnonzero(starts)
    sequence = np.cumsum(starts) - 1
    step = np.arange(len(starts)) - first[sequence]
    return first, step * len(first) + sequence, int(step.max()) + 1


class SequenceRolloutBuffer(RolloutBuffer):
    """
    Rollout buffer for recurrent policies whose minibatches are a :class:`SequenceBatch`.

    Values and log probabilities are not needed while acting. They come in one piece, with :meth:`finish`.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    """

    def reset(self) -> None:
        """Forget the rollout."""
        super().reset()
        self.lstm_states: list[RNNStates] = []

    def add_step(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray,
        episode_starts: np.ndarray,
        lstm_states: RNNStates,
    ) -> None:
        """
        Add a step of all environments.

        :param obs: Observations. Shape: (n_envs, *obs_shape), a dict of them for Dict spaces
        :param actions: Actions. Shape: (n_envs, *action_shape)
        :param rewards: Rewards. Shape: (n_envs,)
        :param episode_starts: Whether an episode starts with this step. Shape: (n_envs,)
        :param lstm_states: Hidden and cell states of actor and critic before the step (and before any reset at an episode
            start); kept, not copied. Shape of each: (n_layers, n_envs, hidden_size)
        """
        if isinstance(self.observations, dict):
            assert isinstance(obs, dict)
            for key, array in self.observations.items():
                array[self.pos] = obs[key].reshape(array.shape[1:])
        else:
            assert not isinstance(obs, dict)
            self.observations[self.pos] = obs.reshape(self.observations.shape[1:])
        self.actions[self.pos] = actions.reshape(self.n_envs, self.action_dim)
        self.rewards[self.pos] = rewards
        self.episode_starts[self.pos] = episode_starts
        self.lstm_states.append(lstm_states)
        self.pos += 1
        self.full = self.pos == self.buffer_size

    def finish(
        self,
        values: th.Tensor,
        log_probs: th.Tensor,
        last_values: th.Tensor,
        dones: np.ndarray,
    ) -> None:
        """
        Complete the rollout: compute returns and advantages, and put it where minibatches are cut from.

        :param values: Predicted values. Shape: (n_steps, n_envs)
        :param log_probs: Log probabilities of the actions. Shape: (n_steps, n_envs)
        :param last_values: Predicted values of the observations after the last step. Shape: (n_envs,)
        :param dones: Whether an episode ended with the last step. Shape: (n_envs,)
        """
        assert self.full, "Rollout buffer must be full before it is finished"
        self.values[:] = values.cpu().numpy()
        self.log_probs[:] = log_probs.cpu().numpy()
        self.compute_returns_and_advantage(last_values, dones)

        def flatten(array: np.ndarray) -> th.Tensor:
            # Keep the order of an environment: (n_steps, n_envs, *shape) -> (n_envs * n_steps, *shape)
            return th.as_tensor(array.swapaxes(0, 1).reshape(-1, *array.shape[2:]), device=self.device)

        observations = self.observations
        self.rollout = {
            "actions": flatten(self.actions),
            "old_values": flatten(self.values),
            "old_log_prob": flatten(self.log_probs),
            "advantages": flatten(self.advantages),
            "returns": flatten(self.returns),
        }
        self.flat_observations = (
            {key: flatten(obs) for key, obs in observations.items()}
            if isinstance(observations, dict)
            else flatten(observations)
        )
        # (n_steps, n_layers, n_envs, hidden_size), four times -> (n_envs * n_steps, 4, n_layers, hidden_size)
        states = [stack(steps) for steps in zip(*((*pi, *vf) for pi, vf in self.lstm_states), strict=True)]
        self.flat_states = th.stack(states, dim=1).permute(3, 0, 1, 2, 4).flatten(0, 1)
        self.lstm_states = []

        episode_starts = self.episode_starts.T > 0
        sequence_starts = episode_starts.copy()
        sequence_starts[:, 0] = True
        # Twice, so that a minibatch that goes on at the beginning is a slice as well
        self.flat_episode_starts = np.tile(episode_starts.ravel(), 2)
        self.flat_sequence_starts = np.tile(sequence_starts.ravel(), 2)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        """
        Compute the lambda-returns and GAE advantages, with the numbers of SB3's ``RolloutBuffer``.

        Everything that does not depend on the next step's advantage is computed for all steps at once.

        :param last_values: Predicted values of the observations after the last step. Shape: (n_envs,)
        :param dones: Whether an episode ended with the last step. Shape: (n_envs,)
        """
        continues = 1.0 - np.concatenate([self.episode_starts[1:], dones[None].astype(np.float32)])
        next_values = np.concatenate([self.values[1:], last_values.cpu().numpy().reshape(1, -1)])
        deltas = self.rewards + self.gamma * next_values * continues - self.values
        weights = self.gamma * self.gae_lambda * continues
        advantage = np.zeros(self.n_envs, dtype=np.float32)
        for step in reversed(range(self.buffer_size)):
            advantage = deltas[step] + weights[step] * advantage
            self.advantages[step] = advantage
        self.returns = self.advantages + self.values

    def get(self, batch_size: int | None = None) -> Iterator[SequenceBatch]:  # type: ignore[override]
        """
        Draw the minibatches of an epoch: consecutive pieces of the rollout, from a random timestep on.

        The draw, and so the minibatches, are those of sb3_contrib's recurrent buffers.

        :param batch_size: Number of timesteps in a minibatch, None for the whole rollout
        :return: minibatches
        """
        assert self.full, "Rollout buffer must be full before sampling from it"
        n_timesteps = self.buffer_size * self.n_envs
        batch_size = batch_size or n_timesteps
        split = np.random.randint(n_timesteps)
        for start in range(0, n_timesteps, batch_size):
            yield self._cut((split + start) % n_timesteps, min(batch_size, n_timesteps - start))

    def _cut(self, start: int, length: int) -> SequenceBatch:
        """
        Cut a minibatch out of the rollout.

        :param start: Its first timestep
        :param length: Number of timesteps; after the last one of the rollout comes the first
        :return: the minibatch
        """
        starts = self.flat_sequence_starts[start : start + length].copy()
        starts[0] = True
        first, positions, max_length = locate_sequences(starts)
        continues_episode = ~self.flat_episode_starts[start + first]
        overhang = start + length - self.buffer_size * self.n_envs

        def select(steps: th.Tensor) -> th.Tensor:
            if overhang > 0:
                return th.cat([steps[start:], steps[:overhang]])
            return steps[start : start + length]

        # (n_seq, 4, n_layers, hidden_size) -> (4, n_layers, n_seq, hidden_size)
        rows = th.as_tensor((start + first) % (self.buffer_size * self.n_envs), device=self.device)
        states = self.flat_states.index_select(0, rows).permute(1, 2, 0, 3)
        mask = th.as_tensor(continues_episode, dtype=states.dtype, device=self.device)
        pi_hidden, pi_cell, vf_hidden, vf_cell = (states * mask[:, None]).contiguous().unbind()

        observations = self.flat_observations
        return SequenceBatch(
            observations=(
                {key: select(obs) for key, obs in observations.items()}
                if isinstance(observations, dict)
                else select(observations)
            ),
            **{key: select(steps) for key, steps in self.rollout.items()},
            lstm_states=RNNStates(pi=(pi_hidden, pi_cell), vf=(vf_hidden, vf_cell)),
            positions=th.as_tensor(positions, device=self.device),
            n_seq=len(first),
            max_length=max_length,
        )


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]  # get(), as above
    """
    :class:`SequenceRolloutBuffer` for Dict observations.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    """


def stack(arrays: Sequence[th.Tensor | np.ndarray], dim: int = 0) -> th.Tensor:
    """
    Stack arrays that may be PyTorch's or NumPy's.

    :param arrays: Arrays of one kind and shape
    :param dim: The new dimension
    :return: a tensor
    """
    if isinstance(arrays[0], np.ndarray):
        return th.from_numpy(np.stack(arrays, axis=dim))
    return th.stack(arrays, dim=dim)  # type: ignore[arg-type]
