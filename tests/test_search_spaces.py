import itertools

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution
from rl_zoo3.exp_manager import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
from torch import nn

from zoo_plugins import SeqRecurrentPPO
from zoo_plugins.search_spaces import (
    ACTIVATION_FN,
    CRITIC,
    MAX_SEQ_LENGTH,
    NET_ARCH,
    RNN_TYPE,
    SAMPLING,
    convert_ppo_lstm_seq_params,
    convert_ppo_tensor_params,
    sample_ppo_lstm_seq_params,
    sample_ppo_tensor_params,
)

RANGES = {
    "gamma": (0.9, 0.9999),
    "gae_lambda": (0.8, 0.9999),
    "learning_rate": (1e-5, 0.005),
    "ent_coef": (1e-8, 0.1),
    "max_grad_norm": (0.3, 2.0),
}
CHOICES = {
    "n_steps": {2**power for power in range(5, 12)},
    "batch_size": {2**power for power in range(6, 12)},
    "clip_range": {0.1, 0.2, 0.3, 0.4},
    "n_epochs": {1, 5, 10, 20},
    "sampling": {"contiguous", "sequences"},
    "max_seq_length": {None, 16, 64},
}
POLICY_CHOICES = {
    "net_arch": [{"pi": arch, "vf": arch} for arch in ([64], [64, 64], [256, 256])],
    "activation_fn": [nn.Tanh, nn.ReLU],
    "lstm_hidden_size": [16, 32, 64, 128, 256],
    "enable_critic_lstm": [True, False],
    "shared_lstm": [True, False],
    "rnn_type": ["lstm", "gru"],
}
LOWEST = {
    "n_steps_pow": 5,
    "batch_size_pow": 6,
    "one_minus_gamma": 0.0001,
    "one_minus_gae_lambda": 0.0001,
    "learning_rate": 1e-5,
    "ent_coef": 1e-8,
    "clip_range": 0.1,
    "n_epochs": 1,
    "max_grad_norm": 0.3,
    "net_arch": "tiny",
    "activation_fn": "tanh",
    "lstm_hidden_size_pow": 4,
    "critic": "feedforward",
    "rnn_type": "lstm",
    "sampling": "contiguous",
    "max_seq_length": None,
}


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def ask(seed=0, n_envs=1):
    """Sample once, and return the trial and the hyperparameters."""
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)).ask()
    return trial, sample_ppo_lstm_seq_params(trial, 2, n_envs, {})


def assert_within_ranges(hyperparams):
    assert set(hyperparams) == {*RANGES, *CHOICES, "policy_kwargs"}
    for key, (low, high) in RANGES.items():
        assert low - 1e-12 <= hyperparams[key] <= high + 1e-12
    for key, values in CHOICES.items():
        assert hyperparams[key] in values
    policy_kwargs = hyperparams["policy_kwargs"]
    assert set(policy_kwargs) == set(POLICY_CHOICES)
    for key, values in POLICY_CHOICES.items():
        assert policy_kwargs[key] in values
    assert not (policy_kwargs["enable_critic_lstm"] and policy_kwargs["shared_lstm"])


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 32]))
def test_converter_is_the_inverse(seed, n_envs):
    """The parameters stored in a trial give back the very hyperparameters that were sampled, all within their ranges."""
    trial, hyperparams = ask(seed, n_envs)
    stored = dict(trial.params)
    assert convert_ppo_lstm_seq_params(trial.params) == hyperparams
    assert trial.params == stored
    assert_within_ranges(hyperparams)
    assert trial.user_attrs == {key: hyperparams[key] for key in ("gamma", "gae_lambda", "n_steps", "batch_size")}


def test_every_choice_is_sampled():
    """Many samples hit every choice, so that none of them is only on paper."""
    sampled = [ask(seed)[1] for seed in range(150)]
    for key, values in CHOICES.items():
        assert {hyperparams[key] for hyperparams in sampled} == values
    for key, values in POLICY_CHOICES.items():
        assert [value for value in values if value not in [found["policy_kwargs"][key] for found in sampled]] == []


