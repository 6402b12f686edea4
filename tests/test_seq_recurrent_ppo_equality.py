"""SeqRecurrentPPO learns what RecurrentPPO learns, from the policy that acted: same weights, logs and log_probs."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import rl_zoo3.import_envs  # noqa: F401 (registers PendulumNoVel-v1)
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from tests.envs import DictImageEnv, ImageEnv, LenEnv
from zoo_plugins.algos.evaluation import evaluate_actions
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO

N_ROLLOUTS = 4
# n_steps divides neither the length of an episode nor, with batch_size, the rollout
BASE = {"n_steps": 27, "batch_size": 17, "n_epochs": 3, "learning_rate": 3e-3, "seed": 3, "device": "cpu"}
SMALL = {"lstm_hidden_size": 16, "net_arch": [8]}


def gym_env(env_id: str | type, n_envs: int) -> Callable[[], VecEnv]:
    return lambda: make_vec_env(env_id, n_envs, seed=0)


CARTPOLE = gym_env("CartPole-v1", 2)


def len_env(action_space: spaces.Space) -> Callable[[], VecEnv]:
    return lambda: DummyVecEnv([lambda i=i: LenEnv((3, 7, 23, 1, 5), i, "both", action_space) for i in range(3)])


def train_logs(model: RecurrentPPO) -> dict[str, float]:
    """What was logged under train/ and not written out yet."""
    return {key: value for key, value in model.logger.name_to_value.items() if key.startswith("train/")}


class TrainLogs(BaseCallback):
    """Keeps what each update logged under train/."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[dict[str, float]] = []

    def _keep(self) -> None:
        logs = train_logs(self.model)
        # Nothing is logged before the first update
        if logs:
            self.updates.append(logs)

    def _on_rollout_start(self) -> None:
        self._keep()

    def _on_training_end(self) -> None:
        self._keep()

    def _on_step(self) -> bool:
        return True


class UserExtractor(BaseFeaturesExtractor):
    """A user's features extractor: a layer on the means of the image columns."""

    def __init__(self, observation_space: spaces.Box, scale: float):
        super().__init__(observation_space, observation_space.shape[-1])
        self.scale = scale
        self.layer = th.nn.Linear(self.features_dim, self.features_dim)

    def forward(self, images: th.Tensor) -> th.Tensor:
        assert images.ndim == 4  # (n_steps, channels, height, width): a minibatch has no time axis
        return self.scale * self.layer(images.mean(dim=(1, 2)))


@dataclass(frozen=True)
class Case:
    """What a model is made from."""

    make_env: Callable[[], VecEnv] = CARTPOLE
    policy: str = "MlpLstmPolicy"
    hyperparams: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, cls: type[RecurrentPPO], **overrides: Any) -> RecurrentPPO:
        # Copied because RecurrentPPO's policies write into the dicts they are given
        policy_kwargs = deepcopy(SMALL | self.policy_kwargs)
        return cls(self.policy, self.make_env(), **(BASE | self.hyperparams | overrides), policy_kwargs=policy_kwargs)


