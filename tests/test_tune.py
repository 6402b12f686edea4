"""``python -m zoo_plugins tune`` in workers of Ray: studies that are finished, continued, hit by losses, or stopped."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.trial import TrialState

from tests.databases import postgres_server
from tests.managers import make_manager
from zoo_plugins import PluginError
from zoo_plugins.tuning.command import main
from zoo_plugins.tuning.storages import connect, parse_storage

DQN = dict(policy="MlpPolicy", n_timesteps=60, buffer_size=100, learning_starts=1000)
ROOT = Path(__file__).parent.parent
NAME = "dqn_Obedient-v0"


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Arguments of a search with tiny trials, and the folder that gives orders to their environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders").mkdir()
    (tmp_path / "conf.yml").write_text(yaml.safe_dump({"Obedient-v0": DQN}))
    return [
        *("--algo", "dqn", "--env", "Obedient-v0", "--gym-packages", "tests.tune_envs", "--conf-file", "conf.yml"),
        *("--env-kwargs", f"folder:{str(tmp_path / 'orders')!r}", "--eval-episodes", "1", "--seed", "3", "--device", "cpu"),
        *("--n-evaluations", "3", "--pruner", "none"),
    ]


def journal(folder):
    return parse_storage(None, Path(folder, "logs/dqn/tune", NAME, "journal.log"))


def load(storage, name=NAME):
    return optuna.load_study(study_name=name, storage=connect(storage))


def states(study):
    return [trial.state.name for trial in study.trials]


@pytest.mark.usefixtures("local_ray")
def test_study(arguments, tmp_path, capsys):
    """Two workers share the trials; a report is written; the same command with more trials goes on."""
    assert main([*arguments, "--n-trials", "5", "--workers", "2"]) == 0
    study = load(journal(tmp_path))
    assert states(study) == ["COMPLETE"] * 5
    assert {trial.user_attrs["worker"] for trial in study.trials} == {0, 1}
    assert len(list((tmp_path / "orders").glob("process-*"))) >= 2
    assert all(trial.user_attrs["timesteps"] >= 60 for trial in study.trials)
    assert [sorted(trial.intermediate_values) for trial in study.trials] == [[1, 2, 3]] * 5
    printed = capsys.readouterr().out
    assert f"Best trial: {study.best_trial.number}, value {study.best_value:.6g}\n" in printed
    assert printed.count(": complete, value ") == 5

    # The report
    report = tmp_path / "logs/dqn/tune" / NAME / "report"
    (block,) = yaml.safe_load((report / "best.yml").read_text()).items()
    assert block[0] == "Obedient-v0"
    manager = make_manager(tmp_path, "dqn", "Obedient-v0", block[1], env_kwargs={"folder": str(tmp_path)})
    model, _ = manager.setup_experiment()
    assert model.learning_rate(1.0) == pytest.approx(study.best_params["learning_rate"])
    assert model.gamma == pytest.approx(1 - study.best_params["one_minus_gamma"])
    rows = list(csv.DictReader((report / "trials.csv").open()))
    assert [float(row["value"]) for row in rows] == [trial.value for trial in study.trials]
    page = (report / "index.html").read_text()
    for name in ("history", "importances", "slice", "intermediate"):
        assert (report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert page.count("data:image/png;base64,") == 4
    assert 'src="data' in page
    assert "http" not in page

    # What is sampled depends on the seed and on the number of the trial, and not on who runs it
    assert main([*arguments, "--n-trials", "5", "--workers", "1", "--study-name", "again", "--no-optim-plots"]) == 0
    again = load(parse_storage(None, tmp_path / "logs/dqn/tune/again/journal.log"), "again")
    assert [trial.params for trial in again.trials] == [trial.params for trial in study.trials]
    assert len({json.dumps(trial.params) for trial in study.trials}) == 5

    # More trials, and none
    assert main([*arguments, "--n-trials", "6", "--workers", "2", "--no-optim-plots"]) == 0
    assert states(load(journal(tmp_path))) == ["COMPLETE"] * 6
    capsys.readouterr()
    assert main([*arguments, "--n-trials", "6", "--no-optim-plots"]) == 0
    assert "is ready" not in capsys.readouterr().out
    assert len(load(journal(tmp_path)).trials) == 6


@pytest.mark.usefixtures("local_ray")
def test_killed_worker(arguments, tmp_path, capsys):
    """A worker that is killed loses only its trial, which is tried again, by PostgreSQL; the other one does not notice."""
    (tmp_path / "orders/kill").touch()
    (tmp_path / "postgres").mkdir()
    with postgres_server(tmp_path / "postgres") as url:
        assert main([*arguments, "--n-trials", "6", "--workers", "2", "--storage", url, "--no-optim-plots"]) == 0
        study = load(parse_storage(url, Path("x.log")))
        (lost,) = [trial for trial in study.trials if trial.state is TrialState.FAIL]
        (retry,) = [trial for trial in study.trials if "retry_of" in trial.user_attrs]
        assert sorted(states(study)) == ["COMPLETE"] * 6 + ["FAIL"]
        assert "tuner:***@" in study.user_attrs["command"]
    assert retry.user_attrs["retry_of"] == lost.number
    assert retry.params == lost.params
    assert "was lost" in lost.user_attrs["lost"]
    printed = capsys.readouterr().out
    assert f"trial {lost.number}: fail\ntrial {lost.number} is tried again\n" in printed
    assert printed.count("is ready (") == 3
    assert "secret" not in printed + (tmp_path / "logs/dqn/tune" / NAME / "report/index.html").read_text()


@pytest.mark.usefixtures("local_ray")
def test_broken_environment(arguments, tmp_path):
    """Trials that all fail in the same way end the study with one line; the storage keeps them, and why."""
    (tmp_path / "orders/raise").touch()
    with pytest.raises(PluginError, match="first 3 trials all failed with RuntimeError: the simulator is broken") as told:
        main([*arguments, "--n-trials", "20", "--workers", "1"])
    assert "kept in" in str(told.value)
    study = load(journal(tmp_path))
    assert states(study)[:3] == ["FAIL"] * 3
    assert study.trials[0].user_attrs["error"] == "RuntimeError: the simulator is broken"
    # Fewer trials than it takes to be sure
    with pytest.raises(PluginError, match=r"no trial finished \(1 fail\); the last one failed with RuntimeError: .* kept in "):
        main([*arguments, "--n-trials", "1", "--study-name", "one"])


@pytest.mark.usefixtures("local_ray")
def test_ctrl_c(arguments, tmp_path):
    """Ctrl-C: the running trial is marked, the report written, no process left; the same command goes on, with that trial."""
    assert main([*arguments, "--n-trials", "1", "--no-optim-plots"]) == 0
    (tmp_path / "orders/wait").touch()
    arguments += ["--n-trials", "3", "--workers", "1", "--no-optim-plots"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MARK": str(tmp_path)}
    variables.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "zoo_plugins", "tune", *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (tmp_path / "orders/waiting").exists() or process.poll() is not None, 100)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        printed = process.communicate(timeout=60)[0]
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert "Best trial: 0, value " in printed
    assert "report/index.html" in printed
    assert "Stopped by SIGINT. The same command goes on with the study.\n" in printed
    wait_until(lambda: not processes_with(f"MARK={tmp_path}"), 20)
    study = load(journal(tmp_path))
    assert states(study) == ["COMPLETE", "FAIL"]
    assert study.trials[1].user_attrs["lost"] == "interrupted by SIGINT"

    (tmp_path / "orders/wait").unlink()
    assert main(arguments) == 0
    study = load(journal(tmp_path))
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[2].params == study.trials[1].params
    assert study.trials[2].user_attrs["retry_of"] == 1


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def processes_with(text):
    """List the processes that have a text in their environment variables."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


