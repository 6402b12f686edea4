"""The scripts and the plugin in examples/ work as a user runs them."""

import ast
import re
import shutil
from pathlib import Path

import pytest
import yaml

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


@pytest.fixture(scope="module")
def installed_plugin(tmp_path_factory):
    """The plugin, copied and installed as a user would; the folder that holds its sources, and that of its installation."""
    folder = tmp_path_factory.mktemp("plugin")
    sources, site = folder / "my_plugin", folder / "site"
    shutil.copytree(EXAMPLES / "my_plugin", sources, ignore=shutil.ignore_patterns("__pycache__"))
    install = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(sources)]
    done = run_python("-m", "pip", "install", *install)
    assert done.returncode == 0, done.stderr
    return sources, site


@pytest.mark.slow
def test_plugin_trains(installed_plugin, tmp_path):
    """The zoo trains with the plugin's algorithm, YAML file and VecEnv, writes what is its own, and shows the agent."""
    _, site = installed_plugin
    common = ["--algo", "ppo_fade", "--env", "CartPole-v1", "-f", str(tmp_path)]
    done = run_python(
        *("-m", "rl_zoo3.train", *common, "-n", "512", "--eval-freq", "256", "--eval-episodes", "1"),
        *("-params", "vec_env_class:'threads'", "final_ent_coef:0.001"),
        path=site,
    )
    assert done.returncode == 0, done.stderr
    assert "train/" in done.stdout
    assert "ent_coef" in done.stdout
    config = yaml.load((tmp_path / "ppo_fade/CartPole-v1_1/CartPole-v1/config.yml").read_text(), yaml.UnsafeLoader)
    assert (config["n_steps"], config["final_ent_coef"], config["vec_env_class"]) == (32, 0.001, "threads")
    done = run_python("-m", "rl_zoo3.enjoy", *common, "--no-render", "-n", "501", path=site)
    assert done.returncode == 0, done.stderr
    assert "Mean reward" in done.stdout


@pytest.mark.slow
def test_plugin_refuses_bad_input(installed_plugin, tmp_path):
    """A misspelt hyperparameter of the plugin is one line, with what was meant."""
    _, site = installed_plugin
    options = ["--algo", "ppo_fade", "--env", "CartPole-v1", "-f", str(tmp_path / "logs"), "-params", "final_ent_coeff:0.1"]
    done = run_python("-m", "rl_zoo3.train", *options, path=site)
    assert done.returncode == 1
    assert "did you mean 'final_ent_coef'?" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_tests_of_the_plugin(installed_plugin):
    """The plugin's own tests pass where it is installed, and there is one at least for each of its classes."""
    sources, site = installed_plugin
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(sources / "tests"), path=site)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 9
