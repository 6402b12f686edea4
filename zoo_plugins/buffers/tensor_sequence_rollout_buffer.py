"""A rollout buffer whose minibatches are sequences, and whose steps are tensors that stay on one device."""

import functools
from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates

from zoo_plugins.buffers.sequence_rollout_buffer import Select, SequenceRolloutBuffer, mark_sequences, send
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer
from zoo_plugins.vec_envs.tensor_step import TensorObs


class TensorSequenceRolloutBuffer(SequenceRolloutBuffer):
    """
    :class:`SequenceRolloutBuffer` for any observation space, Dict included, that is allocated once, on the device.

    Steps are in :attr:`steps`, a :class:`TensorRolloutBuffer`, from which minibatches are taken without another copy of the
    rollout. Where sequences start is fetched once per rollout: minibatches are drawn on the host, with the random numbers of
    ``SequenceRolloutBuffer``, and nothing waits for them to arrive.

    :param buffer_size: Number of steps per environment
    :param observation_space: Observation space
    :param action_space: Action space
    :param device: PyTorch device
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param gamma: Discount factor
    :param n_envs: Number of parallel environments
    :param sampling: "contiguous" or "sequences"
    :param max_seq_length: Cut sequences after this number of timesteps
    :raises ValueError: if ``sampling`` is unknown or ``max_seq_length`` is below 1
    """

    def reset(self) -> None:
        """Forget the rollout, but keep its memory."""
        if not hasattr(self, "steps"):
            self.steps = TensorRolloutBuffer(
                self.buffer_size,
                self.observation_space,
                self.action_space,
                self.device,
                self.gae_lambda,
                self.gamma,
                self.n_envs,
            )
            # Of all times, the one after the last step too. Shape: (2 or 4, n_layers, n_steps + 1, n_envs, hidden_size)
            self.states = th.empty(0, device=self.device)
        self.steps.reset()
        self.pos = 0
        self.full = False
        self.rollout = {}
        self.flat_observations = {}
        # Those to learn from, in the order of SequenceRolloutBuffer, None for all
        self.valid_steps: th.Tensor | None = None

    def start(self, lstm_states: RNNStates) -> None:
        """
        Begin a rollout.

        :param lstm_states: Hidden and cell states of actor and critic before its first step; if ``pi`` and ``vf`` are the same
            object, always, it is stored once. Shape of each: ``(n_layers, n_envs, hidden_size)``
        """
        components = _components(lstm_states)
        n_layers, n_envs, hidden_size = components[0].shape
        shape = (len(components), n_layers, self.buffer_size + 1, n_envs, hidden_size)
        if self.states.shape != shape:
            self.states = th.empty(shape, device=self.device)
        self._store_states(lstm_states)

    def add_step(  # type: ignore[override]  # of tensors
        self,
        obs: TensorObs,
        actions: th.Tensor,
        rewards: th.Tensor,
        episode_starts: th.Tensor,
        lstm_states: RNNStates,
        log_probs: th.Tensor,
        values: th.Tensor | None = None,
        valid: th.Tensor | None = None,
    ) -> None:
        """
        Add a step of all environments, after :meth:`start`.

        :param obs: Observations. Shape: ``(n_envs, *obs_shape)``, a dict of them for Dict spaces
        :param actions: Actions. Shape: ``(n_envs, *action_shape)``
        :param rewards: Rewards. Shape: ``(n_envs,)``
        :param episode_starts: Whether an episode starts with this step. Shape: ``(n_envs,)``
        :param lstm_states: LSTM states after the step. Shape of each: ``(n_layers, n_envs, hidden_size)``
        :param log_probs: Log likelihood of the actions. Shape: ``(n_envs,)``
        :param values: Predicted values, ``None`` if all of them are written into :attr:`steps` later. Shape: ``(n_envs,)`` or
            ``(n_envs, 1)``
        :param valid: See :meth:`TensorRolloutBuffer.add`
        """
        self.steps.add(obs, actions, rewards, episode_starts, values, log_probs, valid)
        self.pos, self.full = self.steps.pos, self.steps.full
        self._store_states(lstm_states)

    def _store_states(self, lstm_states: RNNStates) -> None:
        for stored, component in zip(self.states, _components(lstm_states), strict=True):
            stored[:, self.pos].copy_(component)

    def vf_latents(self) -> th.Tensor:
        """
        Get latents of the critic.

        :return: hidden states of the last layer after each step. Shape: ``(n_steps, n_envs, hidden_size)``
        """
        return self.states[-2, -1, 1:]

    def vf_states_after(self, positions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Get states of the critic.

        :param positions: Positions of steps among all, those of one time after the other. Shape: ``(n,)``
        :return: hidden and cell states after them. Shape of each: ``(n_layers, n, hidden_size)``
        """
        hidden, cell = self.states[-2:].flatten(2, 3).index_select(2, positions + self.n_envs).unbind()
        return hidden, cell

    def finish(self, last_values: th.Tensor, dones: th.Tensor) -> None:  # type: ignore[override]  # others are here already
        """
        Complete the rollout, after values were written into :attr:`steps`: compute returns and advantages, find sequences.

        :param last_values: Predicted values of the observations after the last step. Shape: ``(n_envs,)``
        :param dones: Whether an episode ended with the last step. Shape: ``(n_envs,)``
        :raises ValueError: if no step is valid
        """
        assert self.full, "Rollout buffer must be full before it is finished"
        self.steps.compute_returns_and_advantage(last_values, dones)
        rollout, observations = self.steps.rollout, self.steps.rollout.observations
        self.rollout = {
            "actions": rollout.actions.flatten(0, 1),
            "old_values": rollout.values.flatten(),
            "old_log_prob": rollout.log_probs.flatten(),
            "advantages": rollout.advantages.flatten(),
            "returns": rollout.returns.flatten(),
        }
        self.flat_observations = (
            {key: stored.flatten(0, 1) for key, stored in observations.items()}
            if isinstance(observations, dict)
            else observations.flatten(0, 1)
        )
        starts = rollout.episode_starts > 0
        # The only wait for the device
        told = (starts if self.steps.all_valid else th.stack([starts, rollout.valid])).cpu().numpy()
        episode_starts = told.reshape(-1, *starts.shape)[0].T
        sequence_starts = mark_sequences(episode_starts, self.max_seq_length).ravel()
        if not self.steps.all_valid:
            # Those that are not are sequences of their own
            valid_steps = np.flatnonzero(told[1].T)
            if len(valid_steps) == 0:
                raise ValueError(
                    "no step of the rollout is valid: n_steps must be larger, as environments take steps to reset"
                )
            sequence_starts = sequence_starts[valid_steps]
            self.valid_steps = send(valid_steps, self.device)
        self.n_timesteps = len(sequence_starts)
        self.flat_sequence_starts = np.tile(sequence_starts, 2)

    def _places(self, rows: th.Tensor) -> th.Tensor:
        """
        Find timesteps in memory.

        :param rows: Their numbers: all of an environment come before those of the next one. Shape: ``(n,)``
        :return: their places: all of one time come before those of the next one. Shape: ``(n,)``
        """
        if self.valid_steps is not None:
            rows = self.valid_steps.index_select(0, rows)
        return rows % self.buffer_size * self.n_envs + rows // self.buffer_size

    def _selects_piece(self, start: int, length: int) -> Select:
        return self._selects_rows(th.arange(start, start + length, device=self.device) % self.n_timesteps)

    def _selects_rows(self, rows: th.Tensor) -> Select:
        return functools.partial(th.index_select, dim=0, index=self._places(rows))

    def _states_at(self, rows: th.Tensor) -> RNNStates:
        places = self._places(rows)
        # A sequence that starts an episode starts from zeros
        goes_on = 1.0 - self.steps.rollout.episode_starts.flatten().index_select(0, places)
        states = self.states.flatten(2, 3).index_select(2, places) * goes_on[:, None]
        return RNNStates((states[0], states[1]), (states[-2], states[-1]))

    @property
    def values(self) -> np.ndarray:  # type: ignore[override]
        """
        :return: a copy of the predicted values. Shape: ``(n_steps, n_envs)``
        """
        return self.steps.values

    @property
    def returns(self) -> np.ndarray:  # type: ignore[override]
        """
        :return: a copy of the estimated returns. Shape: ``(n_steps, n_envs)``
        """
        return self.steps.returns


def _components(lstm_states: RNNStates) -> tuple[Any, ...]:
    pi, vf = lstm_states
    return pi if vf is pi else (*pi, *vf)
