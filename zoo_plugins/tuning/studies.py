"""A study that outlives its drivers and workers: whose it is, what is left to do, and what becomes of lost trials."""

import os
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from zoo_plugins.registry import PluginError

# Attributes of a study
IDENTITY = "zoo_plugins_"  # what all of its trials have in common: algo, env, ...
DRIVER = "zoo_plugins_driver_"  # counts, while a driver is alive
# Attributes of a trial
DRIVEN_BY = "driver"
WORKER = "worker"
LOST = "lost"  # why, if it was no fault of the trial's own
ERROR = "error"
RETRY_OF = "retry_of"

BEAT = 15.0  # seconds between two signs of life
PATIENCE = 60.0  # seconds without one after which a driver is dead


def find_study(storage: BaseStorage, name: str, identity: Mapping[str, Any]) -> optuna.Study | None:
    """
    Find a study, and see whether it is what it should be. Nothing is changed.

    :param storage: Where it is kept
    :param name: Its name
    :param identity: What all of its trials must have in common, as JSON
    :return: the study, with a sampler that costs nothing: workers have the real one. None if there is none
    :raises PluginError: if it has another identity
    """
    try:
        study = optuna.load_study(study_name=name, storage=storage, sampler=RandomSampler())
    except KeyError:
        return None
    if study.directions != [StudyDirection.MAXIMIZE]:
        raise PluginError(f"--study-name: study {name!r} does not maximize one value: choose another name")
    known = study.user_attrs
    # Trials of a study without this attribute had no search space in a block
    absent = {"search_space": None} if study.get_trials(deepcopy=False) else {}
    for key, value in identity.items():
        before = known.get(IDENTITY + key, absent.get(key, value))
        if before != value:
            raise PluginError(
                f"--study-name: study {name!r} exists with another {key.replace('_', ' ')}: {before!r}, "
                f"and not {value!r}: choose another name"
            )
    return study


def open_study(storage: BaseStorage, name: str, identity: Mapping[str, Any], attributes: Mapping[str, Any]) -> optuna.Study:
    """
    Create a study, or continue one.

    :param storage: Where it is kept
    :param name: Its name
    :param identity: What all of its trials must have in common, as JSON
    :param attributes: What else is worth to be known of a new one
    :return: the study, as from :func:`find_study`
    :raises PluginError: if it exists with another identity; nothing in it is changed
    """
    study = find_study(storage, name, identity)
    if study is None:
        study = optuna.create_study(study_name=name, storage=storage, sampler=RandomSampler(), direction="maximize")
    known = study.user_attrs
    for key, value in {**attributes, **{IDENTITY + key: value for key, value in identity.items()}}.items():
        if key not in known:
            study.set_user_attr(key, value)
    return study


def is_lost(trial: FrozenTrial) -> bool:
    """
    Tell whether a trial ended with its worker or driver, and not by itself.

    :param trial: The trial
    :return: whether it did
    """
    return trial.state is TrialState.FAIL and LOST in trial.user_attrs


def n_spent(study: optuna.Study) -> int:
    """
    Count the trials of a budget: those that ended by themselves, run, or were lost for the second time.

    :param study: The study
    :return: their number
    """
    trials = study.get_trials(deepcopy=False)
    return sum(t.state is not TrialState.WAITING and (not is_lost(t) or RETRY_OF in t.user_attrs) for t in trials)


def count_states(study: optuna.Study) -> str:
    """
    Count trials by state.

    :param study: The study
    :return: for example ``"3 complete, 1 fail"``
    """
    counts = Counter(trial.state.name.lower() for trial in study.get_trials(deepcopy=False))
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no trials"


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """
    Find the best complete trial.

    :param study: The study
    :return: the trial, None if there is none
    """
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)


def lose_trial(study: optuna.Study, trial_id: int, why: str) -> bool:
    """
    Mark a running trial as failed, through no fault of its own.

    :param study: Its study
    :param trial_id: Its id in the storage
    :param why: What happened
    :return: whether it was still running
    """
    try:
        trial = Trial(study, trial_id)
        trial.set_user_attr(LOST, " ".join(why.split()))
        study.tell(trial, state=TrialState.FAIL)
    except (UpdateFinishedTrialError, ValueError):  # it had ended, a moment ago
        return False
    return True


def retry_lost(study: optuna.Study) -> list[int]:
    """
    Enqueue each lost trial once more, with the same hyperparameters.

    :param study: The study
    :return: numbers of the trials that are tried again
    """
    trials = study.get_trials(deepcopy=False)
    retried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    again = [t for t in trials if is_lost(t) and RETRY_OF not in t.user_attrs and t.number not in retried]
    for trial in again:
        study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})
    return [trial.number for trial in again]


class Drivers:
    """
    This driver's sign of life, and those of the others that work at the same study.

    Clocks of machines are not compared: a driver is dead when its sign has not changed for a while, or when it was a process
    of this machine that is gone.

    :param study: The study
    """

    def __init__(self, study: optuna.Study):
        self.study = study
        self.name = f"{socket.gethostname()}:{os.getpid()}:{_start_of_process(os.getpid())}"
        self._beats = 0
        self._next_beat = 0.0
        self._seen: dict[str, tuple[Any, float]] = {}  # by driver with running trials: its last sign, and since when
        self._alive: set[str] = set()  # those that have been seen to live

    def beat(self) -> None:
        """Give a sign of life, when it is time."""
        if time.monotonic() >= self._next_beat:
            self._beats += 1
            self.study.set_user_attr(DRIVER + self.name, self._beats)
            self._next_beat = time.monotonic() + BEAT

    def end(self) -> None:
        """Tell that this driver has no more trials."""
        self.study.set_user_attr(DRIVER + self.name, "ended")

    def fail_stale(self) -> list[int]:
        """
        Mark the running trials of dead drivers as lost.

        :return: their numbers
        """
        running = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        others = [(t, t.user_attrs[DRIVEN_BY]) for t in running if t.user_attrs.get(DRIVEN_BY, self.name) != self.name]
        self._seen = {name: sign for name, sign in self._seen.items() if name in {name for _, name in others}}
        if not others:
            return []
        signs = self.study.user_attrs
        dead = {name for name in {name for _, name in others} if self._is_dead(name, signs.get(DRIVER + name))}
        for name in dead:
            self._seen.pop(name)
        stale = [trial for trial, name in others if name in dead]
        return [t.number for t in stale if lose_trial(self.study, t._trial_id, "the driver ended before the trial")]

    def are_uncertain(self) -> bool:
        """
        Tell whether there are drivers with running trials, of which it is not known yet whether they live.

        :return: whether it is worth to wait
        """
        return bool(self._seen.keys() - self._alive)

    def _is_dead(self, name: str, sign: Any) -> bool:
        now = time.monotonic()
        before, since = self._seen.get(name, (sign, now))
        if before != sign:
            self._alive.add(name)
            since = now
        self._seen[name] = (sign, since)
        host, pid, start = name.rsplit(":", 2)
        here = host == socket.gethostname()
        gone = here and _start_of_process(int(pid)) != start
        if here and not gone:
            self._alive.add(name)
        return sign == "ended" or gone or (not here and now - since > PATIENCE)


def _start_of_process(pid: int) -> str:
    # Ticks since boot, so that another process with the same pid is not taken for it; where there is no /proc, only whether
    # there is a process
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    if Path("/proc/self/stat").exists():
        return "gone"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except OSError:
        pass
    return "there"
