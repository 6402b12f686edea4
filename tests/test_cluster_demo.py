"""scripts/cluster_demo.sh: training survives the loss of a node, and nothing survives the script."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
NODE = r"\(node \w{6}\)"
PLACES = rf"(?:  [\d.]+ {NODE}: environments \[[\d, ]+\]\n)"
# Of Ray, at any moment
RAYLET = re.compile(r".*\(raylet\).*\n(?:\t.*\n)*")
# What is printed, with the third node's loss in groups: its environments twice, and the timesteps before and after the step
OUTPUT = re.compile(
    rf"PPO on CartPole-v1, with three workers:\n{PLACES}{{3}}"
    r"\d+ timesteps: mean reward of the last \d+ episodes [\d.]+\n"
    r"(\d+) timesteps: the third node was killed\n"
    r"Warning: RayVecEnv lost worker \d \(environments (\d) to (\d), process \d+ on node [\d.]+\): .* It is replaced .*\n"
    rf"(\d+) timesteps: worker_restarted in environments (\[[\d, ]+\]), after [\d.]+ s\n{PLACES}{{2}}"
    r"Training has finished:\n(\d+) timesteps: mean reward of the last \d+ episodes [\d.]+\n"
)


def has_namespaces():
    """Try to make a network namespace with a bridge."""
    name = f"zoo-test-{os.getpid()}"
    commands = f"ip netns add {name} && ip -n {name} link add eth0 type bridge; made=$?; ip netns delete {name}; exit $made"
    return subprocess.run(["bash", "-c", commands], capture_output=True, check=False).returncode == 0


MODES = [
    pytest.param("", marks=pytest.mark.skipif(not has_namespaces(), reason="no network namespaces"), id="namespaces"),
    pytest.param("1", id="simulated"),
]


@pytest.fixture
def start(tmp_path):
    """Start the script with this environment's packages; afterwards look for what it left."""
    marker = f"STARTED_BY={uuid.uuid4()}"
    started, temporary = [], tempfile.TemporaryDirectory()  # its name is shorter than that of tmp_path: sockets need that
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in (
        ("python", f'exec {sys.executable} "$@"'),
        ("ray", f'exec {sys.executable} -m ray.scripts.scripts "$@"'),
        ("pip", ""),
    ):
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)

    def start_script(simulated, *arguments):
        changes = dict([marker.split("=")], VENV=str(tmp_path), TMPDIR=temporary.name, SIMULATED=simulated)
        started.append(
            subprocess.Popen(
                ["bash", str(ROOT / "scripts" / "cluster_demo.sh"), *arguments],
                env={**os.environ, **changes, "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                # As in a terminal, even where the tests run in the background of a shell, which ignores it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        )
        return started[-1]

    yield start_script
    (script,) = started
    script.terminate()
    script.wait(timeout=60)
    assert not list(Path("/run/netns").glob(f"zoo-{script.pid}-*"))
    with temporary as folder:
        assert not list(Path(folder).glob("zoo.*"))
    assert not [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if marker in read(path)]


def read(path):
    try:
        return path.read_text(errors="replace")
    except OSError:  # a process that has just ended
        return ""


@pytest.mark.parametrize("simulated", MODES)
def test_loss_of_a_node(start, simulated):
    """Exactly the environments of the third node are marked, one step later, and training reaches its end."""
    printed, _ = (script := start(simulated, "--timesteps", "4000")).communicate(timeout=300)
    assert script.returncode == 0, printed
    found = OUTPUT.search(RAYLET.sub("", printed))
    assert found, printed
    before, first, last, after, marked, end = found.groups()
    assert marked == str(list(range(int(first), int(last) + 1)))
    assert int(last) - int(first) == 2
    assert int(after) == int(before) + 9
    assert int(end) >= 4000
    addresses = set(re.findall(rf"  ([\d.]+) {NODE}", printed))
    assert addresses == {"10.0.0.1", "10.0.0.2", "10.0.0.3"} if not simulated else len(addresses) == 1


@pytest.mark.parametrize("simulated", MODES)
@pytest.mark.parametrize("how", ["ctrl-c", "terminate"])
def test_interrupted(start, simulated, how):
    """Whether all of it is interrupted, or the script alone is told to end, nothing stays."""
    script = start(simulated)
    for line in script.stdout:
        if line.startswith("PPO"):
            break
    if how == "ctrl-c":
        os.killpg(script.pid, signal.SIGINT)
    else:
        script.terminate()
    printed, _ = script.communicate(timeout=60)
    assert script.returncode == 130, printed
