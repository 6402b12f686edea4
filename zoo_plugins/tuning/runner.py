"""Give trials to workers until a study has enough of them, whatever becomes of the workers."""

import argparse
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import optuna
import ray
from optuna.trial import FrozenTrial, Trial, TrialState
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from zoo_plugins.registry import PluginError
from zoo_plugins.tuning.progress import Progress, Row
from zoo_plugins.tuning.studies import (
    DRIVEN_BY,
    RETRY_OF,
    WORKER,
    Drivers,
    best_trial,
    lose_trial,
    n_spent,
    retry_lost,
)
from zoo_plugins.tuning.trial_worker import Outcome

POLL = 0.5  # seconds between two looks at workers
SWEEP = 5.0  # seconds between two looks for trials of dead drivers
FIRST_FAILURES = 3  # so many trials that fail in the same way, and no other: it is not the hyperparameters
FAILED_STARTS = 3  # so many processes in a row that end before they are ready


class Worker:
    """
    A worker, seen from the driver.

    :param number: Its number
    :param make: Lets Ray start a process
    """

    def __init__(self, number: int, make: Callable[[], Any]):
        self.number = number
        self.failed_starts = 0
        self._make = make
        self.launch()

    def launch(self) -> None:
        """Start the process, or another one in its place."""
        self.actor = self._make()
        self.ready = False
        self.where = ""
        self.trial: Trial | None = None
        self.since = time.monotonic()
        self.timesteps = 0
        self.pending = self.actor.start.remote()  # what is waited for
        self._progress: Any = None

    def run(self, trial: Trial) -> None:
        """
        Give it a trial.

        :param trial: The trial
        """
        self.trial, self.since, self.timesteps = trial, time.monotonic(), 0
        self.pending = self.actor.run.remote(trial._trial_id)

    def ask_progress(self) -> None:
        """Ask how far its trial is, and take the answer to the last question."""
        if self.trial is None:
            return
        if self._progress is None:
            self._progress = self.actor.progress.remote()
        elif ray.wait([self._progress], timeout=0)[0]:
            with suppress(RayError):  # told by what is pending, too
                number, timesteps = ray.get(self._progress)
                if number == self.trial.number:
                    self.timesteps = timesteps
            self._progress = None

    def end(self) -> None:
        """End the process, whatever it does."""
        with suppress(Exception):  # it may be gone already, or its node
            ray.kill(self.actor)

    def wait_for_end(self, timeout: float) -> None:
        """
        Wait until the process can't do anything any more.

        :param timeout: For how long, in seconds
        """
        with suppress(RayError, GetTimeoutError):
            ray.get(self.actor.progress.remote(), timeout=timeout)


