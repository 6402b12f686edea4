"""Where a study is kept: what ``--storage`` means, and whether it can be reached."""

import queue
import socket
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from zoo_plugins.registry import PluginError, did_you_mean

# By the name of a database in a URL: SQLAlchemy's dialect with the driver that is used unless one is named, and who brings it
DRIVERS = {
    "postgresql": ("postgresql+psycopg", "psycopg[binary]"),
    "mysql": ("mysql+pymysql", "PyMySQL"),
    "mariadb": ("mariadb+pymysql", "PyMySQL"),
    "sqlite": ("sqlite", ""),
}
FORMS = (
    "path/to/journal.log, postgresql://user@host/database, mysql://user@host/database, grpc://host:port or sqlite:///file.db"
)
CONNECT_TIMEOUT = 10.0  # seconds
DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}

T = TypeVar("T")


@dataclass(frozen=True)
class Storage:
    """
    A storage that can be opened in any process.

    :param kind: "journal", "database" or "grpc"
    :param target: Path of the journal, URL of the database, or ``host:port`` of Optuna's storage proxy
    """

    kind: str
    target: str

    def open(self) -> BaseStorage:
        """
        Connect to it.

        :return: Optuna's storage
        :raises PluginError: if a journal's folder can't be made or the driver of a database is missing
        :raises Exception: what the driver raises if there is nobody, or nobody who lets us in
        """
        if self.kind == "journal":
            Path(self.target).parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(JournalFileBackend(self.target))
        if self.kind == "grpc":
            return _open_proxy(self.target)
        url = make_url(self.target)
        # A process has few threads that need the database, and there may be hundreds of processes
        options: dict[str, object] = {"pool_pre_ping": True}
        if url.get_backend_name() != "sqlite":
            options.update(pool_size=1, max_overflow=3, connect_args={"connect_timeout": int(CONNECT_TIMEOUT / 2)})
        try:
            return get_storage(RDBStorage(self.target, engine_kwargs=options))
        except ImportError as error:
            package = DRIVERS[url.get_backend_name()][1]
            raise PluginError(f"its driver is missing ({error}): pip install '{package}', or 'zoo-plugins[tune]'") from error

    def __str__(self) -> str:
        if self.kind == "grpc":
            return f"grpc://{self.target}"
        return self.target if self.kind == "journal" else make_url(self.target).render_as_string(hide_password=True)


def parse_storage(text: str | None, default: Path) -> Storage:
    """
    Read the value of ``--storage``.

    :param text: The value, None if there is none
    :param default: Path of the journal to use then
    :return: the storage; a driver is chosen for databases whose URL names none
    :raises PluginError: if it is no storage
    """
    if text is None:
        return Storage("journal", str(default.resolve()))
    if "://" not in text:
        if not text.endswith(".log"):
            raise _wrong(text, "a journal's name has to end in .log, by which rl_zoo3 knows it too")
        return Storage("journal", str(Path(text).resolve()))
    if text.startswith("grpc://"):
        return Storage("grpc", _host_and_port(text))
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise _wrong(text, str(error)) from error
    name = url.get_backend_name()
    if name not in DRIVERS:
        raise _wrong(text, f"unknown kind {name!r}{did_you_mean(name, (*DRIVERS, 'grpc'))}")
    if "+" not in url.drivername:
        url = url.set(drivername=DRIVERS[name][0])
    return Storage("database", url.render_as_string(hide_password=False))


def connect(storage: Storage, timeout: float = CONNECT_TIMEOUT) -> BaseStorage:
    """
    Open a storage, or tell why that is not possible.

    :param storage: The storage
    :param timeout: How long it may take, in seconds
    :return: Optuna's storage
    :raises PluginError: if it can't be reached until then, naming the host
    """
    url = make_url(storage.target) if storage.kind == "database" else None
    try:
        if url is not None and url.get_backend_name() != "sqlite" and url.host:
            _within(timeout, lambda: _knock(url))
        return _within(timeout, storage.open)
    except (Exception, PluginError) as error:
        reason = str(getattr(error, "orig", None) or error) or type(error).__name__
        host = f" on {url.host}" if url is not None and url.host else ""
        raise PluginError(f"--storage: can't use {storage}{host}: {reason}") from error


def serve(storage: BaseStorage, host: str) -> Storage:
    """
    Start Optuna's gRPC storage proxy in a thread of this process, until it ends.

    :param storage: The storage behind it
    :param host: Address to listen on
    :return: the storage that workers open
    """
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        target = optuna.storages.run_grpc_proxy_server
        threading.Thread(target=target, args=(storage,), kwargs=dict(host=host, port=port), daemon=True).start()
        proxy = Storage("grpc", f"{host}:{port}")
        connect(proxy)
    return proxy


def _open_proxy(target: str) -> BaseStorage:
    host, _, port = target.rpartition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            proxy = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
            proxy.wait_server_ready(timeout=CONNECT_TIMEOUT / 2)
        except ImportError as error:
            raise PluginError(f"grpcio is missing ({error}): pip install grpcio, or 'zoo-plugins[tune]'") from error
        except ConnectionError as error:
            raise PluginError("no storage proxy answers there") from error
    return proxy


def _host_and_port(text: str) -> str:
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError as error:
        raise _wrong(text, str(error)) from error
    if not parts.hostname or port is None or parts.path.strip("/"):
        raise _wrong(text, "expected grpc://host:port")
    return f"{parts.hostname}:{port}"


def _knock(url: URL) -> None:
    # Drivers try every address of a host for their whole timeout
    socket.create_connection((url.host, url.port or DEFAULT_PORTS[url.get_backend_name()]), CONNECT_TIMEOUT / 2).close()


def _within(seconds: float, function: Callable[[], T]) -> T:
    # A thread, as name servers and drivers have their own idea of patience; a daemon, which does not hold up the end
    answers: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def _wrong(text: str, problem: str) -> PluginError:
    return PluginError(f"--storage: {text!r}: {problem if problem.endswith(('.', '?')) else problem + '.'} Valid: {FORMS}")
