"""Classes named in hyperparameters: replay and rollout buffers, policies, and what policies are made of."""

import pytest
from stable_baselines3 import HerReplayBuffer
from torch import nn

from tests.fakes import fake_distribution
from tests.managers import (
    DQN,
    HER,
    LSTM,
    PPO,
    SAC,
    GoalMemory,
    OwnLstmPolicy,
    OwnPolicy,
    TaggedReplayBuffer,
    TaggedRolloutBuffer,
    TaggedSequenceBuffer,
    TinyExtractor,
    make_manager,
)
from zoo_plugins import SequenceRolloutBuffer

RUNS = {
    "sac": ("Pendulum-v1", SAC, "replay_buffer"),
    "dqn": ("CartPole-v1", DQN, "replay_buffer"),
    "ppo": ("CartPole-v1", PPO, "rollout_buffer"),
    "ppo_lstm_seq": ("CartPole-v1", LSTM, "rollout_buffer"),
}
TAGGED = {
    "sac": TaggedReplayBuffer,
    "dqn": TaggedReplayBuffer,
    "ppo": TaggedRolloutBuffer,
    "ppo_lstm_seq": TaggedSequenceBuffer,
}


def build(folder, algo, more, env=None, base=None):
    """Build the model of a tiny run whose hyperparameters are extended by ``more``."""
    default_env, block, _ = RUNS[algo]
    manager = make_manager(folder, algo, env or default_env, {**(base or block), **more})
    return manager.setup_experiment()[0]


def build_from_py(folder, algo, imports, entries):
    """Build the model of a tiny run from a .py file, whose hyperparameters are extended by the code ``entries``."""
    env, block, _ = RUNS[algo]
    path = folder / "conf.py"
    path.write_text(f"{imports}\nhyperparams = {{{env!r}: dict({block!r}, {entries})}}\n")
    return make_manager(folder, algo, env, config=str(path)).setup_experiment()[0]


# --- buffers


@pytest.mark.parametrize("kwargs", [{"tag": 3}, {"tag": "3"}, "dict(tag=3)", "{'tag': 3}"])
@pytest.mark.parametrize("separator", [".", ":"])
@pytest.mark.parametrize("algo", list(RUNS))
def test_buffer_by_path(tmp_path, algo, separator, kwargs):
    """A dotted path or "module:Class" names the buffer; its keyword arguments are a map or "dict(...)"."""
    kind, cls = RUNS[algo][2], TAGGED[algo]
    more = {f"{kind}_class": f"tests.managers{separator}{cls.__name__}", f"{kind}_kwargs": kwargs}
    buffer = getattr(build(tmp_path, algo, more), kind)
    assert type(buffer) is cls
    assert buffer.tag == 3


@pytest.mark.parametrize("algo", list(RUNS))
def test_buffer_as_a_class(tmp_path, algo):
    """A .py file may hold the buffer class itself."""
    kind, cls = RUNS[algo][2], TAGGED[algo]
    entries = f"{kind}_class={cls.__name__}, {kind}_kwargs=dict(tag=3)"
    buffer = getattr(build_from_py(tmp_path, algo, f"from tests.managers import {cls.__name__}", entries), kind)
    assert type(buffer) is cls
    assert buffer.tag == 3


@pytest.mark.parametrize(
    ("algo", "env", "base", "name", "cls"),
    [
        ("ppo_lstm_seq", "CartPole-v1", LSTM, "SequenceRolloutBuffer", SequenceRolloutBuffer),
        ("dqn", "BitFlip-v0", HER, "HerReplayBuffer", HerReplayBuffer),
        ("dqn", "BitFlip-v0", HER, "FakeMemory", GoalMemory),
    ],
)
def test_buffer_by_name(tmp_path, monkeypatch, algo, env, base, name, cls):
    """One word names a registered buffer: one of ours, the zoo's HerReplayBuffer, or one of a third party."""
    entry_points = {"buffers": {"FakeMemory": "tests.managers:GoalMemory"}}
    monkeypatch.syspath_prepend(fake_distribution(tmp_path, "fake-memory", entry_points=entry_points))
    kind = RUNS[algo][2]
    model = build(tmp_path, algo, {f"{kind}_class": name}, env, base)
    assert type(getattr(model, kind)) is cls