class Runner:
    """
    Runs the trials of a study.

    :param study: The study
    :param options: The options of the command line
    :param n_timesteps: Timesteps of a trial
    :param n_workers: Trials at the same time
    :param make_worker: Lets Ray start a worker
    :param progress: Where to show what happens
    """

    def __init__(
        self,
        study: optuna.Study,
        options: argparse.Namespace,
        n_timesteps: int,
        n_workers: int,
        make_worker: Callable[[], Any],
        progress: Progress,
    ):
        self.study = study
        self.n_trials = options.n_trials
        self.n_timesteps = n_timesteps
        self.n_workers = n_workers
        self.interrupted_by: signal.Signals | None = None
        self._make_worker = make_worker
        self._progress = progress
        self._drivers = Drivers(study)
        self._workers: list[Worker] = []
        self._next_sweep = 0.0
        self._durations: list[float] = []
        self._errors: list[str] = []
        self._any_good = False

    def run(self) -> None:
        """
        Run trials until there are enough, or a signal comes. Nothing runs any more when this returns or raises.

        :raises PluginError: if workers can't start, or all trials fail in the same way
        """
        try:
            with self._signals():
                while self.interrupted_by is None:
                    self._drivers.beat()
                    self._sweep()
                    left = self._give_out()
                    if not left and not any(worker.trial for worker in self._workers):
                        if not self._drivers.are_uncertain():
                            return
                        self._progress.tell_once("waiting for a minute, in case that the driver of running trials is gone")
                    self._wait()
                    self._show(left)
        finally:
            self._end()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        # Storages are left in order: an exception might come in the middle of a transaction
        def note(number: int, _: Any) -> None:
            if self.interrupted_by is not None:
                raise KeyboardInterrupt
            self.interrupted_by = signal.Signals(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _sweep(self) -> None:
        if time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + SWEEP
        for number in self._drivers.fail_stale():
            self._progress.tell(f"trial {number} failed: its driver ended before it")
        self._retry_lost()

    def _retry_lost(self) -> None:
        for number in retry_lost(self.study):
            self._progress.tell(f"trial {number} is tried again")

    def _give_out(self) -> int:
        """
        Give trials to workers that have none, and start workers as long as there are trials for them.

        :return: number of trials that nobody runs yet
        """
        left = max(0, self.n_trials - n_spent(self.study))
        while len(self._workers) < min(self.n_workers, left + sum(worker.trial is not None for worker in self._workers)):
            self._workers.append(Worker(len(self._workers), self._make_worker))
        for worker in self._workers:
            if left and worker.ready and worker.trial is None:
                trial = self.study.ask()
                trial.set_user_attr(DRIVEN_BY, self._drivers.name)
                trial.set_user_attr(WORKER, worker.number)
                worker.run(trial)
                left -= 1
        return left

    def _wait(self) -> None:
        pending = [worker.pending for worker in self._workers if worker.pending is not None]
        if not pending:
            time.sleep(POLL)
            return
        done = ray.wait(pending, timeout=POLL)[0]
        for worker in self._workers:
            if worker.pending in done:
                self._receive(worker)
            worker.ask_progress()

    def _receive(self, worker: Worker) -> None:
        try:
            answer = ray.get(worker.pending)
        except RayTaskError as error:  # it lives, and can't go on
            self._fail_worker(worker, error)
        except RayError as error:
            self._replace(worker, error)
        else:
            worker.pending = None
            if isinstance(answer, Outcome):
                self._take(worker, answer)
            else:
                worker.ready, worker.failed_starts = True, 0
                worker.where = "{}:{}".format(*answer)
                self._progress.tell(f"worker {worker.number} is ready ({answer[0]}, process {answer[1]})")

    def _take(self, worker: Worker, outcome: Outcome) -> None:
        assert worker.trial is not None
        number, worker.trial = worker.trial.number, None
        self._durations.append(outcome.seconds)
        told = f"trial {number}: {outcome.state.lower()}"
        if outcome.value is not None:
            told += f", value {outcome.value:.6g}"
        best = best_trial(self.study)
        if outcome.error:
            told += f", {outcome.error}"
        elif best is not None:
            told += f" (best {best.value:.6g}, trial {best.number})"
        self._progress.tell(f"{told}; {outcome.timesteps} timesteps in {outcome.seconds:.1f} s by worker {worker.number}")
        if outcome.state != TrialState.FAIL.name:
            self._any_good = True
            return
        self._errors.append(outcome.error)
        if not self._any_good and len(self._errors) >= FIRST_FAILURES and len(set(self._errors)) == 1:
            raise PluginError(f"the first {len(self._errors)} trials all failed with {outcome.error}")

    def _fail_worker(self, worker: Worker, error: RayTaskError) -> None:
        cause = error.cause if isinstance(getattr(error, "cause", None), BaseException) else error
        told = " ".join(str(cause).split())
        # Out of its objective, a worker only speaks with the storage
        what = "start" if worker.trial is None else "go on"
        raise PluginError(f"worker {worker.number} can't {what}: {type(cause).__name__}: {told}") from error

    def _replace(self, worker: Worker, error: RayError) -> None:
        why = f"worker {worker.number} ({worker.where or 'not ready yet'}) was lost: {_cause_of_death(error)}"
        if not worker.ready:
            worker.failed_starts += 1
            if worker.failed_starts >= FAILED_STARTS:
                raise PluginError(f"{why}, for the {worker.failed_starts}rd time")
        self._progress.tell(why)
        worker.end()
        if worker.trial is not None:
            worker.wait_for_end(timeout=5.0)
            if lose_trial(self.study, worker.trial._trial_id, why):
                final = RETRY_OF in worker.trial.user_attrs
                self._progress.tell(f"trial {worker.trial.number}: fail{', for the second time' if final else ''}")
            self._retry_lost()
        worker.launch()

    def _show(self, left: int) -> None:
        now = time.monotonic()
        best = best_trial(self.study)
        running = [worker for worker in self._workers if worker.trial is not None]
        values = {trial.number: _last_value(trial) for trial in self._running_trials()} if running else {}
        durations = self._durations or [
            (now - worker.since) * self.n_timesteps / worker.timesteps for worker in running if worker.timesteps
        ]
        mean = sum(durations) / len(durations) if durations else None
        rows = []
        for worker in self._workers:
            seconds = now - worker.since
            state = "running" if worker.trial is not None else "idle" if worker.ready else "starting"
            rows.append(
                Row(
                    worker=worker.number,
                    where=worker.where,
                    trial=None if worker.trial is None else worker.trial.number,
                    state=state,
                    timesteps=worker.timesteps,
                    value=None if worker.trial is None else values.get(worker.trial.number),
                    fps=worker.timesteps / seconds if worker.trial is not None and seconds > 0 else 0.0,
                )
            )
        time_left = None
        if mean is not None:
            rest = left * mean + sum(max(0.0, mean - (now - worker.since)) for worker in running)
            time_left = rest / max(1, len(self._workers))
        done = min(self.n_trials, n_spent(self.study) - len(running))
        self._progress.show(rows, self.n_timesteps, done, self.n_trials, best, time_left)

    def _running_trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            if worker.trial is not None:
                worker.wait_for_end(timeout=5.0)
                why = "the study was stopped" if self.interrupted_by is None else f"interrupted by {self.interrupted_by.name}"
                lose_trial(self.study, worker.trial._trial_id, why)
                worker.trial = None
        self._workers.clear()
        self._drivers.end()


def _last_value(trial: FrozenTrial) -> float | None:
    return trial.intermediate_values[trial.last_step] if trial.last_step is not None else None


def _cause_of_death(error: RayError) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError):
        # Ray first tells all of its ids, and at last what might have happened
        text = text.rpartition("The actor is dead because ")[2].partition(". Some common causes include")[0]
        text = text.partition(" class_name: ")[0]
    return text.rstrip(".") or type(error).__name__
