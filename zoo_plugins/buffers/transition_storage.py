"""Transitions of goal environments in memory: one record each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.buffers.records import RecordLayout, as_bytes

OUTCOME = ("rewards", "dones", "timeouts")
NO_ENVS = np.empty(0, np.int64)


class TransitionLayout(RecordLayout):
    """
    Fields of a transition.

    Observations of all float keys are columns of one field, so that they can be normalized in one go; each other key has a
    field of its own. float64 is kept as float32. The first axis of these fields is the observation, then the next one.

    :param space: Observation space
    :param shapes: Shape of the observations of each key
    :param action: Dtype and number of the numbers of an action, None for a record of nothing but observations
    :param n_observations: 2, or 1 to leave out the next observation
    """

    def __init__(
        self,
        space: spaces.Dict,
        shapes: Mapping[str, tuple[int, ...]],
        action: tuple[np.dtype[Any], int] | None,
        n_observations: int,
    ):
        self.shapes = shapes
        self.columns: dict[str, slice] = {}
        fields: dict[str, tuple[Any, tuple[int, ...]]] = {}
        n_columns = 0
        for key, shape in shapes.items():
            if space[key].dtype in (np.float32, np.float64):
                self.columns[key] = slice(n_columns, n_columns + int(np.prod(shape)))
                n_columns = self.columns[key].stop
            else:
                fields[f"observations.{key}"] = (space[key].dtype, (n_observations, *shape))
        if n_columns:
            fields["columns"] = (np.float32, (n_observations, n_columns))
        self.observation_fields = tuple(fields)
        if action is not None:
            fields["actions"] = (action[0], (action[1],))
            fields.update(dict.fromkeys(OUTCOME, (np.float32, ())))
        super().__init__(fields)

    def observations(self, fields: Mapping[str, Any], index: int) -> dict[str, Any]:
        """
        See observations of all keys.

        :param fields: Fields of n records
        :param index: 0 for the observation, 1 for the next one
        :return: views of shape (n, *obs_shape) by key
        """
        columns = fields["columns"][:, index] if self.columns else None
        found = {}
        for key, shape in self.shapes.items():
            if columns is None or key not in self.columns:
                found[key] = fields[f"observations.{key}"][:, index]
            else:
                found[key] = columns[:, self.columns[key]]
                if len(shape) != 1:
                    found[key] = found[key].reshape(len(columns), *shape)
        return found


class Step:
    """
    One transition of each environment, put together before it is stored.

    :param layout: Layout of transitions with next observations
    :param n_envs: Number of environments
    """

    def __init__(self, layout: TransitionLayout, n_envs: int):
        self.records: np.ndarray = layout.zeros(n_envs)
        self.bytes = as_bytes(self.records)
        self.fields = layout.fields(self.records)
        observations, next_observations = (layout.observations(self.fields, index) for index in (0, 1))
        self._views = [(key, view, next_observations[key]) for key, view in observations.items()]
        self._outcome = [self.fields[name] for name in ("actions", *OUTCOME)]
        # Compared as integers, because NaN differs from itself
        both = [self.fields[name].view(f"u{self.fields[name].itemsize}") for name in layout.observation_fields]
        self._bits, self._next_bits = ([field[:, index].reshape(n_envs, -1) for field in both] for index in (0, 1))

    def fill(
        self,
        obs: Mapping[str, np.ndarray],
        next_obs: Mapping[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray,
        dones: np.ndarray,
        timeouts: Any,
    ) -> None:
        """
        Take over the values of a step.

        :param obs: Observations of each key. Shape: (n_envs, *obs_shape)
        :param next_obs: Next observations of each key. Shape: (n_envs, *obs_shape)
        :param actions: Actions. Shape: (n_envs, *action_shape)
        :param rewards: Rewards. Shape: (n_envs,)
        :param dones: Whether an episode ended. Shape: (n_envs,)
        :param timeouts: Whether it ended because of a time limit; may be one value for all. Shape: (n_envs,)
        """
        for key, view, next_view in self._views:
            value, next_value = obs[key], next_obs[key]
            if value.shape != view.shape:  # of Discrete spaces
                value, next_value = value.reshape(view.shape), next_value.reshape(view.shape)
            view[...], next_view[...] = value, next_value
        action_view, reward_view, done_view, timeout_view = self._outcome
        action_view[...] = actions.reshape(action_view.shape)
        reward_view[...], done_view[...], timeout_view[...] = rewards, dones, timeouts

    def find_breaks(self, last: "Step") -> np.ndarray:
        """
        Find environments that are not where they were at the end of another step.

        :param last: The step before this one
        :return: their indices
        """
        pairs = list(zip(self._bits, last._next_bits, strict=True))
        # Nearly always, and found out several times faster
        if all(bits.tobytes() == last_bits.tobytes() for bits, last_bits in pairs):
            return NO_ENVS
        return np.flatnonzero(np.any([(bits != last_bits).any(axis=1) for bits, last_bits in pairs], axis=0))


class FinalObservations:
    """
    Last observations of episodes, for a storage that has no next observations: first in, first out.

    :param layout: Layout of an observation
    """

    def __init__(self, layout: RecordLayout):
        self.layout = layout
        self.records: Any = layout.zeros(16)
        self.oldest = 0  # number of the oldest one that is kept
        self.next = 0

    def append(self, record: np.ndarray) -> int:
        """
        Keep one.

        :param record: Structured array of one record
        :return: its number
        """
        if self.next - self.oldest == len(self.records):
            numbers = np.arange(self.oldest, self.next)
            kept = self.layout.move(self.take(numbers), None)
            device = None if isinstance(self.records, np.ndarray) else self.records.device
            self.records = self.layout.move(self.layout.zeros(2 * len(self.records)), device)
            self.layout.put(self.records, numbers % len(self.records), kept)
        self.layout.put(self.records, np.array([self.next % len(self.records)]), record)
        self.next += 1
        return self.next - 1

    def release(self, number: int) -> None:
        """
        Forget one, and all that came before it.

        :param number: Its number
        """
        self.oldest = max(self.oldest, number + 1)

    def take(self, numbers: np.ndarray) -> Any:
        """
        Copy some.

        :param numbers: Their numbers. Shape: (n,)
        :return: n records
        """
        return self.layout.take(self.records, numbers % len(self.records))


class TransitionStorage:
    """
    Transitions by row: ``step * n_envs + env``.

    :param space: Observation space
    :param shapes: Shape of the observations of each key
    :param action: Dtype and number of the numbers of an action
    :param n_steps: Steps that it holds
    :param n_envs: Number of environments
    :param next_observations: Whether a transition has its next observation with it. If not, it is looked up in the
        transition after it, or among the last observations of episodes
    """

    def __init__(
        self,
        space: spaces.Dict,
        shapes: Mapping[str, tuple[int, ...]],
        action: tuple[np.dtype[Any], int],
        n_steps: int,
        n_envs: int,
        next_observations: bool = True,
    ):
        self.n_rows, self.n_envs = n_steps * n_envs, n_envs
        self.n_used = 0
        self.step_layout = TransitionLayout(space, shapes, action, 2)
        self.layout = self.step_layout if next_observations else TransitionLayout(space, shapes, action, 1)
        self._hold(self.layout.zeros(self.n_rows))
        self.finals: FinalObservations | None = None
        if not next_observations:
            self.finals = FinalObservations(TransitionLayout(space, shapes, None, 1))
            self.final_numbers = np.full(self.n_rows, -1)

    def _hold(self, records: Any) -> None:
        self.records = records
        rows = as_bytes(records) if isinstance(records, np.ndarray) else records
        self._steps = rows.reshape(-1, self.n_envs, rows.shape[1])

    def put_step(self, pos: int, step: Step) -> None:
        """
        Overwrite a step.

        :param pos: Which one
        :param step: The new one
        """
        self.n_used = max(self.n_used, (pos + 1) * self.n_envs)
        new = step.bytes
        if self.finals is not None:
            rows = slice(pos * self.n_envs, (pos + 1) * self.n_envs)
            self.finals.release(int(self.final_numbers[rows].max()))
            self.final_numbers[rows] = -1
            new = as_bytes(_without_next(step.records, self.layout))
        self._steps[pos] = new if isinstance(self._steps, np.ndarray) else th.from_numpy(new)

    def end_episode(self, row: int, record: np.ndarray) -> None:
        """
        Keep the last observation of an episode.

        :param row: Its last transition
        :param record: The same, with its next observation
        """
        if self.finals is not None:
            final = np.zeros(1, self.finals.layout.dtype)
            for name in self.layout.observation_fields:
                final[name] = record[name][:, 1:]
            self.final_numbers[row] = self.finals.append(final)

    def take(self, rows: np.ndarray) -> Any:
        """
        Copy transitions.

        :param rows: Which ones. Shape: (n,)
        :return: n records with next observations, where the storage is
        """
        records = self.layout.take(self.records, rows)
        if self.finals is None:
            return records
        fields, following = self.layout.fields(records), self._take_next(rows)
        device = None if isinstance(records, np.ndarray) else records.device
        both = self.step_layout.move(self.step_layout.zeros(len(rows)), device)
        for name, field in self.step_layout.fields(both).items():
            if name in following:
                field[:, :1], field[:, 1:] = fields[name], following[name]
            else:
                field[...] = fields[name]
        return both

    def take_achieved_goals(self, rows: np.ndarray) -> Any:
        """
        Copy the goals that transitions achieved, in their next observation.

        :param rows: Which transitions. Shape: (n,)
        :return: goals, an array or a tensor where the storage is. Shape: (n, *goal_shape)
        """
        if self.finals is not None:
            return self.layout.observations(self._take_next(rows), 0)["achieved_goal"]
        goals = self.layout.observations(self.layout.fields(self.records), 1)["achieved_goal"]
        return goals[rows if isinstance(goals, np.ndarray) else th.from_numpy(rows).to(goals.device)]

    def _take_next(self, rows: np.ndarray) -> dict[str, Any]:
        assert self.finals is not None
        fields = self.layout.fields(self.layout.take(self.records, (rows + self.n_envs) % self.n_rows))
        numbers = self.final_numbers.take(rows)
        last = np.flatnonzero(numbers >= 0)
        finals = self.finals.layout.fields(self.finals.take(numbers[last]))
        for name, values in finals.items():
            fields[name][last] = values
        return {name: fields[name] for name in finals}

    def adopt(self, other: "TransitionStorage", old_rows: np.ndarray, rows: np.ndarray) -> None:
        """
        Copy an episode of another storage.

        :param other: The other storage, of the same layout
        :param old_rows: Transitions of a finished episode. Shape: (length,)
        :param rows: Where to copy them. Shape: (length,)
        """
        self.layout.put(self.records, rows, other.layout.move(other.layout.take(other.records, old_rows), None))
        self.n_used = max(self.n_used, int(rows.max()) + 1)
        if self.finals is not None and other.finals is not None:
            final = other.finals.take(other.final_numbers[old_rows[-1:]])
            self.final_numbers[rows[-1]] = self.finals.append(other.finals.layout.move(final, None))

    def move_to(self, device: th.device) -> bool:
        """
        Keep the transitions in a tensor on a device.

        :param device: The device
        :return: whether they were not there yet
        """
        # "cuda" is any of them
        if (
            isinstance(self.records, th.Tensor)
            and self.records.device.type == device.type
            and (device.index in (None, self.records.device.index))
        ):
            return False
        self._hold(self.layout.move(self.records, device))
        if self.finals is not None:
            self.finals.records = self.finals.layout.move(self.finals.records, device)
        return True

    def __getstate__(self) -> dict[str, Any]:
        # What was never written needs no space in a file; files are opened on other machines
        state = self.__dict__.copy()
        del state["_steps"]
        state["records"] = self.layout.move(self.records[: self.n_used], None)
        if self.finals is not None:
            state["finals"] = finals = FinalObservations.__new__(FinalObservations)
            finals.__dict__.update(self.finals.__dict__, records=self.finals.layout.move(self.finals.records, None))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        used = self.records
        self._hold(self.layout.zeros(self.n_rows))
        self.layout.put(self.records, slice(0, len(used)), used)


def _without_next(records: np.ndarray, layout: TransitionLayout) -> np.ndarray:
    without = np.zeros(len(records), layout.dtype)
    for name in layout.dtype.names or ():
        without[name] = records[name][:, :1] if name in layout.observation_fields else records[name]
    return without
