"""What ``benchmark`` compares. Each is a short form of a script in scripts/, whose results are in the documentation."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from zoo_plugins import FastHerReplayBuffer, SeqRecurrentPPO, TensorPPO, TensorVecEnv
from zoo_plugins.benchmark.timing import Comparison, Pair

# Those of CartPoleNoVel-v1 in the zoo's ppo_lstm.yml, without the schedules
RECURRENT: dict[str, Any] = dict(
    n_steps=32,
    batch_size=256,
    n_epochs=20,
    gamma=0.98,
    gae_lambda=0.8,
    learning_rate=1e-3,
    policy_kwargs=dict(
        ortho_init=False,
        activation_fn=th.nn.ReLU,
        lstm_hidden_size=64,
        enable_critic_lstm=True,
        net_arch=dict(pi=[64], vf=[64]),
    ),
)


def hide_velocity(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """
    Make an agent need memory.

    :param env: CartPole
    :return: the same without velocities
    """
    return gym.wrappers.TransformObservation(env, lambda obs: obs * np.array([1, 0, 1, 0], np.float32), env.observation_space)


def _learning_pair(theirs: OnPolicyAlgorithm, ours: OnPolicyAlgorithm, n_rollouts: int) -> Pair:
    def close() -> None:
        for model in (theirs, ours):
            assert model.env is not None
            model.env.close()

    size = n_rollouts * theirs.n_steps * theirs.n_envs
    theirs_learns, ours_learns = (partial(model.learn, size, reset_num_timesteps=False) for model in (theirs, ours))
    return Pair(theirs_learns, ours_learns, size, close)


def compare_recurrent(n_envs: int = 8, n_rollouts: int = 2, **hyperparams: Any) -> Pair:
    """
    Train recurrent PPO: with the same seed, both sides learn the same weights.

    :param n_envs: Number of environments
    :param n_rollouts: Rollouts of a turn
    :param hyperparams: Changes to the hyperparameters
    :return: RecurrentPPO and SeqRecurrentPPO
    """

    def make(cls: type[OnPolicyAlgorithm]) -> OnPolicyAlgorithm:
        env = VecNormalize(make_vec_env("CartPole-v1", n_envs, seed=0, wrapper_class=hide_velocity), gamma=0.98)
        make_model: Any = cls
        return make_model("MlpLstmPolicy", env, seed=0, device="cpu", **{**RECURRENT, **hyperparams})

    return _learning_pair(make(RecurrentPPO), make(SeqRecurrentPPO), n_rollouts)


def compare_tensor(n_envs: int, n_steps: int, batch_size: int, n_rollouts: int = 1) -> Pair:
    """
    Train PPO without memory.

    :param n_envs: Number of environments
    :param n_steps: Steps of each per rollout
    :param batch_size: Size of a minibatch, in timesteps
    :param n_rollouts: Rollouts of a turn
    :return: PPO on a DummyVecEnv, and TensorPPO on a TensorVecEnv
    """
    options: dict[str, Any] = dict(n_steps=n_steps, batch_size=batch_size, n_epochs=4, seed=0, device="cpu")
    theirs = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=0), **options)
    ours = TensorPPO("MlpPolicy", TensorVecEnv("TensorCartPole-v1", n_envs, device="cpu"), **options)
    return _learning_pair(theirs, ours, n_rollouts)


def compare_her(
    n_envs: int = 8, buffer_size: int = 100_000, batch_size: int = 256, n_samples: int = 8, n_steps: int = 25, length: int = 50
) -> Pair:
    """
    Sample from full buffers, as the updates after each step do.

    :param n_envs: Number of environments
    :param buffer_size: Number of transitions
    :param batch_size: Number of transitions of a sample
    :param n_samples: Samples after each step
    :param n_steps: Steps of a turn
    :param length: Steps of an episode
    :return: HerReplayBuffer and FastHerReplayBuffer
    """
    env = make_vec_env(BitFlippingEnv, n_envs, env_kwargs=dict(n_bits=16))
    episode = _make_up_episode(env, length)

    def make(cls: type[HerReplayBuffer]) -> "partial[None]":
        make_buffer: Any = cls
        buffer = make_buffer(buffer_size, env.observation_space, env.action_space, env, device="cpu", n_envs=n_envs)
        steps = itertools.cycle(episode)
        for step in itertools.islice(steps, buffer.buffer_size):
            buffer.add(*step)
        return partial(_add_and_sample, buffer, steps, n_steps, n_samples, batch_size)

    return Pair(make(HerReplayBuffer), make(FastHerReplayBuffer), n_steps * n_samples, env.close)


def _add_and_sample(
    buffer: HerReplayBuffer, steps: Iterator[tuple[Any, ...]], n_steps: int, n_samples: int, batch_size: int
) -> None:
    for step in itertools.islice(steps, n_steps):
        buffer.add(*step)
        for _ in range(n_samples):
            buffer.sample(batch_size)


def _make_up_episode(env: VecEnv, length: int) -> list[tuple[Any, ...]]:
    """Make up the arguments of ``add()`` for an episode of all environments, which is cut at its end."""
    rng = np.random.default_rng(0)
    assert isinstance(env.observation_space, gym.spaces.Dict)
    observations = [
        {key: rng.integers(0, 2, (env.num_envs, *space.shape)) for key, space in env.observation_space.items() if space.shape}
        for _ in range(length + 1)
    ]
    steps: list[tuple[Any, ...]] = []
    for i, (obs, next_obs) in enumerate(itertools.pairwise(observations)):
        is_last = i == length - 1
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        infos = [{"TimeLimit.truncated": is_last} for _ in range(env.num_envs)]
        steps.append((obs, next_obs, actions, np.full(env.num_envs, -1.0), np.full(env.num_envs, is_last), infos))
    return steps


COMPARISONS = {
    "recurrent": Comparison(
        "RecurrentPPO",
        "SeqRecurrentPPO",
        "learn(), CartPole without velocities, 8 environments, hyperparameters of the zoo",
        "timesteps",
        "docs/results/recurrent.md",
        compare_recurrent,
    ),
    "her": Comparison(
        "HerReplayBuffer",
        "FastHerReplayBuffer",
        "add() and 8 times sample(256), 8 environments, a buffer full of 100,000 transitions",
        "batches",
        "docs/results/her.md",
        compare_her,
    ),
    "tensor": Comparison(
        "PPO on DummyVecEnv",
        "TensorPPO on TensorVecEnv",
        "learn(), CartPole, 1024 environments",
        "timesteps",
        "docs/algos/ppo_tensor.md",
        lambda: compare_tensor(1024, 32, 8192),
    ),
    # Few environments, where there is less to gain
    "tensor-8": Comparison(
        "PPO on DummyVecEnv",
        "TensorPPO on TensorVecEnv",
        "learn(), CartPole, 8 environments",
        "timesteps",
        "docs/algos/ppo_tensor.md",
        lambda: compare_tensor(8, 256, 256),
    ),
}
