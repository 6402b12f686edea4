"""The block ``search_space``: what it means, what is refused, and that a stored trial gives back what was trained with."""

import json
import math

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from rl_zoo3.exp_manager import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

from zoo_plugins import PluginError
from zoo_plugins.config import Block
from zoo_plugins.space_block import read_search_space
from zoo_plugins.trials import SearchTrial, trial_hyperparams, with_values

KINDS = {
    "gamma": "float",
    "batch_size": "int",
    "learning_rate": "float | Callable",
    "policy_kwargs.net_arch": "",
    "n_envs": "int",
}


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def read(entries, kinds=KINDS, overrides=()):
    block = Block({"search_space": entries, "gamma": 0.9}, "my.yml", overrides)
    space = read_search_space(block, kinds, lambda name: name.startswith("policy_kwargs."))
    assert "search_space" not in block.values
    return space


@pytest.mark.parametrize(
    ("entry", "kind", "distribution"),
    [
        ({"low": 1e-5, "high": 0.01, "log": True}, "float", FloatDistribution(1e-5, 0.01, log=True)),
        ({"low": "1e-5", "high": "1e-2", "log": True}, "float", FloatDistribution(1e-5, 0.01, log=True)),
        ({"low": 0, "high": 1}, "float", FloatDistribution(0, 1)),
        ({"low": 0, "high": 1}, "int", IntDistribution(0, 1)),
        ({"low": 0, "high": 1}, "", IntDistribution(0, 1)),
        ({"low": 0, "high": 1.5}, "", FloatDistribution(0, 1.5)),
        ({"low": "1e2", "high": 1e3}, "int", IntDistribution(100, 1000)),
        ({"low": 32, "high": 256, "step": 32}, "int", IntDistribution(32, 256, step=32)),
        ({"low": 32, "high": 255, "step": 32}, "int", IntDistribution(32, 224, step=32)),
        ({"low": 0.1, "high": 0.75, "step": 0.2}, "float", FloatDistribution(0.1, 0.7, step=0.2)),
        ({"low": 0.1, "high": 0.7, "step": 0.2, "log": False}, "float", FloatDistribution(0.1, 0.7, step=0.2)),
        ({"low": 2, "high": 64, "log": True}, "int", IntDistribution(2, 64, log=True)),
        ({"low": 2, "high": 2}, "int", IntDistribution(2, 2)),
        ({"choices": [64, "1e3"]}, "int", CategoricalDistribution([64, 1000])),
        (
            {"choices": [[8], {"pi": [8]}, "nn.ReLU", None, True]},
            "",
            CategoricalDistribution(["[8]", '{"pi": [8]}', "nn.ReLU", None, True]),
        ),
    ],
)
def test_entries(entry, kind, distribution):
    """Ranges and choices, with numbers that YAML takes for text; the parameter decides whether a range is one of floats."""
    space = read({"x": entry}, {"x": kind})
    assert space.entries["x"].distribution == distribution
    assert space.spec["replace"] is False
    # What is kept with a study makes the same block again
    assert read({"x": json.loads(json.dumps(space.spec["x"]))}, {"x": kind}).spec == space.spec


