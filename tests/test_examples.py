"""The scripts and the plugin in examples/ work as a user runs them."""

import ast
from pathlib import Path

import pytest

import zoo_plugins
from tests.fakes import run_python

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = {path.stem: path for path in sorted(EXAMPLES.glob("*.py"))}
# Those for algorithms, buffers and VecEnvs; the others serve them
CLASSES = {name for name in zoo_plugins.__all__ if name.endswith(("PPO", "VecEnv", "HerReplayBuffer"))}


def test_every_class_has_a_script():
    """Each algorithm, VecEnv and replay buffer is imported by one of the scripts."""
    imported = {
        alias.name
        for path in SCRIPTS.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("zoo_plugins")
        for alias in node.names
    }
    assert len(CLASSES) >= 8
    assert imported >= CLASSES


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[name] for name in SCRIPTS] + [["vector_envs", "--envpool"]], ids=" ".join)
def test_script_runs(arguments):
    """Each script trains for as long as it is told, evaluates, and leaves no process behind."""
    name, *options = arguments
    if name == "ray_workers":
        pytest.importorskip("ray")
    if "--envpool" in options:
        pytest.importorskip("envpool")
    done = run_python(str(SCRIPTS[name]), "--timesteps", "512", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mean reward: " in done.stdout
    assert "Traceback" not in done.stderr
