"""Environments that come with the package: by their ids in scripts, in the zoo and in its workers."""

import json
import warnings

import gymnasium as gym
import pandas as pd
import pytest
import yaml
from gymnasium import spaces

from tests.fakes import run_python
from zoo_plugins import envs

BLOCK = dict(
    policy="MultiInputPolicy",
    n_timesteps=200,
    n_envs=2,
    buffer_size=1000,
    learning_starts=20,
    batch_size=16,
    train_freq=1,
    gradient_steps=1,
    replay_buffer_class="FastHerReplayBuffer",
    policy_kwargs="dict(net_arch=[8])",
    # A tuple, which only this notation of the zoo gives: Monitor takes no list
    monitor_kwargs="dict(info_keywords=('is_success',))",
)


def run_script(name, *arguments):
    """Run a script of the zoo that must succeed; return its output."""
    done = run_python("-m", f"rl_zoo3.{name}", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "UserWarning" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("env_id", "kwargs", "action_space"),
    [
        ("BitFlipping-v0", {}, spaces.Discrete(6)),
        ("BitFlipping-v0", {"n_bits": 8}, spaces.Discrete(8)),
        ("zoo_plugins.envs:BitFlippingContinuous-v0", {}, spaces.Box(-1, 1, (6,))),
    ],
)
def test_bit_flipping(env_id, kwargs, action_space):
    """The id makes SB3's environment with as many bits and steps as asked for, and gymnasium warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make(env_id, **kwargs)
        env.reset(seed=0)
        env.step(env.action_space.sample())
    assert env.spec.id == env_id.rpartition(":")[2]
    assert env.action_space == action_space
    n_bits = env.observation_space["desired_goal"].n
    assert env.unwrapped.max_steps == n_bits == kwargs.get("n_bits", 6)


def test_registering_again():
    """What is registered stays as it is, without a warning."""
    before = {env_id: gym.spec(env_id) for env_id in envs.ENVS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs.register()
    assert all(gym.spec(env_id) is spec for env_id, spec in before.items())


def test_importing_it_is_light():
    """Registering imports neither torch nor SB3."""
    done = run_python(
        "-c", "import sys, zoo_plugins.envs; print({'torch', 'stable_baselines3', 'rl_zoo3'} & set(sys.modules))"
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("zoo_plugins", [None, "0"])
def test_known_to_the_zoo(zoo_plugins):
    """Importing rl_zoo3 is enough; switched off, it is as it was."""
    code = (
        "import json, rl_zoo3, gymnasium as gym; print(json.dumps([name for name in gym.registry if 'BitFlipping' in name]))"
    )
    done = run_python("-c", code, env={"ZOO_PLUGINS": zoo_plugins})
    assert json.loads(done.stdout) == ([] if zoo_plugins else list(envs.ENVS))


@pytest.mark.parametrize(
    ("algo", "env_id", "vec_env"), [("dqn", "BitFlipping-v0", "dummy"), ("sac", "BitFlippingContinuous-v0", "subproc")]
)
def test_train_and_enjoy(tmp_path, algo, env_id, vec_env):
    """The zoo's scripts train and show agents, in worker processes too, and tell the rate of success."""
    config = tmp_path / "conf.yml"
    config.write_text(yaml.safe_dump({env_id: {**BLOCK, "env_kwargs": {"n_bits": 3}, "vec_env_class": vec_env}}))
    common = ["--algo", algo, "--env", env_id, "-f", tmp_path / "logs"]
    frequencies = ["--eval-freq", 100, "--eval-episodes", 2, "--log-interval", 1]
    output = run_script("train", *common, "--conf-file", config, *frequencies)
    assert "success_rate" in output
    assert "Success rate: " in output  # of the evaluation
    folder = tmp_path / "logs" / algo / f"{env_id}_1"
    successes = pd.read_csv(folder / "0.monitor.csv", skiprows=1)["is_success"]
    assert len(successes) >= 200 // 2 // 3  # episodes have 3 steps at most, and the last one may be unfinished
    assert "Success rate: " in run_script("enjoy", *common, "--no-render", "-n", 30)
