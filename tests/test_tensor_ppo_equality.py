"""TensorPPO learns what PPO learns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from tests.envs import DictImageEnv, ImageEnv, LenEnv
from tests.test_seq_recurrent_ppo_equality import TrainLogs
from tests.test_tensor_rollout_buffer import Permuted
from zoo_plugins import TensorPPO
from zoo_plugins.algos.fused_loss import FusedPPOLoss

N_ROLLOUTS = 4
# Episodes of all lengths end inside a rollout; the last minibatch of each epoch is smaller
BASE = {"n_steps": 27, "batch_size": 17, "n_epochs": 3, "learning_rate": 3e-3, "seed": 3, "device": "cpu"}
# The kinks of a CNN's ReLUs amplify rounding errors
SMALL_STEPS = {"learning_rate": 1e-4}


def len_env(action_space: spaces.Space) -> Callable[[], VecEnv]:
    return lambda: DummyVecEnv([lambda i=i: LenEnv((3, 7, 23, 1, 5), i, "both", action_space) for i in range(3)])


def gym_env(env_id: Any, n_envs: int, normalize: bool = False) -> Callable[[], VecEnv]:
    def make() -> VecEnv:
        env = make_vec_env(env_id, n_envs, seed=0)
        return VecNormalize(env) if normalize else env

    return make


class CountingPolicyEnv(gym.Env):
    """Discrete observations."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action):
        self.state = (self.state + int(action)) % 5
        return self.state, float(self.state == 4), self.state == 4, False, {}


CARTPOLE = gym_env("CartPole-v1", 2)


@dataclass(frozen=True)
class Case:
    """What a model is made from."""

    make_env: Callable[[], VecEnv] = CARTPOLE
    policy: str = "MlpPolicy"
    hyperparams: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, cls: type[PPO], **overrides: Any) -> PPO:
        policy_kwargs = {"net_arch": [16], **self.policy_kwargs}
        return cls(self.policy, self.make_env(), **(BASE | self.hyperparams | overrides), policy_kwargs=policy_kwargs)


PENDULUM = {"n_steps": 110, "ent_coef": 0.01}
SQUASHED = {"squash_output": True, "log_std_init": -1.0}
CASES = {
    "Discrete": Case(),
    "1 env": Case(gym_env("CartPole-v1", 1)),
    "Box": Case(gym_env("Pendulum-v1", 2), hyperparams=PENDULUM),
    "gSDE": Case(gym_env("Pendulum-v1", 2), hyperparams=PENDULUM | {"use_sde": True, "sde_sample_freq": 4}),
    "squashed gSDE": Case(gym_env("Pendulum-v1", 2), hyperparams=PENDULUM | {"use_sde": True}, policy_kwargs=SQUASHED),
    "MultiDiscrete": Case(len_env(spaces.MultiDiscrete([2, 3])), hyperparams={"ent_coef": 0.01}),
    "MultiBinary": Case(len_env(spaces.MultiBinary(3)), hyperparams={"ent_coef": 0.01}),
    "Discrete observations": Case(gym_env(CountingPolicyEnv, 3)),
    "image": Case(gym_env(ImageEnv, 2), "CnnPolicy", SMALL_STEPS, {"features_extractor_kwargs": {"features_dim": 8}}),
    "Dict": Case(
        gym_env(DictImageEnv, 2), "MultiInputPolicy", SMALL_STEPS, {"features_extractor_kwargs": {"cnn_output_dim": 8}}
    ),
    "separate extractors": Case(
        gym_env(ImageEnv, 2),
        "CnnPolicy",
        SMALL_STEPS,
        {"features_extractor_kwargs": {"features_dim": 8}, "share_features_extractor": False},
    ),
    "VecNormalize": Case(gym_env("Pendulum-v1", 2, normalize=True), hyperparams=PENDULUM),
    "clipped value function": Case(hyperparams={"clip_range_vf": 0.2}),
    "early stop": Case(hyperparams={"target_kl": 1e-4, "clip_range_vf": 0.2}),
    "schedules": Case(
        hyperparams={"learning_rate": lambda left: 1e-2 * left, "clip_range": lambda left: 0.01 + 0.1 * left},
    ),
    "raw advantages": Case(hyperparams={"normalize_advantage": False}),
    "other optimizer": Case(policy_kwargs={"optimizer_class": th.optim.SGD}),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_weights_and_logs_as_ppo(case, fused, monkeypatch):
    """After several rollouts with PPO's permutations, parameters and logged values are PPO's, up to floating point error."""
    if not fused:
        monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    models, logs = [], []
    for cls, overrides in ((PPO, {}), (TensorPPO, {"rollout_buffer_class": Permuted})):
        model = CASES[case].make(cls, **overrides)
        callback = TrainLogs()
        model.learn(N_ROLLOUTS * model.n_steps * model.n_envs, callback)
        models.append(model)
        logs.append(callback.updates)

    theirs, ours = (model.policy.state_dict() for model in models)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        th.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")

    assert [len(updates) for updates in logs] == [N_ROLLOUTS, N_ROLLOUTS]
    for expected, actual in zip(*logs, strict=True):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert actual[key] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), key
    assert models[0]._n_updates == models[1]._n_updates
    all_updates = N_ROLLOUTS * BASE["n_epochs"]
    assert models[1]._n_updates < all_updates if case == "early stop" else models[1]._n_updates == all_updates
    theirs, ours = ([[info["r"], info["l"]] for info in model.ep_info_buffer] for model in models)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("case", ["Discrete", "Box", "MultiBinary", "image", "Dict", "gSDE", "early stop"])
def test_ppo_can_train_on_the_buffer(case):
    """SB3's own train() works on a TensorRolloutBuffer, and gives the same weights."""

    class StockTrain(TensorPPO):
        train = PPO.train

    states = []
    for cls in (TensorPPO, StockTrain):
        model = CASES[case].make(cls)
        model.learn(N_ROLLOUTS * model.n_steps * model.n_envs)
        states.append(model.policy.parameters_to_vector())
    np.testing.assert_allclose(*states, atol=1e-5)
