"""The zoo with ``vec_env_class: ray``: training in workers, evaluation here, and trials that leave nothing behind."""

from pathlib import Path

import pytest
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO as PPOAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.managers import HER, LSTM, PPO, SAC, make_manager, set_up
from zoo_plugins import RayVecEnv

pytestmark = [
    pytest.mark.usefixtures("local_ray"),
    # SB3's EvalCallback would like to evaluate in workers too
    pytest.mark.filterwarnings("ignore:Training and eval env are not of the same type"),
]
RAY = dict(n_envs=3, vec_env_class="ray", vec_env_kwargs=dict(envs_per_worker=2))
IN_HER = dict(replay_buffer_class="HerReplayBuffer", learning_starts=10, buffer_size=100)


@pytest.mark.parametrize(
    ("algo", "env", "block"),
    [
        ("ppo", "CartPole-v1", dict(PPO, normalize=True)),
        ("ppo_lstm_seq", "CartPole-v1", LSTM),
        ("sac", "Pendulum-v1", dict(SAC, frame_stack=2)),
        ("dqn", "BitFlip-v0", {**HER, **IN_HER, "n_timesteps": 60}),
    ],
)
def test_training(tmp_path, algo, env, block):
    """Any algorithm trains in workers, and is evaluated on a DummyVecEnv in the same wrappers."""
    manager = make_manager(tmp_path, algo, env, {**block, **RAY})
    model, vec_env, eval_env = set_up(manager)
    assert isinstance(vec_env.unwrapped, RayVecEnv)
    assert isinstance(eval_env.unwrapped, DummyVecEnv)
    assert len(vec_env.unwrapped._workers) == 2
    manager.learn(model)
    assert vec_env.unwrapped.closed
    eval_env.close()


def test_trials_leave_nothing_behind(local_ray, tmp_path, monkeypatch):
    """Trials of -optimize free workers and descriptors, also those whose training or constructor fails."""
    seen = []
    manager = make_manager(
        tmp_path,
        "ppo",
        "CartPole-v1",
        {**PPO, **RAY, "n_envs": 2},
        optimize_hyperparameters=True,
        n_trials=5,
        n_evaluations=1,
        sampler="random",
        pruner="none",
        n_startup_trials=0,
    )

    class Failing(PPOAlgorithm):
        def __init__(self, *args, **kwargs):
            seen.append(len(list(Path("/proc/self/fd").iterdir())))
            super().__init__(*args, **kwargs)
            if len(seen) == 2:
                raise AssertionError("a constructor that fails")

        def learn(self, *args, **kwargs):
            if len(seen) == 3:
                raise AssertionError("a training that fails")
            return super().learn(*args, **kwargs)

    monkeypatch.setitem(ALGOS, "ppo", Failing)
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    assert len(seen) == 5
    assert max(seen[1:]) <= seen[1] + 1
