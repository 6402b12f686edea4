"""Rollout buffers whose minibatches are sequences."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from zoo_plugins.buffers.sequence_batch import SequenceBatch, locate_sequences

SAMPLING = ("contiguous", "sequences")
# Takes timesteps from an array of all
Select: TypeAlias = Callable[[th.Tensor], th.Tensor]


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
    :param sampling: What a minibatch is made of. "contiguous": consecutive timesteps of the rollout, the minibatches of
        sb3_contrib's recurrent buffers; sequences are cut at the borders of minibatches. "sequences": whole sequences,
        shuffled; as ``batch_size`` still counts timesteps, a sequence may belong to two minibatches, and gradients flow
        through the whole of it in both
    :param max_seq_length: Cut sequences after this number of timesteps; later pieces start from the recorded state.
        ``None`` means no limit
    :raises ValueError: if ``sampling`` is unknown or ``max_seq_length`` is below 1
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        sampling: str = "contiguous",
        max_seq_length: int | None = None,
    ):
        if sampling not in SAMPLING:
            raise ValueError(f"sampling must be one of {', '.join(SAMPLING)}, not {sampling!r}")
        if max_seq_length is not None and max_seq_length < 1:
            raise ValueError(f"max_seq_length must be at least 1 timestep, or None for no limit, not {max_seq_length}")
        self.sampling = sampling
        self.max_seq_length = max_seq_length
        super().__init__(buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs)

    def reset(self) -> None:
        """Forget the rollout."""
        super().reset()
        # Before the next rollout takes as much memory again
        self.rollout: dict[str, th.Tensor] = {}
        self.flat_observations: th.Tensor | dict[str, th.Tensor] = {}
        self.flat_states = th.empty(0)
        self.lstm_states: list[RNNStates] = []
        self.action_masks: np.ndarray | None = None
        self.n_timesteps = self.buffer_size * self.n_envs

    def add_step(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray,
        episode_starts: np.ndarray,
        lstm_states: RNNStates,
        action_masks: np.ndarray | None = None,
    ) -> None:
        """
        Add a step of all environments.

        :param obs: Observations. Shape: ``(n_envs, *obs_shape)``, a dict of them for Dict spaces
        :param actions: Actions. Shape: ``(n_envs, *action_shape)``
        :param rewards: Rewards. Shape: (n_envs,)
        :param episode_starts: Whether an episode starts with this step. Shape: (n_envs,)
        :param lstm_states: Hidden and cell states of actor and critic before the step (and before any reset at an episode
            start); kept, not copied. Shape of each: (n_layers, n_envs, hidden_size)
        :param action_masks: Which actions were valid, None for all; all steps of a rollout have masks, or none has. Shape:
            (n_envs, n_choices)
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
        assert self.pos == 0 or (action_masks is None) == (self.action_masks is None), "only some steps have action_masks"
        if action_masks is not None:
            if self.action_masks is None:
                self.action_masks = np.empty((self.buffer_size, *action_masks.shape), dtype=bool)
            self.action_masks[self.pos] = action_masks
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
        if self.action_masks is not None:
            self.rollout["action_masks"] = flatten(self.action_masks)
        self.flat_observations = (
            {key: flatten(obs) for key, obs in observations.items()}
            if isinstance(observations, dict)
            else flatten(observations)
        )
        # n_steps times (n_layers, n_envs, hidden_size), four times -> (4, n_layers, n_envs * n_steps, hidden_size)
        components = [list(steps) for steps in zip(*((*pi, *vf) for pi, vf in self.lstm_states), strict=True)]
        self.lstm_states = []
        n_layers, _, hidden_size = components[0][0].shape
        self.flat_states = th.empty(4, n_layers, self.n_envs * self.buffer_size, hidden_size, device=self.device)
        for flat, component in zip(self.flat_states, components, strict=True):
            flat.view(n_layers, self.n_envs, self.buffer_size, hidden_size).copy_(stack(component, dim=2))
            component.clear()
        # A sequence that starts an episode starts from zeros
        episode_starts = self.episode_starts.T > 0
        self.flat_states[:, :, th.as_tensor(episode_starts.ravel(), device=self.device)] = 0.0

        # Twice, so that a minibatch that goes on at the beginning is a slice as well
        self.flat_sequence_starts = np.tile(mark_sequences(episode_starts, self.max_seq_length).ravel(), 2)

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
        Draw the minibatches of an epoch. Each timestep counts in one of them.

        :param batch_size: Number of timesteps that count in a minibatch (but for the last one, which has the rest),
            None for the whole rollout
        :return: minibatches
        """
        assert self.full, "Rollout buffer must be full before sampling from it"
        batch_size = batch_size or self.n_timesteps
        return self._draw_sequences(batch_size) if self.sampling == "sequences" else self._draw_pieces(batch_size)

    def _draw_pieces(self, batch_size: int) -> Iterator[SequenceBatch]:
        n_timesteps = self.n_timesteps
        # The only draw of sb3_contrib's recurrent buffers
        split = np.random.randint(n_timesteps)
        for offset in range(0, n_timesteps, batch_size):
            start, length = (split + offset) % n_timesteps, min(batch_size, n_timesteps - offset)
            starts = self.flat_sequence_starts[start : start + length].copy()
            starts[0] = True
            first, positions, max_length = locate_sequences(starts)
            select = self._selects_piece(start, length)
            yield self._make_batch(select, select, start + first, positions, max_length)

    def _draw_sequences(self, batch_size: int) -> Iterator[SequenceBatch]:
        n_timesteps = self.n_timesteps
        first = np.flatnonzero(self.flat_sequence_starts[:n_timesteps])
        order = np.random.permutation(len(first))
        lengths = np.diff(first, append=n_timesteps)[order]
        first = first[order]
        ends = np.cumsum(lengths)
        begins = ends - lengths
        for start in range(0, n_timesteps, batch_size):
            end = min(start + batch_size, n_timesteps)
            chosen = slice(np.searchsorted(ends, start, side="right"), np.searchsorted(begins, end, side="left"))
            # Of each sequence, its first timestep that counts, and the one after its last
            counted_from = np.maximum(start - begins[chosen], 0)
            counted_to = np.minimum(end - begins[chosen], lengths[chosen])

            n_seq = len(counted_to)
            sequence = np.repeat(np.arange(n_seq), counted_to)
            step = np.arange(len(sequence)) - np.repeat(np.cumsum(counted_to) - counted_to, counted_to)
            inputs = send(first[chosen][sequence] + step, self.device)
            counted = send(np.flatnonzero(step >= counted_from[sequence]), self.device)
            batch = self._make_batch(
                self._selects_rows(inputs),
                self._selects_rows(inputs[counted]),
                first[chosen],
                step * n_seq + sequence,
                int(counted_to.max()),
            )
            yield batch._replace(counted=None if len(counted) == len(inputs) else counted)

    def _selects_piece(self, start: int, length: int) -> Select:
        """
        Get what takes a piece from an array of all timesteps.

        :param start: First timestep
        :param length: Number of timesteps; after the last one, the first one follows
        :return: a function of arrays
        """
        return functools.partial(_slice, start=start, length=length)

    def _selects_rows(self, rows: th.Tensor) -> Select:
        """
        Get what takes timesteps from an array of all.

        :param rows: The timesteps. Shape: (n,)
        :return: a function of arrays
        """
        return functools.partial(th.index_select, dim=0, index=rows)

    def _states_at(self, rows: th.Tensor) -> RNNStates:
        """
        Get the states with which an LSTM enters timesteps.

        :param rows: The timesteps. Shape: (n,)
        :return: hidden and cell states of actor and critic. Shape of each: (n_layers, n, hidden_size)
        """
        pi_hidden, pi_cell, vf_hidden, vf_cell = self.flat_states.index_select(2, rows).unbind()
        return RNNStates(pi=(pi_hidden, pi_cell), vf=(vf_hidden, vf_cell))

    def _make_batch(
        self,
        select_inputs: Select,
        select_counted: Select,
        first: np.ndarray,
        positions: np.ndarray,
        max_length: int,
    ) -> SequenceBatch:
        """
        Put a minibatch together.

        :param select_inputs: Takes the timesteps that the LSTM reads from the rollout
        :param select_counted: Takes the timesteps that count from the rollout
        :param first: First timestep of each sequence. Shape: (n_seq,)
        :param positions: Row of each input in the flattened padded array. Shape: (n_inputs,)
        :param max_length: Length of the longest sequence
        :return: the minibatch
        """
        observations = self.flat_observations
        return SequenceBatch(
            observations=(
                {key: select_inputs(obs) for key, obs in observations.items()}
                if isinstance(observations, dict)
                else select_inputs(observations)
            ),
            **{key: select_counted(steps) for key, steps in self.rollout.items()},
            lstm_states=self._states_at(send(first % self.n_timesteps, self.device)),
            positions=send(positions, self.device),
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
    :param sampling: "contiguous" or "sequences"
    :param max_seq_length: Cut sequences after this number of timesteps
    """


