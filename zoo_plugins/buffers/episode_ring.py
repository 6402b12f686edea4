"""Which transitions of a ring buffer belong to which episode, and draws of them."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy


class EpisodeRing:
    """
    Episodes in a ring of ``n_steps`` steps of ``n_envs`` environments, which are added one after the other.

    Transitions of finished episodes can be drawn; as soon as the first of them is overwritten, none of that episode. So those
    of an environment are always one piece of the ring, from the start of its oldest whole episode to the end of its last
    finished one, and a uniform draw needs only where the pieces start, and how long they are.

    A transition is named by its row: ``step * n_envs + env``.

    :param n_steps: Steps that the ring holds
    :param n_envs: Number of environments
    """

    def __init__(self, n_steps: int, n_envs: int):
        self.n_steps, self.n_envs = n_steps, n_envs
        self.n_used = 0  # steps
        # First step and length of the episode of a row, side by side because they are looked up together
        self._table = np.zeros((n_steps * n_envs, 2), np.int32)
        self._view_table()
        self.running_start = np.zeros(n_envs, np.int64)
        self.running_length = np.zeros(n_envs, np.int64)
        self._piece_start = np.zeros(n_envs, np.int64)
        self._piece_length = np.zeros(n_envs, np.int64)
        self._n_unchecked = 0  # steps
        self._pieces_changed = True

    def _view_table(self) -> None:
        # No length before the episode has ended. Shapes: (n_steps, n_envs)
        self.start, self.length = self._table.reshape(self.n_steps, self.n_envs, 2).transpose(2, 0, 1)

    def add_step(self, pos: int) -> None:
        """
        Go on to the next step of the running episodes.

        :param pos: Where in the ring it is: after the last one
        :raises ValueError: if it is the first step of a running episode
        """
        self._n_unchecked -= 1
        if self._n_unchecked < 0:
            # As long as this, no running episode can reach its own start
            self._n_unchecked = self.n_steps - int(self.running_length.max()) - 1
            if self._n_unchecked < 0:
                raise ValueError(f"an episode has more than {self.n_steps} steps")
        if self.n_used < self.n_steps:
            self.n_used += 1
        elif self.length[pos].any():
            self._drop_episodes(pos)
        self.start[pos] = self.running_start
        self.running_length += 1

    def _drop_episodes(self, pos: int) -> None:
        """Let no transition of the episodes that start at a step be drawn again."""
        for env in np.flatnonzero(self.length[pos]):
            length = int(self.length[pos, env])
            self.length[self._steps(pos, length), env] = 0
            self._piece_start[env] = (pos + length) % self.n_steps
            self._piece_length[env] -= length
        self._pieces_changed = True

    def finish(self, env: int) -> None:
        """
        End the running episode of an environment: its transitions can be drawn.

        :param env: Index of the environment
        """
        start, length = int(self.running_start[env]), int(self.running_length[env])
        self.length[self._steps(start, length), env] = length
        if self._piece_length[env] == 0:
            self._piece_start[env] = start
        self._piece_length[env] += length
        self.running_start[env] = (start + length) % self.n_steps
        self.running_length[env] = 0
        self._pieces_changed = True

    @property
    def n_finished(self) -> int:
        """Number of transitions that can be drawn."""
        return int(self._piece_length.sum())

    def draw(self, n: int) -> np.ndarray:
        """
        Draw uniformly among the transitions of finished episodes, with NumPy's global generator.

        :param n: How many
        :return: rows. Shape: (n,)
        """
        if self._pieces_changed:
            self._measure_pieces()
        ordinals = (np.random.random_sample(n) * self._piece_ends[-1]).astype(np.int64)
        envs = np.searchsorted(self._piece_ends, ordinals, side="right")
        steps = ordinals + self._piece_shifts[envs]
        return (steps % self.n_steps) * self.n_envs + envs

    def draw_goals(self, rows: np.ndarray, strategy: GoalSelectionStrategy) -> np.ndarray:
        """
        Draw transitions of the same episodes, whose achieved goals become desired ones.

        :param rows: Transitions of finished episodes. Shape: (n,)
        :param strategy: FUTURE (from this transition on), FINAL (the last one) or EPISODE (any)
        :return: rows. Shape: (n,)
        """
        steps, envs = np.divmod(rows, self.n_envs)
        starts, lengths = self._table.take(rows, axis=0).T
        if strategy is GoalSelectionStrategy.FINAL:
            chosen = lengths - 1
        else:
            first = (steps - starts) % self.n_steps if strategy is GoalSelectionStrategy.FUTURE else 0
            chosen = first + (np.random.random_sample(len(rows)) * (lengths - first)).astype(np.int64)
        return ((starts + chosen) % self.n_steps) * self.n_envs + envs

    def episodes(self) -> Iterator[np.ndarray]:
        """
        List finished episodes, environment by environment, from old to new.

        :return: rows of each. Shape: (length,)
        """
        for env in range(self.n_envs):
            step, left = int(self._piece_start[env]), int(self._piece_length[env])
            while left > 0:
                length = int(self.length[step, env])
                yield self._steps(step, length) * self.n_envs + env
                step, left = (step + length) % self.n_steps, left - length

    def adopt(self, episodes: Iterable[np.ndarray]) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
        """
        Lay finished episodes of another ring out in this one, which must be empty, side by side, so that all end together.

        :param episodes: Rows of each in the other ring, from new to old; those that do not fit any more are left out
        :return: old and new rows of each, from old to new, and the number of steps that are in use now
        """
        columns: list[list[np.ndarray]] = [[] for _ in range(self.n_envs)]
        filled = np.zeros(self.n_envs, np.int64)
        for rows in episodes:
            env = int(filled.argmin())
            if filled[env] + len(rows) <= self.n_steps:
                columns[env].append(rows)
                filled[env] += len(rows)
        end = int(filled.max())
        moves = []
        for env, column in enumerate(columns):
            self.running_start[env] = end - filled[env]
            for old_rows in reversed(column):
                steps = self._steps(int(self.running_start[env]), len(old_rows))
                moves.append((old_rows, steps * self.n_envs + env))
                self.start[steps, env] = self.running_start[env]
                self.running_length[env] = len(old_rows)
                self.finish(env)
        self.running_start[:] = end % self.n_steps
        self.n_used = end
        return sorted(moves, key=lambda move: int(move[1][-1])), end

    def _steps(self, start: int, length: int) -> np.ndarray:
        return np.arange(start, start + length) % self.n_steps

    def _measure_pieces(self) -> None:
        """Prepare draws: the n-th transition, counted over all pieces, is at step ``n + shift`` of its environment."""
        self._pieces_changed = False
        self._piece_ends = np.cumsum(self._piece_length)
        self._piece_shifts = self._piece_start + self._piece_length - self._piece_ends

    def __getstate__(self) -> dict[str, Any]:
        # What was never written needs no space in a file
        state = {**self.__dict__, "_table": self._table[: self.n_used * self.n_envs]}
        del state["start"], state["length"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        used = self._table
        self._table = np.zeros((self.n_steps * self.n_envs, 2), np.int32)
        self._table[: len(used)] = used
        self._view_table()
