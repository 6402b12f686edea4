"""tune's command line: mistakes are told in one line before anything runs, and the parts that need no workers."""

import importlib.util
import io
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import optuna
import pytest
import yaml
from rich.console import Console

from tests.databases import free_port
from tests.fakes import run_python
from tests.managers import HER, make_manager
from zoo_plugins import PluginError
from zoo_plugins.tuning import command, plots
from zoo_plugins.tuning.command import main
from zoo_plugins.tuning.progress import Progress, Row
from zoo_plugins.tuning.report import write_report
from zoo_plugins.tuning.storages import connect, parse_storage
from zoo_plugins.tuning.studies import open_study
from zoo_plugins.tuning.trial_worker import TrialWorker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--n-trials", "0"], "--n-trials: 0: expected a whole number, at least 1"),
        (["--workers", "-2"], "--workers: -2: expected a whole number, at least 1"),
        (["--cpus-per-worker", "0"], "--cpus-per-worker must be positive"),
        (["--algo", "ppoo"], "--algo: unknown algorithm 'ppoo', did you mean 'ppo'\\? Valid: .*ppo_lstm_seq"),
        (["--env", "CartPol-v1"], "--env: 'CartPol-v1' is not registered with gymnasium, did you mean 'CartPole-v1'\\?"),
        (["--gym-packages", "no_such_package"], "--gym-packages: can't import 'no_such_package': "),
        (["--conf-file", "nowhere.yml"], "--conf-file: can't read nowhere.yml: No such file"),
        (["--storage", "study.db"], "--storage: 'study.db': a journal's name has to end in .log"),
        (["--ray-address", "ray://head:10001"], "--ray-address: run tune on a node of the cluster"),
        (["-params", "batch_sise:3"], "batch_sise: 3 in -params: unknown hyperparameter, did you mean 'batch_size'"),
    ],
)
def test_mistakes(arguments, told):
    """The option, its value and what would be valid; no study is begun."""
    with pytest.raises(PluginError, match=told) as error:
        main(arguments)
    assert "\n" not in str(error.value)
    assert not list(Path("logs").glob("**/*.csv"))
    assert not any(path.stat().st_size for path in Path("logs").glob("**/journal.log"))


@pytest.mark.parametrize("module", ["ray", "rich", "matplotlib"])
def test_missing_package(monkeypatch, module):
    """What to install is told; without plots, nothing is needed for them."""
    real = importlib.util.find_spec
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == module else real(name))
    with pytest.raises(PluginError, match=rf"tune needs {module}, .*pip install 'zoo-plugins\[tune\]'"):
        main([])
    with pytest.raises(PluginError, match="--n-trials" if module == "matplotlib" else f"needs {module}"):
        main(["--no-optim-plots", "--n-trials", "0"])


def test_study_of_another_algorithm(tmp_path):
    """It is told before Ray is started, and the study stays as it was."""
    storage = parse_storage("kept.log", Path("x.log"))
    open_study(connect(storage), "mine", {"algo": "dqn", "env": "CartPole-v1"}, {})
    before = Path("kept.log").read_bytes()
    with pytest.raises(PluginError, match="study 'mine' exists with another algo: 'dqn', and not 'ppo': choose another name"):
        main(["--storage", "kept.log", "--study-name", "mine", "-n", "100"])
    assert Path("kept.log").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--workers", "3"],
            "--workers: 3: each takes 1 CPU, and there is room for 2 on 1 node with 2 CPU, 0 GPU: take fewer",
        ),
        (["--cpus-per-worker", "2.5"], "each takes 2.5 CPU, and there is room for 0 on 1 node"),
        (["--gpus-per-worker", "0.5"], "each takes 1 CPU and 0.5 GPU, and there is room for 0"),
    ],
)
def test_more_workers_than_room(local_ray, arguments, told):
    with pytest.raises(PluginError, match=told):
        main([*arguments, "-n", "100"])
    assert not Path("logs/ppo/tune/ppo_CartPole-v1/report").exists()