def mark_sequences(episode_starts: np.ndarray, max_seq_length: int | None) -> np.ndarray:
    """
    Find where sequences start.

    :param episode_starts: Whether an episode starts. Shape: (n_envs, n_steps)
    :param max_seq_length: Longest sequence in timesteps, ``None`` for no limit
    :return: whether a sequence starts: with an episode, with the rollout, or after so many timesteps. Shape: (n_envs, n_steps)
    """
    starts = episode_starts.copy()
    starts[:, 0] = True
    if max_seq_length is not None:
        steps = np.arange(starts.shape[1])
        latest_start = np.maximum.accumulate(np.where(starts, steps, 0), axis=1)
        starts |= (steps - latest_start) % max_seq_length == 0
    return starts


def send(array: np.ndarray, device: th.device) -> th.Tensor:
    """
    Send an array to a device, without waiting until it is there.

    :param array: The array, which nobody changes any more
    :param device: The device
    :return: a tensor
    """
    tensor = th.from_numpy(array)
    # Memory that is not pinned is waited for. PyTorch takes pinned memory from a cache, and gives it back once it was read
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _slice(steps: th.Tensor, start: int, length: int) -> th.Tensor:
    overhang = start + length - len(steps)
    if overhang > 0:
        return th.cat([steps[start:], steps[:overhang]])
    return steps[start : start + length]


def stack(arrays: Sequence[th.Tensor | np.ndarray], dim: int = 0) -> th.Tensor:
    """
    Stack arrays that may be PyTorch's or NumPy's.

    :param arrays: Arrays of one kind and shape
    :param dim: The new dimension
    :return: a tensor
    """
    if isinstance(arrays[0], np.ndarray):
        return th.from_numpy(np.stack(arrays, axis=dim))
    return th.stack(arrays, dim=dim)  # type: ignore[arg-type]  # a list too
