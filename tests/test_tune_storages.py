"""--storage of tune: what is understood, what is told when it can't be used, and that all kinds keep a study."""

import socket
import sys
import time
from pathlib import Path

import optuna
import pytest

from tests.databases import free_port, postgres_server
from zoo_plugins import PluginError
from zoo_plugins.tuning import storages
from zoo_plugins.tuning.storages import Storage, connect, parse_storage, serve


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        ("grpc://node7:13000", "grpc", "node7:13000"),
        ("postgresql://me:secret@db/zoo", "database", "postgresql+psycopg://me:secret@db/zoo"),
        ("postgresql+psycopg2://db/zoo", "database", "postgresql+psycopg2://db/zoo"),
        ("mysql://me@db:3307/zoo", "database", "mysql+pymysql://me@db:3307/zoo"),
        ("sqlite:///here.db", "database", "sqlite:///here.db"),
        ("/there/study.log", "journal", "/there/study.log"),
    ],
)
def test_forms(text, kind, target):
    """A driver is chosen for databases whose URL names none."""
    assert parse_storage(text, Path("x.log")) == Storage(kind, target)


def test_default_is_a_journal(tmp_path, monkeypatch):
    """Paths are absolute, as workers may have another working directory."""
    monkeypatch.chdir(tmp_path)
    assert parse_storage(None, Path("logs/journal.log")) == Storage("journal", str(tmp_path / "logs/journal.log"))
    assert parse_storage("here.log", Path("x.log")) == Storage("journal", str(tmp_path / "here.log"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("study.db", r"'study.db': a journal's name has to end in \.log, .* Valid: path/to/journal\.log, postgresql://"),
        ("postgres://db/zoo", "unknown kind 'postgres', did you mean 'postgresql'\\? Valid: "),
        ("redis://db", "unknown kind 'redis'\\. Valid: "),
        ("grpc://node7", "expected grpc://host:port\\. Valid: "),
        ("grpc://node7:port", "--storage: 'grpc://node7:port': .* Valid: "),
        ("://", "--storage: '://': .* Valid: "),
    ],
)
def test_wrong_forms(text, told):
    """One line names the option, its value and what would be valid."""
    with pytest.raises(PluginError, match=told):
        parse_storage(text, Path("x.log"))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_nobody_listens(kind):
    """The host is named, the password is not."""
    port = free_port()
    with pytest.raises(PluginError, match=rf"can't use {kind}.*//me:\*\*\*@127.0.0.1:{port}/zoo on 127.0.0.1: .*refused"):
        connect(parse_storage(f"{kind}://me:secret@127.0.0.1:{port}/zoo", Path("x.log")))


def test_somebody_else_listens():
    """A server that never answers is given up in time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        storage = parse_storage(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/zoo", Path("x.log"))
        started = time.monotonic()
        with pytest.raises(PluginError, match=r"on 127.0.0.1: .*(timeout|no answer)"):
            connect(storage, timeout=0.5)
        assert time.monotonic() - started < storages.CONNECT_TIMEOUT


def test_no_proxy(monkeypatch):
    monkeypatch.setattr(storages, "CONNECT_TIMEOUT", 0.4)
    port = free_port()
    with pytest.raises(PluginError, match=f"can't use grpc://127.0.0.1:{port}: no storage proxy answers there"):
        connect(Storage("grpc", f"127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("module", "text", "package"),
    [("psycopg", "postgresql://127.0.0.1:{}/x", "psycopg"), ("pymysql", "mysql://127.0.0.1:{}/x", "PyMySQL")],
)
def test_driver_is_missing(monkeypatch, module, text, package):
    """What to install is told."""
    monkeypatch.setitem(sys.modules, module, None)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(PluginError, match=rf"pip install '{package}"):
        connect(parse_storage(text.format(server.getsockname()[1]), Path("x.log")))


def test_folder_that_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PluginError, match=r"can't use .*/file/study\.log: .*(File exists|Not a directory)"):
        connect(parse_storage(str(tmp_path / "file/study.log"), Path("x.log")))


def check_study(storage):
    """Keep a trial in a study, and read it through another connection."""
    study = optuna.create_study(storage=connect(storage), study_name="kept", direction="maximize")
    trial = study.ask()
    other = optuna.load_study(storage=connect(storage), study_name="kept")
    x = optuna.trial.Trial(other, trial._trial_id).suggest_float("x", 0, 1)
    other.tell(trial.number, 3.0)
    assert study.best_trial.params == {"x": x}
    assert study.best_value == 3.0


def test_postgres(postgres):
    storage = parse_storage(postgres, Path("x.log"))
    check_study(storage)
    assert str(storage).startswith("postgresql+psycopg://tuner:***@127.0.0.1")


def test_wrong_password(postgres):
    with pytest.raises(PluginError, match=r"on 127.0.0.1: .*password authentication failed for user \"tuner\"") as told:
        connect(parse_storage(postgres.replace("secret", "guess"), Path("x.log")))
    assert "guess" not in str(told.value)


def test_proxy_in_front_of_postgres(postgres):
    """Optuna's storage proxy lets many workers share the connections of one process."""
    proxy = serve(connect(parse_storage(postgres, Path("x.log"))), "127.0.0.1")
    assert proxy.kind == "grpc"
    study = optuna.create_study(storage=connect(proxy), study_name="by proxy")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    behind = optuna.load_study(storage=connect(parse_storage(postgres, Path("x.log"))), study_name="by proxy")
    assert [trial.params for trial in behind.trials] == [trial.params for trial in study.trials]


@pytest.mark.parametrize("text", ["{}/deep/study.log", "sqlite:///{}/study.db"])
def test_files(tmp_path, text):
    check_study(parse_storage(text.format(tmp_path), Path("x.log")))