def test_no_such_cluster():
    """A cluster that is not there is not waited for as long as Ray itself would."""
    port = free_port()
    script = f"from zoo_plugins.tuning.cluster import have_ray; have_ray('127.0.0.1:{port}', False)"
    ended = run_python("-c", script, env={"RAY_ADDRESS": None})
    assert ended.returncode == 1
    told = f"--ray-address: can't join the cluster at 127.0.0.1:{port}: [Errno 111] Connection refused"
    assert ended.stderr.splitlines() == [told]


def test_worker_that_lacks_the_journal(tmp_path):
    """A worker on a machine without the journal says so, and makes none of its own."""
    options = command_options(["-n", "100"])
    storage = parse_storage("only_there.log", Path("x.log"))
    with pytest.raises(
        PluginError, match=r"only_there\.log is not on .*: a journal has to be on a disk that all machines share"
    ):
        TrialWorker(options, storage, "mine", 1).start()
    assert not Path("only_there.log").exists()
    connect(storage)
    with pytest.raises(PluginError, match="has no study 'mine'"):
        TrialWorker(options, storage, "mine", 1).start()


def command_options(arguments):
    from zoo_plugins.tuning.options import parse_options

    return parse_options(["--verbose", "0", *arguments])


def test_worker_prunes_and_fails(tmp_path, monkeypatch):
    """How a trial ends is in the study, with the reason; the next trial is not touched by it."""
    storage = parse_storage("study.log", Path("x.log"))
    study = open_study(connect(storage), "mine", {}, {})
    worker = TrialWorker(command_options(["-n", "100", "--algo", "dqn"]), storage, "mine", 1)
    worker.start()
    ends = iter([optuna.TrialPruned("impossible\nvalues"), PluginError("a wrong word"), ZeroDivisionError("by zero"), 2.5])

    def objective(trial):
        trial.suggest_float("x", 0, 1)
        end = next(ends)
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(worker._manager, "objective", objective)
    outcomes = [worker.run(study.ask()._trial_id) for _ in range(4)]
    assert [outcome.state for outcome in outcomes] == ["PRUNED", "FAIL", "FAIL", "COMPLETE"]
    assert [outcome.state for outcome in outcomes] == [trial.state.name for trial in study.trials]
    assert study.trials[0].user_attrs["reason"] == "impossible values"
    assert study.trials[1].user_attrs["error"] == "PluginError: a wrong word"
    assert study.trials[2].user_attrs["error"] == outcomes[2].error == "ZeroDivisionError: by zero"
    assert study.best_value == outcomes[3].value == 2.5
    # The driver has given a trial up, and the worker comes back
    trial = study.ask()
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    ends = iter([1.0])
    worker.run(trial._trial_id)
    assert study.trials[4].state is optuna.trial.TrialState.FAIL


ROWS = [
    Row(worker=0, where="node1:77", trial=4, state="running", timesteps=500, value=12.5, fps=250.0),
    Row(worker=1, where="", trial=None, state="starting", timesteps=0, value=None, fps=0.0),
]


