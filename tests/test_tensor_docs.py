"""What docs/tensor_envs.md shows is true."""

import re
from pathlib import Path

import gymnasium as gym
import yaml

from tests.fakes import run_python
from zoo_plugins import TensorVecEnv, envs, registry
from zoo_plugins.vec_envs import TensorStep

PAGE = (Path(__file__).parent.parent / "docs" / "tensor_envs.md").read_text()


def code_blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_examples_run():
    """Both scripts run as they are, with fewer timesteps, and the point learns to move to its target."""
    first, own = code_blocks("python")
    done = run_python("-c", first.replace("20_000", "256"))
    assert done.returncode == 0, done.stderr
    evaluated = """
from stable_baselines3.common.evaluation import evaluate_policy
print(evaluate_policy(model, vec_env, n_eval_episodes=100)[0])
"""
    done = run_python("-c", own.replace('device="cpu").learn', 'device="cpu", seed=0).learn') + evaluated)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert float(done.stdout) > -8


def test_hyperparameters_train(tmp_path):
    """The zoo trains with the block that is shown: one batch, its environment id, an evaluation, and enjoy afterwards."""
    (block,) = code_blocks("yaml")
    config = tmp_path / "my.yml"
    config.write_text(block.replace("n_envs: 1024", "n_envs: 16").replace("8192", "64"))
    common = ["--algo", "ppo", "--env", "TensorCartPole-v1", "-f", str(tmp_path)]
    arguments = ["--conf-file", str(config), "-n", "1000", "--eval-freq", "512", "--eval-episodes", "2"]
    done = run_python("-m", "rl_zoo3.train", *common, *arguments, "-P")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Eval num_timesteps" in done.stdout
    done = run_python("-m", "rl_zoo3.enjoy", *common, "--no-render", "-n", "501")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Mean reward" in done.stdout


def test_simulator_is_short():
    """The class of the example is about 30 lines."""
    own = code_blocks("python")[1]
    (cls,) = re.findall(r"^class .*?(?=\n\n\n)", own, flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in cls.splitlines() if line.strip() and '"""' not in line]) <= 32


def test_table_of_environments():
    """Ids, twins and lengths of episodes are those that are registered."""
    rows = re.findall(r"^\| `(Tensor[\w-]+)` \| .*?`([\w-]+)` \| (\d+)", PAGE, flags=re.MULTILINE)
    assert len(rows) == len(envs.TENSOR_ENVS)
    for env_id, twin, n_steps in rows:
        assert env_id == f"Tensor{twin}"
        assert gym.spec(env_id).max_episode_steps == int(n_steps)


def test_table_of_a_step():
    """Every field of a step is in the table, in order."""
    assert tuple(re.findall(r"^\| `(\w+)` \| (?:`\(n|as `obs`)", PAGE, flags=re.MULTILINE)) == TensorStep._fields


def test_words():
    """Words for vec_env_class are registered, and stand for the classes that are named."""
    (block,) = code_blocks("yaml")
    block = yaml.safe_load(block)
    assert registry.resolve("vec_envs", block["TensorCartPole-v1"]["vec_env_class"], {}) is TensorVecEnv
    for word, name in re.findall(r"^\| `(\w+)` \| `(\w+VecEnv)` \|", PAGE, flags=re.MULTILINE):
        assert registry.resolve("vec_envs", word, {}).__name__ == name
