"""What runs in a worker: one trial after the other, by an experiment manager that is made once."""

import argparse
import contextlib
import gc
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch as th
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed

from zoo_plugins.exp_manager import PluginExperimentManager
from zoo_plugins.registry import PluginError
from zoo_plugins.tuning.options import import_packages, make_manager
from zoo_plugins.tuning.storages import Storage, connect
from zoo_plugins.tuning.studies import ERROR

# Attributes of a trial
SECONDS = "seconds"
TIMESTEPS = "timesteps"
REASON = "reason"  # why it was pruned, if not by the pruner


@dataclass(frozen=True)
class Outcome:
    """
    How a trial ended.

    :param state: Name of its state
    :param value: Its value, None if it has none
    :param error: Why it failed
    :param seconds: Duration
    :param timesteps: Timesteps of its training
    """

    state: str
    value: float | None
    error: str
    seconds: float
    timesteps: int


class TrialTimesteps(BaseCallback):
    """Knows how far the training of a trial is: its ``num_timesteps``."""

    def _on_step(self) -> bool:
        return True


class TrialWorker:
    """
    Runs trials of a study.

    Nothing is done before :meth:`start`, which can tell what goes wrong.

    :param options: The options of the command line
    :param storage: Where the study is kept
    :param study_name: Its name
    :param n_threads: Threads that PyTorch may use
    """

    def __init__(self, options: argparse.Namespace, storage: Storage, study_name: str, n_threads: int):
        self._options = options
        self._storage = storage
        self._study_name = study_name
        self._n_threads = n_threads
        self._timesteps = TrialTimesteps()
        self._trial: int | None = None
        self._manager: PluginExperimentManager
        self._study: optuna.Study

    def start(self) -> tuple[str, int]:
        """
        Make the experiment manager, and find the study.

        :return: name of the machine, and id of the process
        :raises PluginError: if something is missing here that the driver has
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        import_packages(self._options)
        # Gone again before the first trial: a process that is killed could not remove it
        with tempfile.TemporaryDirectory(prefix="zoo_plugins_tune_") as folder:
            self._manager = make_manager(self._options, Path(folder))
        self._manager.add_trial_callback(self._timesteps)
        host = socket.gethostname()
        if self._storage.kind == "journal" and not Path(self._storage.target).is_file():
            raise PluginError(
                f"--storage: {self._storage} is not on {host}: a journal has to be on a disk that all machines share; "
                "or take a database"
            )
        try:
            self._study = optuna.load_study(
                study_name=self._study_name, storage=connect(self._storage), pruner=self._manager.make_pruner()
            )
        except KeyError as error:
            raise PluginError(f"--storage: {self._storage}, as {host} sees it, has no study {self._study_name!r}") from error
        return host, os.getpid()

    def run(self, trial_id: int) -> Outcome:
        """
        Run a trial, and tell the study how it ended.

        :param trial_id: Its id in the storage
        :return: the same, for the driver
        """
        started = time.monotonic()
        # Of this thread: PyTorch forgets what another one has set
        th.set_num_threads(self._n_threads)
        # Of all trials: Optuna's cache of a database only lets trials be changed that it has seen
        trials = self._study.get_trials(deepcopy=False)
        number = next(trial.number for trial in trials if trial._trial_id == trial_id)
        # By the number, so that neither the number of workers nor their speed decides what is sampled
        seed = int(np.random.SeedSequence([self._options.seed, number]).generate_state(1)[0])
        set_random_seed(seed)
        self._study.sampler = self._manager.make_sampler(seed)
        self._timesteps.num_timesteps = 0
        self._trial = number
        trial = Trial(self._study, trial_id)
        attributes: dict[str, Any] = {}
        value = None
        try:
            value = self._manager.objective(trial)
            state = TrialState.COMPLETE
        except optuna.TrialPruned as pruned:
            state = TrialState.PRUNED
            if str(pruned):
                attributes[REASON] = _one_line(pruned)
        except (Exception, SystemExit) as error:
            state = TrialState.FAIL
            attributes[ERROR] = f"{type(error).__name__}: {_one_line(error)}"
        finally:
            self._trial = None
        attributes.update({SECONDS: round(time.monotonic() - started, 3), TIMESTEPS: self._timesteps.num_timesteps})
        # The driver may have given this worker up
        with contextlib.suppress(UpdateFinishedTrialError, ValueError):
            for name, attribute in attributes.items():
                trial.set_user_attr(name, attribute)
            self._study.tell(trial, value, state)
        vars(self._timesteps).update(model=None, locals={}, globals={})
        gc.collect()
        return Outcome(state.name, value, attributes.get(ERROR, ""), attributes[SECONDS], attributes[TIMESTEPS])

    def progress(self) -> tuple[int | None, int]:
        """
        Tell how far the trial is. This is called while it runs, in another thread.

        :return: number of the trial, None if there is none, and timesteps of its training
        """
        return self._trial, self._timesteps.num_timesteps


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