def test_tuples_of_python_files():
    """A search space is the same before and after it was stored."""
    spec = read({"policy_kwargs.net_arch": {"choices": ((8, 8), (4,))}}).spec
    assert spec == json.loads(json.dumps(spec)) == {"replace": False, "policy_kwargs.net_arch": {"choices": [[8, 8], [4]]}}


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([1], r"search_space: \[1\] in my.yml: expected a map of parameters"),
        ({}, r"search_space: {} in my.yml: expected at least one parameter, as {low: 1e-5"),
        ({"replace": True}, "expected at least one parameter"),
        ({"replace": 1, "gamma": {"low": 0, "high": 1}}, "search_space.replace: 1 in my.yml: expected true"),
        (
            {"gama": {"low": 0, "high": 1}},
            r"search_space.gama: {'low': 0, 'high': 1} in my.yml: unknown parameter, did you mean 'gamma'\? Valid: batch_size",
        ),
        (
            {"net_arch": {"choices": [1]}},
            r"search_space.net_arch: .*: unknown parameter, did you mean 'policy_kwargs.net_arch'\?",
        ),
        ({"gamma": 3}, "search_space.gamma: 3 in my.yml: expected a map, as {low"),
        (
            {"gamma": {"low": 1, "high": 0.5}},
            "search_space.gamma: {'low': 1, 'high': 0.5} in my.yml: low: 1 is above high: 0.5",
        ),
        ({"gamma": {"low": 0, "high": 1, "log": True}}, "low: 0: with log: true, expected a number above 0"),
        ({"gamma": {"low": -1, "high": 1, "log": True}}, "low: -1: with log: true, expected a number above 0"),
        ({"gamma": {"low": 1, "high": 2, "log": True, "step": 1}}, "step: 1: it does not go with log: true"),
        ({"gamma": {"low": 1, "high": 2, "log": "yes"}}, "log: 'yes': expected true or false"),
        ({"gamma": {"low": 1, "high": 2, "step": 0}}, "step: 0: expected a number above 0"),
        ({"gamma": {"low": 1, "high": 2, "step": -1}}, "step: -1: expected a number above 0"),
        ({"gamma": {"low": "small", "high": 2}}, "low: 'small': expected a number"),
        ({"gamma": {"low": True, "high": 2}}, "low: True: expected a number"),
        ({"gamma": {"low": 0, "high": math.inf}}, "high: inf: expected a number"),
        ({"gamma": {"low": 0, "high": math.nan}}, "high: nan: expected a number"),
        ({"gamma": {"low": 0}}, "high is missing"),
        ({"gamma": {"high": 0}}, "low is missing"),
        ({"gamma": {}}, "low is missing"),
        ({"gamma": {"low": 0, "hihg": 1}}, r"unknown key 'hihg', did you mean 'high'\? Valid: low, high, log, step, choices"),
        ({"gamma": {"choices": []}}, "choices: expected a list of at least one value"),
        ({"gamma": {"choices": 0.5}}, "choices: expected a list of at least one value"),
        ({"gamma": {"choices": [1, 1.0]}}, "choices: 1.0 is there twice"),
        ({"gamma": {"choices": [math.nan]}}, "choices: nan is not finite"),
        ({"gamma": {"choices": [int]}}, "choices: <class 'int'> can't be kept with a study"),
        ({"gamma": {"choices": [1], "low": 0}}, "low goes with low and high, and not with choices"),
        ({"gamma": {"choices": [1], "log_scale": True}}, "unknown key 'log_scale'"),
        ({"batch_size": {"low": 0.5, "high": 2}}, "low: 0.5: expected a whole number"),
        ({"batch_size": {"low": 1, "high": 2, "step": 0.5}}, "step: 0.5: expected a whole number"),
        ({3: {"choices": [1]}}, "expected a map of parameters"),
    ],
)
def test_mistakes(entries, told):
    """One line names the entry, its value, the file, and what would be valid."""
    with pytest.raises(PluginError, match=told) as error:
        read(entries)
    assert "\n" not in str(error.value)


def test_command_line_against_search_space():
    """A parameter that -params fixes can't be searched; -params can give the block itself, and is named then."""
    with pytest.raises(PluginError, match=r"search_space\.gamma: .* in my\.yml: it is in -params too: leave one of them out"):
        read({"gamma": {"low": 0, "high": 1}}, overrides=("gamma",))
    with pytest.raises(PluginError, match=r"search_space\.gamma: 1 in -params: expected a map"):
        read({"gamma": 1}, overrides=("search_space",))


ENTRIES = st.one_of(
    st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 10), st.booleans()).map(
        lambda x: {"low": min(x[:2]), "high": max(x[:2]), "log": x[2]}
    ),
    st.tuples(st.integers(1, 50), st.integers(0, 500), st.integers(1, 60)).map(
        lambda x: {"low": x[0], "high": x[0] + x[1], "step": x[2]}
    ),
    st.lists(
        st.one_of(st.integers(2, 99), st.text("abc", min_size=1), st.lists(st.integers(1, 9))), min_size=1, unique_by=repr
    ).map(lambda x: {"choices": x}),
)


@settings(deadline=None, max_examples=100)
@given(entry=ENTRIES, seed=st.integers(0, 2**32 - 1))
def test_samples_are_within(entry, seed):
    """Every sample is one of the choices, or within the range and on its grid."""
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed)).ask()
    value = read({"x": entry}, {"x": ""}).suggest(trial)["x"]
    if "choices" in entry:
        assert value in entry["choices"]
    else:
        assert entry["low"] <= value <= entry["high"]
        if "step" in entry:
            assert type(value) is int
            assert (value - entry["low"]) % entry["step"] == 0