def test_table():
    """On a terminal, a table that changes; lines that were told stay."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    study = optuna.create_study(direction="maximize")
    study.optimize(lambda trial: 3.25, n_trials=1)
    with Progress(console) as progress:
        progress.show(ROWS, 1000, 1, 20, study.best_trial, 3700.0)
        progress.tell("trial 0: complete [value] 3.25")
    printed = console.file.getvalue()
    for text in ("node1:77", "500 of 1000", "12.5", "250", "0:00:02", "starting", "trial 0: complete [value] 3.25"):
        assert text in printed
    assert "1 of 20 trials, best 3.25 (trial 0), 250 steps/s, 1:01:40 left" in printed


def test_lines(monkeypatch):
    """Elsewhere, a line a minute."""
    now = 0.0
    monkeypatch.setattr("zoo_plugins.tuning.progress.time.monotonic", lambda: now)
    console = Console(file=io.StringIO(), width=40, soft_wrap=True)
    with Progress(console) as progress:
        for _ in range(13):
            progress.show(ROWS, 1000, 0, 20, None, None)
            progress.tell_once("told once")
            now += 10
    assert console.file.getvalue().splitlines() == ["told once", *["0 of 20 trials, best none yet, 250 steps/s"] * 2]


def search(n_trials=12, names=("learning_rate", "n_steps_pow", "activation_fn")):
    study = optuna.create_study(direction="maximize", study_name="<mine>")

    def objective(trial):
        values = [trial.suggest_float(names[0], 1e-5, 1e-2, log=True)]
        values += [trial.suggest_int(names[1], 3, 8)] if len(names) > 1 else []
        values += [len(trial.suggest_categorical(names[2], ["tanh", "relu", None]) or "")] if len(names) > 2 else []
        for step in range(3):
            trial.report(sum(values) * step - 10, step)
        if trial.number == 2:
            raise optuna.TrialPruned
        return sum(values) - 10

    study.optimize(objective, n_trials=n_trials)
    return study


def test_report(tmp_path):
    """One page holds all; text is not taken for HTML; plots that can't be drawn are left out, and not there from before."""
    study = search()
    page = write_report(study, tmp_path / "report", "# <block>\n", {"Kept in": "a&b"}, with_plots=True).read_text()
    for text in ("Study &lt;mine&gt;", "# &lt;block&gt;", "a&amp;b", "11 complete, 1 pruned"):
        assert text in page
    assert page.count("<tr>") == 11
    assert page.count("data:image/png;base64,") == 4
    figures = {path.name for path in (tmp_path / "report").glob("*.png")}
    assert figures == {"history.png", "importances.png", "slice.png", "intermediate.png"}
    one = write_report(search(1), tmp_path / "report", "", {}, with_plots=True).read_text()
    assert one.count("data:image/png;base64,") == 3
    assert not (tmp_path / "report/importances.png").exists()
    assert "None were drawn" in write_report(search(1), tmp_path / "other", "", {}, with_plots=False).read_text()


def test_importances():
    """What decides comes first; too few trials can't tell."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: trial.suggest_float("a", 0, 1) * 0 + trial.suggest_float("b", 0, 1), n_trials=60)
    assert next(iter(plots.importances(study))) == "b"
    assert plots.importances(search(1)) == {}


@pytest.mark.parametrize("kwargs", [{"copy_info_dict": True}, "dict(copy_info_dict=True)"])
def test_block(tmp_path, kwargs):
    """A trial becomes YAML that the zoo reads: classes by name, HER's parameters with the others of the buffer."""
    params = dict(
        one_minus_gamma=0.01,
        learning_rate=1e-3,
        batch_size_pow=6,
        train_freq=4,
        subsample_steps=2,
        exploration_fraction=0.1,
        exploration_final_eps=0.05,
        target_update_interval=10,
        net_arch="small",
        n_sampled_goal=3,
        goal_selection_strategy="final",
    )
    before = {**HER, "n_timesteps": 50, "replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": kwargs, "gamma": 0.5}
    manager = make_manager(tmp_path, "dqn", "BitFlip-v0", before, optimize_hyperparameters=True)
    manager.setup_experiment()
    found = {name: optuna.distributions.CategoricalDistribution([value]) for name, value in params.items()}
    text = manager.write_trial(optuna.trial.create_trial(params=params, distributions=found, value=1.0), "Trial 3")
    assert text.startswith("# Trial 3\nBitFlip-v0:\n")
    block = yaml.safe_load(text)["BitFlip-v0"]
    assert block["gamma"] == 0.99
    assert block["batch_size"] == 64
    assert block["replay_buffer_kwargs"] == dict(copy_info_dict=True, n_sampled_goal=3, goal_selection_strategy="final")


def test_dashboard(tmp_path):
    """The documented command serves the study of a journal."""
    pytest.importorskip("optuna_dashboard")
    study = open_study(connect(parse_storage("study.log", Path("x.log"))), "to be seen", {}, {})
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    port = free_port()
    program = Path(sys.executable).with_name("optuna-dashboard")
    server = subprocess.Popen(
        [program, "study.log", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies", timeout=20) as answer:
            assert b"to be seen" in answer.read()
    finally:
        server.terminate()
        server.wait(timeout=20)
