"""Show what workers do: a table that changes on a terminal, lines elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY = 60.0  # seconds between two lines about the whole, where there is no terminal


@dataclass(frozen=True)
class Row:
    """
    A worker at a moment.

    :param worker: Its number
    :param where: Machine and process, empty until it is ready
    :param trial: Number of its trial, None if it has none
    :param state: What it does
    :param timesteps: Timesteps of the trial so far
    :param value: The trial's last evaluation, None before the first
    :param fps: Timesteps per second
    """

    worker: int
    where: str
    trial: int | None
    state: str
    timesteps: int
    value: float | None
    fps: float


class Progress:
    """
    Shows the progress of a study, inside ``with``.

    :param console: Where to; None: standard output
    """

    def __init__(self, console: Console | None = None):
        self.console = console or Console(soft_wrap=True)
        self._live: Live | None = None
        self._told: set[str] = set()
        self._next_line = time.monotonic() + LINE_EVERY

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def tell(self, text: str) -> None:
        """
        Print a line that stays.

        :param text: What happened
        """
        self.console.print(text, markup=False, highlight=False)

    def tell_once(self, text: str) -> None:
        """
        Print a line, unless it has been printed before.

        :param text: What happens
        """
        if text not in self._told:
            self._told.add(text)
            self.tell(text)

    def show(
        self,
        rows: Sequence[Row],
        n_timesteps: int,
        n_done: int,
        n_trials: int,
        best: FrozenTrial | None,
        time_left: float | None,
    ) -> None:
        """
        Show where the study is now.

        :param rows: The workers
        :param n_timesteps: Timesteps of a trial
        :param n_done: Number of trials that have ended
        :param n_trials: Number of trials in all
        :param best: The best trial, None if there is none yet
        :param time_left: Seconds until the end, None if unknown
        """
        value = "none yet" if best is None else f"{best.value:.6g} (trial {best.number})"
        whole = f"{n_done} of {n_trials} trials, best {value}, {sum(row.fps for row in rows):.0f} steps/s"
        whole += "" if time_left is None else f", {_duration(time_left)} left"
        if self._live is not None:
            self._live.update(make_table(rows, n_timesteps, whole), refresh=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY
            self.tell(whole)


def make_table(rows: Sequence[Row], n_timesteps: int, whole: str) -> Table:
    """
    Make the table of workers.

    :param rows: The workers
    :param n_timesteps: Timesteps of a trial
    :param whole: What to write below
    :return: the table
    """
    table = Table(caption=whole, caption_justify="left")
    for column in ("worker", "process", "trial", "state", "timesteps", "value", "steps/s", "left"):
        table.add_column(column, justify="left" if column in ("process", "state") else "right")
    for row in rows:
        running = row.trial is not None
        left = _duration((n_timesteps - row.timesteps) / row.fps) if running and row.fps else ""
        table.add_row(
            str(row.worker),
            row.where,
            str(row.trial) if running else "",
            row.state,
            f"{row.timesteps} of {n_timesteps}" if running else "",
            "" if row.value is None else f"{row.value:.6g}",
            f"{row.fps:.0f}" if running else "",
            left,
        )
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
