"""Experiment managers of tiny runs, and the classes that their hyperparameters name."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch as th
import yaml
from gymnasium import spaces
from rl_zoo3 import exp_manager
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn

from zoo_plugins.buffers import SequenceRolloutBuffer

# Small enough for a run of a second
PPO = dict(policy="MlpPolicy", n_timesteps=32, n_steps=16, batch_size=16, n_epochs=1)
LSTM = dict(
    policy="MlpLstmPolicy", n_timesteps=32, n_steps=16, batch_size=16, n_epochs=1, policy_kwargs="dict(lstm_hidden_size=4)"
)
DQN = dict(policy="MlpPolicy", n_timesteps=32, buffer_size=100, learning_starts=1000)
SAC = dict(policy="MlpPolicy", n_timesteps=32, buffer_size=100, learning_starts=1000)
HER = {**DQN, "policy": "MultiInputPolicy"}


class RecordingVecEnv(DummyVecEnv):
    """DummyVecEnv that remembers its own keyword argument."""

    def __init__(self, env_fns, flavour="plain"):
        super().__init__(env_fns)
        self.flavour = flavour


class Tagged:
    """A buffer's own argument."""

    def __init__(self, *args, tag=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.tag = tag


class TaggedReplayBuffer(Tagged, ReplayBuffer):
    pass


class TaggedRolloutBuffer(Tagged, RolloutBuffer):
    pass


class TaggedSequenceBuffer(Tagged, SequenceRolloutBuffer):
    pass


class GoalMemory(HerReplayBuffer):
    """HerReplayBuffer under a name that does not tell."""


class TinyExtractor(BaseFeaturesExtractor):
    def __init__(self, observation_space, features_dim=3):
        super().__init__(observation_space, features_dim)
        self.net = nn.Linear(spaces.flatdim(observation_space), features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.net(observations.flatten(1))


class OwnPolicy(ActorCriticPolicy):
    """Policy of PPO."""


class OwnLstmPolicy(RecurrentActorCriticPolicy):
    """Policy of ppo_lstm_seq."""


class KnobEnv(gym.Env):
    """
    Environment that tells its arguments and how many of its kind are open; the episodes have ``length`` steps.

    :param length: Length of the episodes, in timesteps
    :param colour: Has no effect
    :param observation: Every entry of every observation
    :param reward: Every reward
    """

    opened: ClassVar[list["KnobEnv"]] = []
    closed: ClassVar[set[int]] = set()

    def __init__(self, length: int = 5, colour: str = "red", observation: float = 0.0, reward: float = 1.0):
        self.length, self.colour, self.observation, self.reward = length, colour, observation, reward
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.opened.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.full(2, self.observation, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.observation, np.float32), self.reward, False, self.t >= self.length, {}

    def close(self):
        self.closed.add(id(self))

    @classmethod
    def still_open(cls) -> list["KnobEnv"]:
        """List the environments that nobody has closed."""
        return [env for env in cls.opened if id(env) not in cls.closed]

    @classmethod
    def forget(cls) -> None:
        """Start counting anew."""
        cls.opened.clear()
        cls.closed.clear()


gym.register("Knob-v0", entry_point=KnobEnv, disable_env_checker=True)
gym.register(
    "BitFlip-v0",
    entry_point="stable_baselines3.common.envs:BitFlippingEnv",
    kwargs={"n_bits": 3},
    disable_env_checker=True,
)


def write_config(folder: Path, blocks: object) -> str:
    """
    Write a YAML file.

    :param folder: Where to write it
    :param blocks: Its content
    :return: its path
    """
    path = folder / "conf.yml"
    path.write_text(yaml.safe_dump(blocks))
    return str(path)


def make_manager(
    folder: Path,
    algo: str = "ppo",
    env: str = "CartPole-v1",
    block: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> exp_manager.ExperimentManager:
    """
    Make the zoo's experiment manager as train.py does.

    :param folder: Where to write the configuration, and the logs under "logs"
    :param algo: Name of the algorithm
    :param env: Id of the environment
    :param block: Hyperparameters for the environment, to be written to a YAML file
    :param kwargs: Other arguments of the manager
    :return: the manager
    """
    if block is not None:
        kwargs["config"] = write_config(folder, {env: dict(block)})
    args = argparse.Namespace(algo=algo, env=env, env_kwargs=kwargs.get("env_kwargs"))
    defaults = dict(verbose=0, eval_freq=-1, n_eval_episodes=1, log_interval=-1, device="cpu", no_optim_plots=True)
    return exp_manager.ExperimentManager(args, algo, env, str(folder / "logs"), **{**defaults, **kwargs})


def set_up(manager: exp_manager.ExperimentManager) -> tuple[BaseAlgorithm, VecEnv, VecEnv]:
    """
    Set an experiment up, evaluation included.

    :param manager: Its manager
    :return: the model, its training environment and the evaluation environment
    """
    manager.eval_freq = 1000
    model, _ = manager.setup_experiment()
    return model, model.env, manager.callbacks[-1].eval_env


def layers(env: VecEnv) -> list[type]:
    """
    List the classes of a VecEnv and its wrappers.

    :param env: The outermost one
    :return: their classes, outermost first
    """
    classes = [type(env)]
    while hasattr(env, "venv"):
        env = env.venv
        classes.append(type(env))
    return classes