@pytest.mark.parametrize("kwargs", [{"n_sampled_goal": 2}, "dict(n_sampled_goal=2)", "dict(n_sampled_goal=1 + 1)"])
def test_kwargs_of_the_default_buffer(tmp_path, kwargs):
    """Keyword arguments reach a HER buffer in every notation that upstream knows, code included."""
    more = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": kwargs}
    assert build(tmp_path, "dqn", more, "BitFlip-v0", HER).replay_buffer.n_sampled_goal == 2


def test_buffer_kwargs_without_a_class(tmp_path):
    """Keyword arguments alone go to the algorithm's own buffer."""
    model = build(tmp_path, "dqn", {"replay_buffer_kwargs": {"handle_timeout_termination": False}})
    assert model.replay_buffer.handle_timeout_termination is False


# --- policies

POLICY_KWARGS = [
    "dict(features_extractor_class=tests.managers.TinyExtractor, features_extractor_kwargs=dict(features_dim=2), "
    "activation_fn=nn.ReLU, net_arch=[4], optimizer_class=th.optim.SGD)",
    {
        "features_extractor_class": "tests.managers.TinyExtractor",
        "features_extractor_kwargs": {"features_dim": 2},
        "activation_fn": "nn.ReLU",
        "net_arch": [4],
        "optimizer_class": "th.optim.SGD",
    },
    {
        "features_extractor_class": "tests.managers:TinyExtractor",
        "features_extractor_kwargs": {"features_dim": 2},
        "activation_fn": "torch.nn.ReLU",
        "net_arch": [4],
        "optimizer_class": "torch.optim:SGD",
    },
]


@pytest.mark.parametrize("policy_kwargs", POLICY_KWARGS, ids=["text", "map", "map with colons"])
@pytest.mark.parametrize("algo", ["dqn", "ppo", "ppo_lstm_seq"])
def test_policy_kwargs(tmp_path, algo, policy_kwargs):
    """Classes are named in policy_kwargs alike in the zoo's "dict(...)" text and in a nested map."""
    policy = build(tmp_path, algo, {"policy_kwargs": policy_kwargs}).policy
    network = policy.q_net if algo == "dqn" else policy
    assert type(network.features_extractor) is TinyExtractor
    assert network.features_dim == 2
    assert policy.net_arch == [4]
    assert policy.activation_fn is nn.ReLU
    assert type(policy.optimizer).__name__ == "SGD"


def test_policy_kwargs_with_a_class(tmp_path):
    """policy_kwargs of a .py file may hold classes."""
    imports = "from tests.managers import TinyExtractor"
    model = build_from_py(tmp_path, "ppo", imports, "policy_kwargs=dict(features_extractor_class=TinyExtractor)")
    assert type(model.policy.features_extractor) is TinyExtractor


@pytest.mark.parametrize(
    ("text", "net_arch"),
    [
        ("dict(net_arch=[64] * 2)", [64, 64]),
        ("dict(net_arch=dict(pi=[2**3], vf=[8]))", {"pi": [8], "vf": [8]}),
        ("dict(net_arch=[int(1e1)], activation_fn=nn.Tanh)", [10]),
        ("{'net_arch': [n for n in (4, 5)]}", [4, 5]),
    ],
)
def test_policy_kwargs_of_code(tmp_path, text, net_arch):
    """A text that is more than data still works: upstream evaluates it."""
    assert build(tmp_path, "ppo", {"policy_kwargs": text}).policy.net_arch == net_arch


@pytest.mark.parametrize(
    ("algo", "name", "cls"),
    [
        ("ppo", "tests.managers.OwnPolicy", OwnPolicy),
        ("ppo", "tests.managers:OwnPolicy", OwnPolicy),
        ("ppo_lstm_seq", "tests.managers.OwnLstmPolicy", OwnLstmPolicy),
    ],
)
def test_own_policy(tmp_path, algo, name, cls):
    """A policy is named by its path, and the model learns with it."""
    model = build(tmp_path, algo, {"policy": name})
    assert type(model.policy) is cls
    assert model.learn(16).num_timesteps == 16


def test_own_policy_as_a_class(tmp_path):
    """A .py file may hold the policy class itself."""
    path = tmp_path / "conf.py"
    path.write_text("from tests.managers import PPO, OwnPolicy\nhyperparams = {'CartPole-v1': {**PPO, 'policy': OwnPolicy}}\n")
    model, _ = make_manager(tmp_path, config=str(path)).setup_experiment()
    assert type(model.policy) is OwnPolicy
