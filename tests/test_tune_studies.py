"""Studies of tune: whose they are, what counts, and what becomes of trials that were lost."""

import os
import subprocess
import sys

import optuna
import pytest
from optuna.trial import TrialState

from zoo_plugins import PluginError
from zoo_plugins.tuning import studies
from zoo_plugins.tuning.studies import Drivers, best_trial, count_states, lose_trial, n_spent, open_study, retry_lost

IDENTITY = {"algo": "ppo", "env": "CartPole-v1", "n_timesteps": 100}


@pytest.fixture
def storage():
    return optuna.storages.InMemoryStorage()


@pytest.fixture
def study(storage):
    return open_study(storage, "own", IDENTITY, {"command": "tune"})


def ask(study, **attributes):
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    for key, value in attributes.items():
        trial.set_user_attr(key, value)
    return trial


def test_continue(storage, study):
    """The same study is opened again, and keeps what was known first."""
    study.tell(ask(study), 1.0)
    again = open_study(storage, "own", IDENTITY, {"command": "another"})
    assert again.best_value == 1.0
    assert again.user_attrs["command"] == "tune"
    assert again.user_attrs["zoo_plugins_algo"] == "ppo"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("algo", "dqn", "study 'own' exists with another algo: 'ppo', and not 'dqn': choose another name"),
        ("env", "Pendulum-v1", "another env: 'CartPole-v1'"),
        ("n_timesteps", 200, "another n timesteps: 100, and not 200"),
    ],
)
def test_study_of_something_else(storage, study, key, value, told):
    before = study.user_attrs
    with pytest.raises(PluginError, match=told):
        open_study(storage, "own", {**IDENTITY, key: value}, {"more": 1})
    assert study.user_attrs == before


def test_study_that_minimizes(storage):
    optuna.create_study(storage=storage, study_name="down")
    with pytest.raises(PluginError, match="study 'down' does not maximize one value"):
        open_study(storage, "down", IDENTITY, {})


def test_study_of_the_zoo(storage):
    """A study that -optimize made is continued, its trials count, and it gets an identity."""
    made = optuna.create_study(storage=storage, study_name="zoo", direction="maximize")
    made.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    study = open_study(storage, "zoo", IDENTITY, {})
    assert n_spent(study) == 2
    with pytest.raises(PluginError, match="another algo"):
        open_study(storage, "zoo", {**IDENTITY, "algo": "dqn"}, {})


def test_lost_trial_is_retried_once(study):
    """The same hyperparameters, one more time; the second loss is final. Only what ended by itself, or twice, is spent."""
    first = ask(study)
    assert lose_trial(study, first._trial_id, "worker 0\ndied")
    assert study.trials[0].user_attrs["lost"] == "worker 0 died"
    assert n_spent(study) == 0
    assert retry_lost(study) == [0]
    assert retry_lost(study) == []
    second = ask(study)
    assert second.number == 1
    assert second.params == first.params
    assert study.trials[1].user_attrs["retry_of"] == 0
    assert n_spent(study) == 1
    lose_trial(study, second._trial_id, "again")
    assert retry_lost(study) == []
    assert n_spent(study) == 1
    assert count_states(study) == "2 fail"


def test_losing_what_has_ended(study):
    """A worker that dies a moment after it has told the result loses nothing."""
    trial = ask(study)
    study.tell(trial, 2.0)
    assert not lose_trial(study, trial._trial_id, "too late")
    assert best_trial(study).value == 2.0
    assert retry_lost(study) == []


def test_failed_trial_is_not_retried(study):
    study.tell(ask(study), state=TrialState.FAIL)
    assert retry_lost(study) == []
    assert n_spent(study) == 1
    assert best_trial(study) is None


def test_best_is_the_first_of_equals(study):
    for value in (1.0, 3.0, 3.0):
        study.tell(ask(study), value)
    assert best_trial(study).number == 1


def test_trials_of_a_dead_process(study):
    """A driver of this machine that is gone is known to be at once, although it has given a sign of life just before."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    name = f"{studies.socket.gethostname()}:{ended.pid}:{studies._start_of_process(ended.pid)}"
    ended.wait()
    study.set_user_attr("zoo_plugins_driver_" + name, 7)
    ask(study, driver=name)
    drivers = Drivers(study)
    own = ask(study, driver=drivers.name)
    foreign = ask(study)  # of the zoo's -optimize
    assert drivers.fail_stale() == [0]
    assert study.trials[0].user_attrs["lost"] == "the driver ended before the trial"
    assert [t.number for t in study.get_trials(states=[TrialState.RUNNING])] == [own.number, foreign.number]
    assert not drivers.are_uncertain()


def test_trials_of_a_process_that_runs(study):
    name = f"{studies.socket.gethostname()}:{os.getppid()}:{studies._start_of_process(os.getppid())}"
    ask(study, driver=name)
    drivers = Drivers(study)
    assert drivers.fail_stale() == []
    assert not drivers.are_uncertain()


def test_drivers_elsewhere(study, monkeypatch):
    """Of another machine's driver, only its signs of life are known: it is dead when they do not change for a minute."""
    now = 1000.0
    monkeypatch.setattr(studies.time, "monotonic", lambda: now)
    for name in ("alive", "silent", "ended"):
        study.set_user_attr(f"zoo_plugins_driver_{name}:1:1", "ended" if name == "ended" else 1)
        ask(study, driver=f"{name}:1:1")
    drivers = Drivers(study)
    assert drivers.fail_stale() == [2]
    assert drivers.are_uncertain()
    now += 30
    study.set_user_attr("zoo_plugins_driver_alive:1:1", 2)
    assert drivers.fail_stale() == []
    assert drivers.are_uncertain()
    now += 31
    assert drivers.fail_stale() == [1]
    assert not drivers.are_uncertain()


def test_own_signs_of_life(study, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(studies.time, "monotonic", lambda: now)
    drivers = Drivers(study)
    signs = []
    for _ in range(3):
        drivers.beat()
        signs.append(study.user_attrs["zoo_plugins_driver_" + drivers.name])
        now += studies.BEAT / 2
    drivers.end()
    assert signs == [1, 1, 2]
    assert study.user_attrs["zoo_plugins_driver_" + drivers.name] == "ended"
