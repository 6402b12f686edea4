"""hyperparams/her.yml: what --algo each block is for, that it is accepted, and where its values are from."""

import json
import re
import zipfile
from pathlib import Path

import benchmark_her_learning
import gymnasium as gym
import numpy as np
import pytest
import rl_zoo3
import yaml

from tests.fakes import run_python
from tests.managers import make_manager
from zoo_plugins.buffers import FastHerReplayBuffer

FILE = Path(__file__).parents[1] / "hyperparams" / "her.yml"
BLOCKS = yaml.safe_load(FILE.read_text())
ALGOS = {env_id: algo for algo, env_id in re.findall(r"^# --algo (\w+)\n(?:#.*\n)*(\S+):", FILE.read_text(), re.MULTILINE)}
ZOO = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams" / "tqc.yml").read_text())
OTHERS = [env_id for env_id in BLOCKS if env_id != "BitFlipping-v0"]
PACKAGES = {"Fetch": "gymnasium_robotics", "Panda": "panda_gym", "parking": "highway_env", "BitFlipping": "zoo_plugins.envs"}
EPISODES = {"BitFlipping-v0": 6, "parking-v0": 500}  # steps, 50 in all others


def import_package(env_id):
    """Import what registers an environment, or skip the test."""
    (package,) = (package for prefix, package in PACKAGES.items() if env_id.startswith(prefix))
    pytest.importorskip(package)


def test_algorithms_are_told():
    """A comment before each block tells the algorithm, which is another one from file to file elsewhere."""
    assert list(ALGOS) == list(BLOCKS)
    assert set(ALGOS.values()) == {"dqn", "tqc"}


@pytest.mark.parametrize("env_id", BLOCKS)
def test_blocks_are_accepted(env_id, tmp_path, monkeypatch):
    """Every block passes all checks of the manager, whether its environment is installed or not."""
    if env_id not in gym.registry:
        monkeypatch.setitem(gym.registry, env_id, gym.spec("BitFlipping-v0"))
    manager = make_manager(tmp_path, ALGOS[env_id], env_id, config=str(FILE))
    hyperparams, saved = manager.read_hyperparameters()
    assert saved["gradient_steps"] == "n_envs"
    hyperparams, *_ = manager._preprocess_hyperparams(hyperparams)
    assert manager.n_envs == 8
    assert hyperparams["replay_buffer_class"] is FastHerReplayBuffer
    if env_id != "parking-v0":
        assert manager.monitor_kwargs == {"info_keywords": ("is_success",)}


@pytest.mark.parametrize("env_id", BLOCKS)
def test_learning_starts_after_an_episode(env_id):
    """Before the first update, each environment has finished an episode."""
    assert BLOCKS[env_id]["learning_starts"] > BLOCKS[env_id]["n_envs"] * EPISODES.get(env_id, 50)


@pytest.mark.parametrize("env_id", OTHERS)
def test_values_of_the_zoo(env_id):
    """What the zoo tuned has the zoo's values, but for what many environments need."""
    block = dict(BLOCKS[env_id])
    zoos = dict(ZOO[env_id if env_id in ZOO else f"{env_id.partition('-')[0]}-v1"])
    assert (block.pop("n_envs"), block.pop("gradient_steps")) == (8, "n_envs")
    assert block.pop("learning_starts") >= zoos.pop("learning_starts", 100)
    assert block.pop("monitor_kwargs") == "dict(info_keywords=('is_success',))"
    assert (block.pop("replay_buffer_class"), zoos.pop("replay_buffer_class")) == ("FastHerReplayBuffer", "HerReplayBuffer")
    assert block.pop("replay_buffer_kwargs") == eval(zoos.pop("replay_buffer_kwargs"))
    assert block == zoos


def test_values_that_are_shown_to_learn():
    """BitFlipping has the values of the published learning curves."""
    shown = benchmark_her_learning.CASES["6bits"]
    block = BLOCKS["BitFlipping-v0"]
    assert {key: block[key] for key in shown["hyperparams"]} == shown["hyperparams"]
    assert block["n_timesteps"] == shown["timesteps"]
    assert block["n_envs"] in shown["n_envs"]


@pytest.mark.parametrize("env_id", BLOCKS)
def test_environments(env_id):
    """The environment has goals, tells success, and computes the rewards of many goals at once."""
    import_package(env_id)
    env = gym.make(env_id)
    env.reset(seed=0)
    obs, reward, *over, info = env.step(env.action_space.sample())
    achieved, desired = (np.stack([obs[key]] * 5) for key in ("achieved_goal", "desired_goal"))
    rewards = env.get_wrapper_attr("compute_reward")(achieved, desired, [{}] * 5)
    np.testing.assert_allclose(rewards, [reward] * 5, rtol=1e-5)
    n_steps = 1
    while not any(over):
        _, _, *over, info = env.step(env.action_space.sample())
        n_steps += 1
    assert n_steps <= EPISODES.get(env_id, 50)
    assert info["is_success"] in (0, 1)
    env.close()


def run_zoo(script, *arguments):
    done = run_python("-m", f"rl_zoo3.{script}", "--algo", "dqn", "--env", "BitFlipping-v0", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_command_line(tmp_path):
    """The command at the top of the file trains with an update per timestep, and the agent can be watched."""
    run_zoo("train", "--conf-file", FILE, "-n", 400, "--eval-freq", -1, "-f", tmp_path)
    with zipfile.ZipFile(tmp_path / "dqn" / "BitFlipping-v0_1" / "BitFlipping-v0.zip") as archive:
        model = json.loads(archive.read("data"))
    assert model["num_timesteps"] == 400
    # After the steps with which there are 304, 312, ... 400 timesteps
    assert model["_n_updates"] == 13 * 8
    assert "Success rate: " in run_zoo("enjoy", "--no-render", "-n", 50, "-f", tmp_path)
