"""The zoo with ``vec_env_class: ray``; trials that leave nothing behind; and buffers when a worker is lost."""

import functools
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from rl_zoo3 import ALGOS
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3 import PPO as PPOAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.managers import HER, LSTM, PPO, SAC, make_manager, set_up
from tests.ray_envs import OrderedEnv
from zoo_plugins import RayVecEnv, SeqRecurrentPPO

pytestmark = [
    pytest.mark.usefixtures("local_ray"),
    # SB3's EvalCallback does not know that evaluation is on a DummyVecEnv by design
    pytest.mark.filterwarnings("error:Training and eval env are not of the same type"),
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
        ("dqn", "BitFlip-v0", {**HER, **IN_HER, "n_timesteps": 60, "replay_buffer_class": "FastHerReplayBuffer"}),
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


def test_other_differences_of_evaluation_are_told(tmp_path):
    """SB3's warning is kept for those that are a mistake, and filters of warnings are what they were."""
    manager = make_manager(tmp_path, "ppo", "CartPole-v1", {**PPO, **RAY})
    model, _, eval_env = set_up(manager)
    manager.callbacks[-1].eval_env = VecNormalize(eval_env)
    before = list(warnings.filters)
    with pytest.raises(UserWarning, match=r"RayVecEnv object .* != .*VecNormalize object"):
        manager.learn(model)
    assert warnings.filters == before


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


class Killing(BaseCallback):
    """Kill the worker of environment 0 at some calls."""

    def __init__(self, *at):
        super().__init__()
        self.at = at

    def _on_step(self):
        if self.n_calls in self.at:
            os.kill(self.training_env.unwrapped._workers.of_env(0).hello.pid, signal.SIGKILL)
        return True


def test_lost_worker_in_hindsight_replay():
    """The episode that was lost ends as a timeout with the last observation that was seen, and the next one is whole."""
    vec_env = RayVecEnv([functools.partial(BitFlippingEnv, n_bits=8, max_steps=5)] * 2, envs_per_worker=1)
    # With this seed, no goal is reached before the first loss
    kwargs = dict(learning_starts=20, buffer_size=60, seed=0, device="cpu")
    model = DQN("MultiInputPolicy", vec_env, replay_buffer_class=HerReplayBuffer, **kwargs)
    model.exploration_schedule = lambda _: 1.0
    with pytest.warns(UserWarning, match="lost worker 0"):
        model.learn(50, callback=Killing(2, 13))
    buffer = model.replay_buffer
    for name in ("observation", "achieved_goal"):
        nexts, observations = buffer.next_observations[name], buffer.observations[name]
        for t in range(24):
            for env in range(2):
                if not buffer.dones[t, env]:
                    np.testing.assert_array_equal(nexts[t, env], observations[t + 1, env])
    np.testing.assert_array_equal(
        buffer.next_observations["observation"][[2, 13], 0], buffer.observations["observation"][[2, 13], 0]
    )
    assert buffer.dones[[2, 13], 0].all()
    assert buffer.timeouts[[2, 13], 0].all()
    assert buffer.ep_length[0, 0] == 3
    vec_env.close()


def test_lost_worker_in_recurrent_rollout():
    """A new episode starts in the rollout where the worker was lost, so that the LSTM starts from zeros."""
    vec_env = RayVecEnv([functools.partial(OrderedEnv, length=100)] * 2, envs_per_worker=1)
    model = SeqRecurrentPPO("MlpLstmPolicy", vec_env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    with pytest.warns(UserWarning, match="lost worker 0"):
        model.learn(16, callback=Killing(3))
    starts = model.rollout_buffer.episode_starts
    assert starts[:, 0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    assert starts[:, 1].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    vec_env.close()