@pytest.mark.parametrize("end", [0, -1])
def test_boundaries(end):
    """The ends of every range convert to what they say."""
    distributions = ask()[0].distributions
    params = {
        name: found.choices[end] if isinstance(found, CategoricalDistribution) else (found.low, found.high)[end]
        for name, found in distributions.items()
    }
    hyperparams = sample_ppo_lstm_seq_params(optuna.trial.FixedTrial(params), 2, 1, {})
    assert_within_ranges(hyperparams)
    assert hyperparams == convert_ppo_lstm_seq_params(params)
    assert hyperparams["n_steps"] == {0: 32, -1: 2048}[end]
    assert hyperparams["batch_size"] == 2 ** params["batch_size_pow"]
    assert hyperparams["gamma"] == 1 - params["one_minus_gamma"]
    assert hyperparams["gae_lambda"] == 1 - params["one_minus_gae_lambda"]
    assert hyperparams["policy_kwargs"]["lstm_hidden_size"] == {0: 16, -1: 256}[end]


def test_ranges_of_the_zoo():
    """The ranges hold those of the zoo's ppo, but for the smallest minibatches and the longest rollouts."""
    trial, _ = ask()
    zoo_trial = optuna.create_study().ask()
    HYPERPARAMS_SAMPLER["ppo"](zoo_trial, 2, 1, {"using_her_replay_buffer": False, "her_kwargs": {}})
    ours, theirs = trial.distributions, zoo_trial.distributions
    assert set(ours) - set(theirs) == {"lstm_hidden_size_pow", "critic", "rnn_type", "sampling", "max_seq_length"}
    assert ours["n_steps_pow"].low == theirs["n_steps_pow"].low
    assert ours["n_steps_pow"].high < theirs["n_steps_pow"].high
    assert ours["batch_size_pow"].low > theirs["batch_size_pow"].low
    for name in set(theirs) - {"n_steps_pow", "batch_size_pow"}:
        if isinstance(theirs[name], optuna.distributions.CategoricalDistribution):
            assert set(ours[name].choices) == set(theirs[name].choices)
        else:
            assert ours[name].low <= theirs[name].low < theirs[name].high <= ours[name].high
            assert ours[name].log == theirs[name].log


@given(st.integers(1, 512))
@settings(deadline=None)
def test_rollouts_have_a_limit(n_envs):
    """Rollouts have at most 2**14 timesteps over all environments, and come as near to it as 2**11 steps allow."""
    trial, _ = ask(n_envs=n_envs)
    longest = 2 ** trial.distributions["n_steps_pow"].high
    assert longest * n_envs <= 2**14
    assert longest == 2**11 or 2 * longest * n_envs > 2**14


@pytest.mark.parametrize("n_envs", [513, 10_000])
def test_more_environments_than_the_limit(n_envs):
    """With more environments, rollouts have the shortest length there is."""
    assert ask(n_envs=n_envs)[1]["n_steps"] == 32


@pytest.mark.parametrize(
    ("critic", "net_arch", "activation_fn", "rnn_type"),
    list(itertools.product(CRITIC, ["tiny", "small"], ACTIVATION_FN, RNN_TYPE)),
)
def test_samples_construct(critic, net_arch, activation_fn, rnn_type):
    """Every combination of critic, network, activation function and recurrent layer makes a model of that kind."""
    params = {**LOWEST, "critic": critic, "net_arch": net_arch, "activation_fn": activation_fn, "rnn_type": rnn_type}
    hyperparams = sample_ppo_lstm_seq_params(optuna.trial.FixedTrial(params), 2, 1, {})
    policy = SeqRecurrentPPO("MlpLstmPolicy", "CartPole-v1", device="cpu", **hyperparams).policy
    assert policy.lstm_actor.hidden_size == 16
    assert isinstance(policy.lstm_actor, nn.GRU) == (rnn_type == "gru")
    assert (policy.lstm_critic is not None) == (critic == "lstm")
    assert policy.shared_lstm == (critic == "shared_lstm")
    assert (policy.critic is not None) == (critic == "feedforward")
    kinds = [type(module) for module in policy.mlp_extractor.policy_net]
    assert kinds == [nn.Linear, ACTIVATION_FN[activation_fn]] * len(NET_ARCH[net_arch])