# The kinks of a CNN's ReLUs amplify rounding errors: small steps, as RecurrentPPO itself ends elsewhere with larger ones
# when its initial weights change in the last digit
SMALL_STEPS = {"learning_rate": 1e-4}
CNN = {"features_extractor_kwargs": {"features_dim": 8}}
COMBINED = {"features_extractor_kwargs": {"cnn_output_dim": 8}}
USERS = {"features_extractor_class": UserExtractor, "features_extractor_kwargs": {"scale": 2.0}}
UNSHARED = {"share_features_extractor": False}
IMAGE_CASES = {
    "Dict": Case(gym_env(DictImageEnv, 2), "MultiInputLstmPolicy", SMALL_STEPS, COMBINED),
    "Dict, separate extractors": Case(gym_env(DictImageEnv, 2), "MultiInputLstmPolicy", SMALL_STEPS, COMBINED | UNSHARED),
    "image": Case(gym_env(ImageEnv, 2), "CnnLstmPolicy", SMALL_STEPS, CNN),
    "image, separate extractors": Case(gym_env(ImageEnv, 2), "CnnLstmPolicy", SMALL_STEPS, CNN | UNSHARED),
    "image, user's extractor": Case(gym_env(ImageEnv, 2), "CnnLstmPolicy", SMALL_STEPS, USERS),
    "image, user's separate extractors": Case(gym_env(ImageEnv, 2), "CnnLstmPolicy", SMALL_STEPS, USERS | UNSHARED),
}
CASES = {
    "1 env": Case(gym_env("CartPole-v1", 1)),
    "4 envs": Case(gym_env("CartPole-v1", 4)),
    # 200 steps per episode: each environment ends its second one within the rollouts
    "gSDE": Case(gym_env("PendulumNoVel-v1", 2), hyperparams={"use_sde": True, "sde_sample_freq": 4, "n_steps": 110}),
    "continuous actions": Case(gym_env("Pendulum-v1", 2), hyperparams={"n_steps": 110, "ent_coef": 0.01}),
    "MultiDiscrete actions": Case(len_env(spaces.MultiDiscrete([2, 3])), hyperparams={"ent_coef": 0.01}),
    **IMAGE_CASES,
    "shared LSTM": Case(policy_kwargs={"shared_lstm": True, "enable_critic_lstm": False}),
    "no critic LSTM": Case(policy_kwargs={"enable_critic_lstm": False}),
    "2 LSTM layers": Case(policy_kwargs={"n_lstm_layers": 2}),
    "LSTM without bias": Case(policy_kwargs={"lstm_kwargs": {"bias": False}}),
    "clipped value function": Case(hyperparams={"clip_range_vf": 0.2}),
    "early stop": Case(hyperparams={"target_kl": 1e-4, "clip_range_vf": 0.2}),
    "whole rollout": Case(hyperparams={"batch_size": None}),
    "schedules": Case(
        hyperparams={"learning_rate": lambda left: 1e-2 * left, "clip_range": lambda left: 0.01 + 0.1 * left},
    ),
    "raw advantages": Case(hyperparams={"normalize_advantage": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_same_weights_and_logs_as_recurrent_ppo(case):
    """After several rollouts, parameters and logged values are RecurrentPPO's, up to floating point error."""
    models, initial, logs = [], [], []
    for cls in (RecurrentPPO, SeqRecurrentPPO):
        model = CASES[case].make(cls)
        initial.append(deepcopy(model.policy.state_dict()))
        callback = TrainLogs()
        model.learn(N_ROLLOUTS * model.n_steps * model.n_envs, callback)
        models.append(model)
        logs.append(callback.updates)

    theirs, ours = (model.policy.state_dict() for model in models)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        th.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
        assert th.equal(initial[0][name], initial[1][name])
    # The weights that agree have been trained: 100 times further apart than the tolerance
    assert max((ours[name] - initial[1][name]).abs().max() for name in ours) > 1e-3

    assert [len(updates) for updates in logs] == [N_ROLLOUTS, N_ROLLOUTS]
    for expected, actual in zip(*logs, strict=True):
        assert actual.keys() - expected.keys() == {"train/n_sequences", "train/padding"}
        for key, value in expected.items():
            assert actual[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
        assert actual["train/n_updates"] == expected["train/n_updates"]
        assert actual["train/n_sequences"] >= 1
        assert 0 <= actual["train/padding"] < 1
    assert models[0]._n_updates == models[1]._n_updates
    assert models[0].policy.training == models[1].policy.training
    all_updates = N_ROLLOUTS * BASE["n_epochs"]
    assert models[1]._n_updates < all_updates if case == "early stop" else models[1]._n_updates == all_updates


class ActingLogProbs(BaseCallback):
    """Before each update, compares the re-evaluated log_probs and values with those recorded while acting."""

    def __init__(self, batch_size: int, damping: float = 1.0) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.damping = damping
        self.differences: list[float] = []
        self.n_continued = 0  # sequences that were entered with a recorded state
        self.first_starts: list[list[float]] = []  # episode_starts of the first row of each rollout
        self.first_states: list[np.ndarray] = []

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        self.first_starts.append(buffer.episode_starts[0].tolist())
        self.first_states.append(buffer.flat_states[:, :, :: buffer.buffer_size].numpy())
        worst = 0.0
        for batch in buffer.get(self.batch_size):
            states = [tuple(state * self.damping for state in part) for part in batch.lstm_states]
            batch = batch._replace(lstm_states=type(batch.lstm_states)(*states))
            self.n_continued += int(sum(state.any() for state in batch.lstm_states.pi[0].unbind(1)))
            with th.no_grad():
                values, log_prob, _ = evaluate_actions(self.model.policy, batch)
            assert values.shape == log_prob.shape == batch.old_values.shape
            for new, old in ((log_prob, batch.old_log_prob), (values, batch.old_values)):
                worst = max(worst, (new - old).abs().max().item())
        self.differences.append(worst)

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize("case", CASES)
def test_reevaluated_log_probs_are_those_of_acting(case):
    """Before every update, each minibatch gives the log_probs and values that were recorded step by step."""
    model = CASES[case].make(SeqRecurrentPPO, n_epochs=1)
    callback = ActingLogProbs(batch_size=11)
    model.learn(N_ROLLOUTS * model.n_steps * model.n_envs, callback)
    assert len(callback.differences) == N_ROLLOUTS
    assert callback.n_continued > 0
    assert max(callback.differences) < 1e-5


def test_wrong_hidden_states_change_the_log_probs():
    """The agreement above depends on the recorded states: with damped ones it is gone in every rollout."""
    # Larger weights in the heads than SB3's, so that the state matters from the first rollout on
    model = Case(policy_kwargs={"ortho_init": False}).make(SeqRecurrentPPO)
    callback = ActingLogProbs(batch_size=11, damping=0.9)
    model.learn(N_ROLLOUTS * model.n_steps * model.n_envs, callback)
    assert len(callback.differences) == N_ROLLOUTS
    assert min(callback.differences) > 1e-4


def test_learn_twice_starts_new_episodes():
    """A second learn() resets the environments, and the hidden state of the first one has no effect on it."""
    # Episodes outlast both calls, so that only learn() can start new ones
    env = DummyVecEnv([lambda i=i: LenEnv((1000,), i) for i in range(2)])
    model = Case(lambda: env, policy_kwargs={"ortho_init": False}).make(SeqRecurrentPPO)
    callback = ActingLogProbs(batch_size=11)
    for _ in range(2):
        model.learn(2 * model.n_steps * model.n_envs, callback)
    assert callback.first_starts == [[1, 1], [0, 0]] * 2
    # New episodes start from zeros, the rollouts after them from the states in which they stopped
    assert [bool(states.any()) for states in callback.first_states] == [False, True] * 2
    assert max(callback.differences) < 1e-5


@pytest.mark.parametrize("case", IMAGE_CASES)
def test_without_learning_the_policy_is_the_acting_one(case):
    """With learning rate 0, training on images sees no change of the policy; with a larger one it does."""
    approx_kl = []
    for hyperparams in ({"learning_rate": 0.0, "n_epochs": 1}, {"learning_rate": 1e-2, "n_epochs": 3}):
        model = IMAGE_CASES[case].make(SeqRecurrentPPO, batch_size=None, **hyperparams)
        model.learn(2 * model.n_steps * model.n_envs)
        approx_kl.append(train_logs(model)["train/approx_kl"])
        if model.learning_rate == 0:
            assert train_logs(model)["train/clip_fraction"] == 0
    assert abs(approx_kl[0]) < 1e-7
    assert approx_kl[1] > 1e-5
