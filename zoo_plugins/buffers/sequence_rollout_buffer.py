"""Rollout buffers that cut minibatches into sequences."""

from typing import NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize


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
    :param actions: Actions, as float32. Shape: (n_steps, action_dim)
    :param old_values: Values predicted while acting. Shape: (n_steps,)
    :param old_log_prob: Log probabilities of the actions, recorded while acting. Shape: (n_steps,)
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
        padded = steps.new_zeros((self.max_length * self.n_seq, *steps.shape[1:]))
        return padded.index_copy(0, self.positions, steps).unflatten(0, (self.max_length, self.n_seq))

    def unpad(self, sequences: th.Tensor) -> th.Tensor:
        """
        Inverse of :meth:`pad`.

        :param sequences: Padded sequences. Shape: (max_length, n_seq, *shape)
        :return: One row per timestep. Shape: (n_steps, *shape)
        """
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


def _cut_sequences(
    buffer: RecurrentRolloutBuffer | RecurrentDictRolloutBuffer, batch_inds: np.ndarray, env_change: np.ndarray
) -> SequenceBatch:
    """
    Make a minibatch, cut into sequences exactly where sb3_contrib's recurrent buffers cut.

    :param buffer: A full buffer, whose arrays are already flattened. Shape of each: (n_envs * n_steps, *shape)
    :param batch_inds: Timesteps of the minibatch, consecutive up to wrap-around. Shape: (n_steps,)
    :param env_change: Whether a timestep is the first one of its environment. Shape: (n_envs * n_steps, 1)
    :return: The minibatch
    """
    episode_starts = buffer.episode_starts[batch_inds].ravel() > 0
    starts = episode_starts | (env_change[batch_inds].ravel() > 0)
    starts[0] = True
    first, positions, max_length = locate_sequences(starts)
    continues_episode = ~episode_starts[first, None, None]

    def select(array: np.ndarray) -> th.Tensor:
        return buffer.to_torch(array[batch_inds])

    def initial(states: np.ndarray) -> th.Tensor:
        # (n_seq, n_layers, hidden_size) -> (n_layers, n_seq, hidden_size)
        return buffer.to_torch((states[batch_inds[first]] * continues_episode).swapaxes(0, 1)).contiguous()

    observations = buffer.observations
    return SequenceBatch(
        observations=(
            {key: select(obs) for key, obs in observations.items()} if isinstance(observations, dict) else select(observations)
        ),
        # MultiBinary actions are stored as int8, for which no Bernoulli log-probability exists
        actions=select(buffer.actions).float(),
        old_values=select(buffer.values).flatten(),
        old_log_prob=select(buffer.log_probs).flatten(),
        advantages=select(buffer.advantages).flatten(),
        returns=select(buffer.returns).flatten(),
        lstm_states=RNNStates(
            pi=(initial(buffer.hidden_states_pi), initial(buffer.cell_states_pi)),
            vf=(initial(buffer.hidden_states_vf), initial(buffer.cell_states_vf)),
        ),
        positions=buffer.to_torch(positions),
        n_seq=len(first),
        max_length=max_length,
    )


class SequenceRolloutBuffer(RecurrentRolloutBuffer):
    """
    Rollout buffer for recurrent policies whose minibatches are a :class:`SequenceBatch`.

    Same constructor, storage and minibatches as sb3_contrib's ``RecurrentRolloutBuffer``: with the same NumPy seed,
    the same timesteps are in the same minibatch.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param hidden_state_shape: Shape of the recorded LSTM states: (n_steps, n_layers, n_envs, hidden_size)
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    """

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env_change: np.ndarray, env: VecNormalize | None = None
    ) -> SequenceBatch:
        return _cut_sequences(self, batch_inds, env_change)


class SequenceDictRolloutBuffer(RecurrentDictRolloutBuffer):
    """
    :class:`SequenceRolloutBuffer` for Dict observations.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param hidden_state_shape: Shape of the recorded LSTM states: (n_steps, n_layers, n_envs, hidden_size)
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    """

    def _get_samples(  # type: ignore[override]
        self, batch_inds: np.ndarray, env_change: np.ndarray, env: VecNormalize | None = None
    ) -> SequenceBatch:
        return _cut_sequences(self, batch_inds, env_change)