# --- beside a sampler

MORE = {
    "gamma": {"low": 0.5, "high": 0.6},
    "learning_rate": {"choices": [0.25]},
    "batch_size": {"low": 3, "high": 7},
    "n_steps": {"choices": [5, 6]},
    "train_freq": {"low": 2, "high": 3},
    "update_ratio": {"choices": [0.5, 2]},
    "gradient_steps": {"choices": ["n_envs", 3]},
    "noise_std": {"low": 0.6, "high": 0.7},
    "n_envs": {"choices": [1, 4]},
    "policy_kwargs.net_arch": {"choices": [[8], [8, 8]]},
    "policy_kwargs.activation_fn": {"choices": ["nn.ELU"]},
    "policy_kwargs.lstm_hidden_size": {"low": 8, "high": 16},
    "policy_kwargs.enable_critic_lstm": {"choices": [False]},
    "policy_kwargs.n_quantiles": {"low": 3, "high": 4},
    "replay_buffer_kwargs.n_sampled_goal": {"low": 6, "high": 8},
}


@settings(deadline=None, max_examples=150)
@given(
    algo=st.sampled_from(
        sorted({"a2c", "ppo", "trpo", "ppo_lstm", "ppo_lstm_seq", "ppo_tensor", "dqn", "qrdqn", "sac", "tqc", "td3"})
    ),
    names=st.sets(st.sampled_from(sorted(MORE)), max_size=5),
    replace=st.booleans(),
    is_her=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_trials_give_back_their_hyperparameters(algo, names, replace, is_her, seed):
    """What a stored trial says is what its constructor got, for samplers of the zoo and ours, beside any search space."""
    entries = {name: MORE[name] for name in sorted(names)}
    space = read({"replace": replace, **entries}, dict.fromkeys(MORE, "")) if entries else read(None)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    asked = study.ask()
    values = space.suggest(asked)
    block = {"policy_kwargs": {"ortho_init": False}, "replay_buffer_kwargs": {"copy_info_dict": True}}
    file_and_space = with_values(values, block, {})
    trial = SearchTrial(asked, space, values, file_and_space)
    her = file_and_space["replay_buffer_kwargs"]
    more = {"using_her_replay_buffer": is_her, "her_kwargs": her}
    sampled = HYPERPARAMS_SAMPLER[algo](trial, 2, 4, more)

    assert not (set(sampled) & {name for name in values if "." not in name})
    trained = {**file_and_space, **sampled}
    study.tell(asked, 0.0)
    stored = study.trials[0]
    assert set(values) <= set(stored.params)
    for name in values:
        # Nothing is searched twice
        stem = name.rpartition(".")[2]
        assert not {f"{stem}_pow", f"one_minus_{stem}"} & set(stored.params)
    found, found_values = trial_hyperparams(stored, HYPERPARAMS_CONVERTER[algo], block)
    assert found_values == values
    found = {**block, **found}
    for key in ("noise_type", "noise_std", "action_noise"):  # of these, objects are made
        found.pop(key, None)
        trained.pop(key, None)
    assert found == trained
    if entries and replace:
        assert set(stored.params) == set(values)


def test_sampler_gets_values_it_can_use():
    """A sampler that computes with what the search space decides gets the value, or the first of its own."""
    space = read({"train_freq": {"choices": [7]}, "noise_type": {"choices": ["pink"]}}, {"train_freq": "", "noise_type": ""})
    asked = optuna.create_study().ask()
    trial = SearchTrial(asked, space, space.suggest(asked), {"train_freq": 7})
    assert trial.suggest_int("train_freq", 1, 3) == 7
    assert trial.suggest_int("train_freq_pow", 1, 3) == 1
    assert trial.suggest_categorical("noise_type", ["normal", None]) == "normal"
    assert set(asked.params) == {"train_freq", "noise_type"}
    trial.set_user_attr("train_freq", 1)
    trial.set_user_attr("other", 1)
    assert asked.user_attrs == {"other": 1}


def test_nan_prunes_at_once():
    """The first evaluation that gives NaN ends a trial; what was reported is kept."""
    study = optuna.create_study()
    trial = SearchTrial(study.ask(), read(None), {}, {})
    trial.report(1.0, 1)
    with pytest.raises(optuna.TrialPruned, match="the evaluation gave NaN"):
        trial.report(math.nan, 2)
    assert list(study.trials[0].intermediate_values) == [1, 2]
