"""A PostgreSQL server that a test starts, in a folder of its own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """
    Find a port that nobody listens on.

    :return: its number
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def find_postgres() -> Path | None:
    """
    Find the programs of a PostgreSQL server.

    :return: their folder, None if there is none
    """
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return found[-1].parent if found else None


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """
    Run a PostgreSQL server.

    :param folder: An existing folder for its data
    :return: URL of an empty database, whose user needs a password
    """
    programs = find_postgres()
    if programs is None:
        # .ci/run installs it, and sets this variable
        assert not os.environ.get("ZOO_PLUGINS_NEED_POSTGRES"), "PostgreSQL is not installed"
        pytest.skip("needs a PostgreSQL server (Debian package postgresql)")
    as_user: list[str] = []
    if os.geteuid() == 0:
        # It refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres", "postgres")
        for parent in folder.parents[:-1]:
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o001)
    data, port = folder / "data", free_port()
    (folder / "password").write_text("secret\n")
    (folder / "password").chmod(0o644)
    initdb = [programs / "initdb", "-D", data, "-U", "tuner", "-A", "scram-sha-256", "--pwfile", folder / "password", "-N"]
    subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=folder)
    options = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "fsync=off"]
    server = subprocess.Popen(
        [*as_user, programs / "postgres", "-D", data, *options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-U", "tuner", "-q"]
        deadline = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode != 0:
            assert server.poll() is None, "PostgreSQL ended"
            assert time.monotonic() < deadline, "PostgreSQL does not get ready"
            time.sleep(0.05)
        yield f"postgresql://tuner:secret@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # without waiting for its clients
        server.wait(timeout=30)