def test_converted_values_are_not_shared():
    """What a model does to its keyword arguments reaches neither the next trial nor the search space."""
    first = convert_ppo_lstm_seq_params(LOWEST)
    first["policy_kwargs"]["net_arch"]["pi"].append(1)
    first["policy_kwargs"]["shared_lstm"] = "changed"
    second = convert_ppo_lstm_seq_params(LOWEST)
    assert second["policy_kwargs"]["net_arch"] == {"pi": [64], "vf": [64]}
    assert second["policy_kwargs"]["shared_lstm"] is False


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("max_seq_length", MAX_SEQ_LENGTH)
def test_samples_of_sequences(sampling, max_seq_length):
    """What a minibatch is made of reaches the buffer."""
    params = {**LOWEST, "sampling": sampling, "max_seq_length": max_seq_length}
    hyperparams = sample_ppo_lstm_seq_params(optuna.trial.FixedTrial(params), 2, 1, {})
    buffer = SeqRecurrentPPO("MlpLstmPolicy", "CartPole-v1", device="cpu", **hyperparams).rollout_buffer
    assert (buffer.sampling, buffer.max_seq_length) == (sampling, max_seq_length)


def test_trials_of_older_studies():
    """A trial from before recurrent layers and minibatches were sampled means what it meant."""
    older = {key: value for key, value in LOWEST.items() if key not in ("rnn_type", "sampling", "max_seq_length")}
    hyperparams = convert_ppo_lstm_seq_params(older)
    assert "rnn_type" not in hyperparams["policy_kwargs"]
    assert not {"sampling", "max_seq_length"} & set(hyperparams)
    rest = convert_ppo_lstm_seq_params(LOWEST)
    assert {**hyperparams["policy_kwargs"], "rnn_type": "lstm"} == rest["policy_kwargs"]
    assert {key: rest[key] for key in hyperparams if key != "policy_kwargs"} == {
        key: value for key, value in hyperparams.items() if key != "policy_kwargs"
    }


TENSOR_RANGES = {
    "gamma": (0.9, 0.9999),
    "gae_lambda": (0.8, 0.9999),
    "learning_rate": (1e-5, 0.005),
    "ent_coef": (1e-8, 0.1),
    "max_grad_norm": (0.3, 2.0),
    "n_steps": (8, 2048),
}


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 64, 4096, 10**5]))
def test_converter_of_ppo_tensor_is_the_inverse(seed, n_envs):
    """The same for ppo_tensor, with any number of environments."""
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)).ask()
    hyperparams = sample_ppo_tensor_params(trial, 2, n_envs, {})
    stored = dict(trial.params)
    assert convert_ppo_tensor_params(trial.params) == hyperparams
    assert trial.params == stored
    assert set(hyperparams) == {*TENSOR_RANGES, "batch_size", "clip_range", "n_epochs", "policy_kwargs"}
    for key, (low, high) in TENSOR_RANGES.items():
        assert low - 1e-12 <= hyperparams[key] <= high + 1e-12
    assert hyperparams["n_steps"] == 8 or hyperparams["n_steps"] * n_envs <= 2**16
    assert min(n_envs, 64) <= hyperparams["batch_size"] <= max(2048, 8 * n_envs)
    assert hyperparams["n_epochs"] in (1, 4, 10, 20)
    arch = hyperparams["policy_kwargs"]["net_arch"]
    assert arch["pi"] == arch["vf"]
    assert arch["pi"] is not arch["vf"]


def test_registered_in_the_zoo():
    """``-optimize`` and ``--trial-id`` find sampler and converter in the zoo's tables."""
    for name in ("ppo_lstm_seq", "maskable_ppo_lstm_seq"):
        assert HYPERPARAMS_SAMPLER[name].__wrapped__ is sample_ppo_lstm_seq_params
        assert HYPERPARAMS_CONVERTER[name] is convert_ppo_lstm_seq_params
    assert HYPERPARAMS_SAMPLER["ppo_tensor"].__wrapped__ is sample_ppo_tensor_params
    assert HYPERPARAMS_CONVERTER["ppo_tensor"] is convert_ppo_tensor_params
