"""What ppo_tensor learns with the hyperparameters of its YAML file."""

from pathlib import Path

import pytest
import torch as th
import yaml
from stable_baselines3.common.evaluation import evaluate_policy

from tests.managers import make_manager

BLOCKS = yaml.safe_load((Path(__file__).parents[1] / "hyperparams" / "ppo_tensor.yml").read_text())
N_EPISODES = 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("env_id", "threshold"),
    [
        ("TensorCartPole-v1", 475),  # gymnasium's
        ("TensorPendulum-v1", -200),  # what the zoo's tuned agents reach
    ],
)
def test_solved(tmp_path, env_id, threshold, seed):
    """Played greedily, in environments of gymnasium's dynamics, each seed's agent reaches the threshold."""
    th.set_num_threads(1)
    manager = make_manager(tmp_path, "ppo_tensor", env_id, BLOCKS[env_id], seed=seed)
    model, _ = manager.setup_experiment()
    manager.learn(model)
    assert model.num_timesteps >= BLOCKS[env_id]["n_timesteps"]
    env = manager.create_envs(10, eval_env=True)
    env.seed(seed + 10_000)
    mean_return, _ = evaluate_policy(model, env, n_eval_episodes=N_EPISODES)
    env.close()
    assert mean_return >= threshold