@pytest.mark.usefixtures("local_ray")
def test_search_space(arguments, tmp_path):
    """Workers sample what a block says; best.yml and --trial-id build its trial; another block is refused."""

    def write(space):
        (tmp_path / "conf.yml").write_text(yaml.safe_dump({"Obedient-v0": {**DQN, "search_space": space}}))

    space = {"n_envs": {"choices": [1, 3]}, "learning_rate": {"low": "1e-4", "high": "1e-3", "log": True}, "replace": True}
    write(space)
    assert main([*arguments, "--n-trials", "4", "--workers", "2", "--no-optim-plots"]) == 0
    study = load(journal(tmp_path))
    assert states(study) == ["COMPLETE"] * 4
    assert all(set(trial.params) == {"n_envs", "learning_rate"} for trial in study.trials)
    assert {trial.user_attrs["timesteps"] for trial in study.trials} == {60}
    (block,) = yaml.safe_load((tmp_path / "logs/dqn/tune" / NAME / "report/best.yml").read_text()).values()
    assert block == {**DQN, **study.best_params}

    storage = str(tmp_path / "logs/dqn/tune" / NAME / "journal.log")
    for trial in study.trials:
        more = dict(storage=storage, study_name=NAME, trial_id=trial.number, env_kwargs={"folder": str(tmp_path)})
        model, _ = make_manager(tmp_path, "dqn", "Obedient-v0", DQN, **more).setup_experiment()
        assert (model.n_envs, model.learning_rate(1.0)) == (trial.params["n_envs"], trial.params["learning_rate"])

    before = Path(storage).read_bytes()
    for other in ({**space, "n_envs": {"choices": [1, 2]}}, None):
        write(other)
        with pytest.raises(PluginError, match=f"study '{NAME}' exists with another search space: .*: choose another name"):
            main([*arguments, "--n-trials", "5", "--workers", "2"])
    write({"n_envs": {"low": 3, "high": 1}})
    with pytest.raises(PluginError, match=r"search_space\.n_envs: .* in .*conf\.yml: low: 3 is above high: 1"):
        main([*arguments, "--n-trials", "5", "--workers", "2"])
    assert Path(storage).read_bytes() == before
