"""A minibatch of sequences, and how they are laid out for an LSTM."""

from typing import NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.type_aliases import TensorDict

# Padded sequences have a multiple of this number of timesteps: oneDNN keeps, and makes anew, code for each shape it meets
ROWS = 8


class SequenceBatch(NamedTuple):
    """
    A minibatch of ``n_steps`` timesteps that holds ``n_seq`` sequences.

    A sequence ends where an episode, an environment or the minibatch ends, so no episode starts in the middle
    of one and an LSTM reads all of them in a single call. Everything that is not recurrent (features, heads, losses)
    works on the timesteps themselves, one sequence after the other; only the LSTM sees padding::

        timesteps            a0 a1 a2 b0 c0 c1          (n_steps, *shape)

        pad()                a0 b0 c0                   (n_rows, n_seq, *shape)
                             a1  0 c1
                             a2  0  0

        unpad()              a0 a1 a2 b0 c0 c1          (n_steps, *shape)

    A whole sequence that belongs to two minibatches (see ``sampling`` of :class:`SequenceRolloutBuffer`) is run from its
    start in both, so that gradients flow through all of it. Its timesteps of the earlier minibatch are context in the later
    one: the LSTM reads them, but they do not count. Then there are ``n_inputs`` timesteps, of which ``n_steps`` count.

    :param observations: Observations. Shape: ``(n_inputs, *obs_shape)``, a dict of them for Dict spaces
    :param actions: Actions. Shape: (n_steps, action_dim)
    :param old_values: Values predicted while acting. Shape: (n_steps,)
    :param old_log_prob: Log probabilities of the actions while acting. Shape: (n_steps,)
    :param advantages: GAE advantages. Shape: (n_steps,)
    :param returns: TD(lambda) returns. Shape: (n_steps,)
    :param lstm_states: Hidden and cell states with which the LSTM enters each sequence, for the actor and the critic:
        the recorded ones, or zeros where the sequence starts an episode. Shape of each: (n_layers, n_seq, hidden_size)
    :param positions: Row of each input in the flattened padded array. Shape: (n_inputs,)
    :param n_seq: Number of sequences
    :param max_length: Length of the longest one, in timesteps
    :param counted: Which inputs count, None for all. Shape: (n_steps,)
    :param action_masks: Which actions were valid, None for all. Shape: (n_steps, n_choices)
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
    counted: th.Tensor | None = None
    action_masks: th.Tensor | None = None

    @property
    def n_rows(self) -> int:
        """Length of padded sequences: ``max_length`` and up to ``ROWS - 1`` more; a single sequence is not padded."""
        return self.max_length if self.n_seq == 1 else -(-self.max_length // ROWS) * ROWS

    def pad(self, steps: th.Tensor) -> th.Tensor:
        """
        Lay the sequences side by side, with zeros after the shorter ones.

        :param steps: One row per input. Shape: ``(n_inputs, *shape)``
        :return: Padded sequences. Shape: ``(n_rows, n_seq, *shape)``
        """
        if self.n_seq == 1:
            return steps.unsqueeze(1)
        padded = steps.new_zeros((self.n_rows * self.n_seq, *steps.shape[1:]))
        return padded.index_copy(0, self.positions, steps).unflatten(0, (self.n_rows, self.n_seq))

    def unpad(self, sequences: th.Tensor) -> th.Tensor:
        """
        Inverse of :meth:`pad`, but for context, which it leaves out.

        :param sequences: Padded sequences. Shape: ``(n_rows, n_seq, *shape)``
        :return: One row per timestep that counts. Shape: ``(n_steps, *shape)``
        """
        if self.n_seq == 1:
            return self.drop_context(sequences.squeeze(1))
        return sequences.flatten(0, 1).index_select(0, self.drop_context(self.positions))

    def drop_context(self, steps: th.Tensor) -> th.Tensor:
        """
        Leave context out.

        :param steps: One row per input. Shape: ``(n_inputs, *shape)``
        :return: One row per timestep that counts. Shape: ``(n_steps, *shape)``
        """
        return steps if self.counted is None else steps.index_select(0, self.counted)


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
