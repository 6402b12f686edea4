"""Tests of a plugin: the entry points, each class alone, and a training through the door that users take."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import optuna
import pytest
from my_plugin.fading_ppo import FadingPPO
from my_plugin.recent_replay_buffer import RecentReplayBuffer
from my_plugin.specs import convert_ppo_fade_params, sample_ppo_fade_params
from my_plugin.thread_vec_env import ThreadVecEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from zoo_plugins import registry

WORDS = {"algos": "ppo_fade", "vec_envs": "threads", "buffers": "RecentReplayBuffer"}


@pytest.mark.parametrize(("group", "word"), WORDS.items())
def test_registered(group: str, word: str) -> None:
    """Each word is there, and can be imported."""
    (plugin,) = [plugin for plugin in registry.find_plugins(group) if plugin.name == word]
    assert plugin.problem is None
    if group == "algos":
        assert plugin.load_algo().cls is FadingPPO
    else:
        assert isinstance(plugin.load(), type)


def test_entropy_bonus_fades() -> None:
    """The coefficient is the first in the first rollout, halfway in the middle; the user's value stays in the model."""
    model = FadingPPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, ent_coef=0.4, final_ent_coef=0.2)
    model.learn(32)
    seen = []
    for left in (1.0, 0.5, 0.0):
        model._current_progress_remaining = left
        model.train()
        seen.append(model.logger.name_to_value["train/ent_coef"])
    assert seen == pytest.approx([0.4, 0.3, 0.2])
    assert model.ent_coef == 0.4
    with pytest.raises(ValueError, match="final_ent_coef must be at least 0, not -1"):
        FadingPPO("MlpPolicy", "CartPole-v1", final_ent_coef=-1)


def test_converter_gives_what_the_sampler_gave() -> None:
    """Hyperparameters of a trial can be had again from what the study keeps, as --trial-id does."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(10):
        trial = study.ask()
        sampled = sample_ppo_fade_params(trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})
        assert convert_ppo_fade_params(trial.params) == sampled
        assert 1e-8 <= sampled["final_ent_coef"] <= 1e-2


def test_threads_change_nothing() -> None:
    """Environments do in threads what they do one after the other."""
    found = []
    for cls in (DummyVecEnv, ThreadVecEnv):
        make_env: Any = make_vec_env
        env = make_env("CartPole-v1", 3, seed=0, vec_env_cls=cls)
        steps = [env.reset(), *(env.step(np.array([i % 2, 1, 0])) for i in range(60))]
        env.close()
        found.append([steps[0], *(part for step in steps[1:] for part in step[:3])])
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_array_equal(expected, actual)
    with pytest.raises(ValueError, match="n_threads must be at least 1, not 0"):
        ThreadVecEnv([lambda: gym.make("CartPole-v1")], n_threads=0)


@pytest.mark.parametrize("n_added", [30, 130])
def test_new_transitions_are_preferred(n_added: int) -> None:
    """A buffer, full or not, gives the newest steps as often as it was told, and none that are not there."""
    space = gym.spaces.Box(0, 1000, (1,), np.float32)
    buffer = RecentReplayBuffer(100, space, gym.spaces.Discrete(2), device="cpu", n_envs=2, recent_share=0.5, n_recent=10)
    for i in range(n_added):
        obs = np.full((2, 1), i, np.float32)
        buffer.add(obs, obs + 1, np.zeros((2, 1)), np.full(2, i), np.zeros(2), [{}, {}])
    steps = buffer.sample(20_000).rewards.numpy().ravel()
    held = min(n_added, 50)
    assert set(steps) == set(range(n_added - held, n_added))
    # Half of the samples, and those of the other half that happen to be new
    assert np.mean(steps >= n_added - 10) == pytest.approx(0.5 + 0.5 * 10 / held, abs=0.02)


@pytest.mark.parametrize(
    ("algo", "params"),
    [
        ("ppo_fade", ["vec_env_class:'threads'", "n_envs:2"]),
        ("dqn", ["replay_buffer_class:'RecentReplayBuffer'", "replay_buffer_kwargs:dict(n_recent=50)", "learning_starts:20"]),
    ],
)
def test_zoo_trains(tmp_path: Path, algo: str, params: list[str]) -> None:
    """The zoo's own command knows the words."""
    options = ["--env", "CartPole-v1", "-n", "128", "--eval-freq", "-1", "-f", str(tmp_path), "-params", *params]
    done = subprocess.run([sys.executable, "-m", "rl_zoo3.train", "--algo", algo, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / algo / "CartPole-v1_1" / "CartPole-v1.zip").exists()
