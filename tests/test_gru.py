"""SeqRecurrentPPO with policy_kwargs=dict(rnn_type="gru"): the same algorithm, with GRUs in the place of the LSTMs."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from tests.envs import DictImageEnv, ImageEnv, LenEnv
from tests.managers import LSTM, make_manager
from tests.test_sampling import Reevaluation
from tests.test_seq_recurrent_ppo import (
    cartpole,
    check_same_predictions,
    check_save_load,
    make_model,
    saved_attributes,
    weights,
)
from zoo_plugins import PluginError
from zoo_plugins.algos.acting import NumpyActor
from zoo_plugins.algos.evaluation import evaluate_actions
from zoo_plugins.algos.gru import GRU
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO


class OwnPolicy(MlpLstmPolicy):
    """A user's policy, with an LSTM of its own kind on request."""

    def __init__(self, *args: Any, own_lstm: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if own_lstm:
            self.lstm_actor = OwnLSTM(self.features_dim, self.lstm_output_dim)


class OwnLSTM(nn.LSTM):
    """A user's LSTM."""


def make_gru(env, policy="MlpLstmPolicy", **kwargs) -> SeqRecurrentPPO:
    """A small model with GRUs."""
    return make_model(env, policy, **{**kwargs, "policy_kwargs": {"rnn_type": "gru", **kwargs.get("policy_kwargs", {})}})


CASES: dict[str, dict[str, Any]] = {
    "Box actions": {"env": "Pendulum-v1"},
    "gSDE": {"env": "Pendulum-v1", "use_sde": True, "sde_sample_freq": 4},
    "Discrete actions": {},
    "whole sequences": {"sampling": "sequences", "max_seq_length": 6},
    "Dict observations": {"env": DictImageEnv, "policy": "MultiInputLstmPolicy"},
    "images": {"env": ImageEnv, "policy": "CnnLstmPolicy"},
    "user's policy": {"policy": OwnPolicy},
    "shared": {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False}},
    "no critic GRU": {"policy_kwargs": {"enable_critic_lstm": False}},
    "2 layers": {"policy_kwargs": {"n_lstm_layers": 2}},
}


@pytest.mark.parametrize("case", CASES)
def test_learns_from_what_the_policy_did(case):
    """Before each update, re-evaluated log-probs and values are those of acting; the update changes every GRU."""
    kwargs = dict(CASES[case])
    model = make_gru(make_vec_env(kwargs.pop("env", "CartPole-v1"), 2, seed=0), **{"learning_rate": 1e-2, **kwargs})
    before = weights(model)
    callback = Reevaluation()
    model.learn(3 * 16 * 2, callback=callback)
    assert len(callback.differences) == 3 * 4
    assert max(callback.differences) < 1e-5
    grus = [name for name, module in model.policy.named_modules() if isinstance(module, GRU)]
    assert not [module for module in model.policy.modules() if isinstance(module, nn.LSTM)]
    assert grus == ["lstm_actor", "lstm_critic"][: 1 + (model.policy.lstm_critic is not None)]
    for name in grus:
        assert weights(model)[f"{name}.weight_hh_l0"].shape == (3 * 16, 16)
        assert (weights(model)[f"{name}.weight_hh_l0"] - before[f"{name}.weight_hh_l0"]).abs().max() > 1e-4


def test_padded_sequences_are_a_loop_over_steps():
    """Values and log-probs of a minibatch are those of torch's GRU cells, called step by step with zeros at episode starts."""
    env = DummyVecEnv([lambda i=i: LenEnv((3, 7, 1, 23), i) for i in range(3)])
    model = make_gru(env, policy_kwargs={"n_lstm_layers": 2, "ortho_init": False}, n_epochs=1)
    model.learn(2 * 16 * 3)  # the last rollout starts inside of episodes
    policy, buffer = model.policy, model.rollout_buffer
    (batch,) = buffer.get(None)
    with th.no_grad():
        values, log_probs, _ = evaluate_actions(policy, batch)

        expected = {}
        for env_id in range(3):
            states = {
                "lstm_actor": buffer.flat_states[0, :, env_id * 16],
                "lstm_critic": buffer.flat_states[2, :, env_id * 16],
            }
            for step in range(16):
                obs = th.as_tensor(buffer.observations[step, env_id])
                latents = {}
                for name, hidden in states.items():
                    x, next_hidden = obs[None], []
                    for layer, state in zip(getattr(policy, name).all_weights, hidden, strict=True):
                        x = th.gru_cell(x, state[None] * float(1 - buffer.episode_starts[step, env_id]), *layer)
                        next_hidden.append(x[0])
                    states[name], latents[name] = th.stack(next_hidden), x
                distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(latents["lstm_actor"]))
                log_prob = distribution.log_prob(th.as_tensor(buffer.actions[step, env_id]))
                value = policy.value_net(policy.mlp_extractor.forward_critic(latents["lstm_critic"]))
                expected[tuple(obs.tolist())] = (value.item(), log_prob.item())
    assert len(expected) == len(values) == 48
    assert batch.max_length > 1
    for i, obs in enumerate(batch.observations.tolist()):
        assert (values[i].item(), log_probs[i].item()) == pytest.approx(expected[tuple(obs)], abs=1e-5)


def test_small_models_act_in_numpy():
    """A GRU alone does not send a small policy to the slower actor."""
    assert NumpyActor.supports(make_gru(cartpole(1)).policy)


def test_optimizer_holds_the_grus():
    """The optimizer updates exactly the policy's parameters, with the user's settings and the schedule's first rate."""
    kwargs = {"optimizer_class": th.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.3}}
    model = make_gru(cartpole(1), learning_rate=lambda left: 0.5 * left, policy_kwargs=kwargs)
    (group,) = model.policy.optimizer.param_groups
    assert type(model.policy.optimizer) is th.optim.AdamW
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.3)
    assert [id(parameter) for parameter in group["params"]] == [id(parameter) for parameter in model.policy.parameters()]


# --- Files and copies


@pytest.mark.parametrize(
    ("env_class", "policy"),
    [
        ("CartPole-v1", "MlpLstmPolicy"),
        (DictImageEnv, "MultiInputLstmPolicy"),
        (ImageEnv, "CnnLstmPolicy"),
        ("CartPole-v1", OwnPolicy),
    ],
)
def test_save_load(env_class, policy, tmp_path):
    """A loaded model has the same weights, predictions and states, and learns on; its file holds the user's arguments."""
    env = make_vec_env(env_class, 2, seed=0)
    model = make_gru(env, policy)
    model.learn(16 * 2)
    loaded = check_save_load(model, tmp_path / "model.zip", SeqRecurrentPPO, env)
    assert type(loaded.policy) is type(model.policy)
    assert type(loaded.policy.lstm_actor) is GRU
    assert loaded.policy_kwargs == model.policy_kwargs
    assert model.policy_kwargs["rnn_type"] == "gru"
    text, pickled = saved_attributes(tmp_path / "model.zip")
    assert "zoo_plugins" not in text
    assert not [key for key, content in pickled.items() if b"zoo_plugins" in content]


def test_recurrent_ppo_says_why_it_can_not_load(tmp_path):
    """RecurrentPPO, which has no GRU, names the argument that it does not know."""
    make_gru(cartpole(1)).save(tmp_path / "model.zip")
    with pytest.raises(TypeError, match="rnn_type"):
        RecurrentPPO.load(tmp_path / "model.zip")


def test_set_parameters_and_deepcopy():
    """Parameters can be set from another model, and a policy can be copied."""
    model, other = make_gru(cartpole(2)), make_gru(cartpole(2), seed=1)
    model.learn(16 * 2)
    assert not th.equal(weights(model)["lstm_actor.weight_hh_l0"], weights(other)["lstm_actor.weight_hh_l0"])
    other.set_parameters(model.get_parameters())
    check_same_predictions(model, other)
    other.policy = deepcopy(model.policy)
    check_same_predictions(model, other)
    assert other.policy.lstm_actor is not model.policy.lstm_actor


def test_evaluation_remembers():
    """SB3's evaluation carries the states, which tell apart two histories with the same last observation."""
    model = make_gru(cartpole(2), policy_kwargs={"ortho_init": False})
    obs = np.ones((1, 4), np.float32)
    _, state = model.predict(obs, None, np.ones(1, bool), deterministic=True)
    _, later = model.predict(obs, state, np.zeros(1, bool), deterministic=True)
    _, reset = model.predict(obs, state, np.ones(1, bool), deterministic=True)
    assert not np.allclose(state[0], later[0], atol=1e-3)
    np.testing.assert_array_equal(reset[0], state[0])
    assert not np.any(later[1])
    returns, lengths = evaluate_policy(model, cartpole(3), n_eval_episodes=6, return_episode_rewards=True)
    assert returns == lengths


# --- rnn_type


@pytest.mark.parametrize(
    ("name", "cls", "env_class"),
    [
        ("MlpLstmPolicy", MlpLstmPolicy, "CartPole-v1"),
        ("CnnLstmPolicy", CnnLstmPolicy, ImageEnv),
        ("MultiInputLstmPolicy", MultiInputLstmPolicy, DictImageEnv),
    ],
)
def test_lstm_is_the_default(name, cls, env_class, tmp_path):
    """rnn_type="lstm" is as good as none: the same class, the same weights, and a file that RecurrentPPO opens."""
    env = make_vec_env(env_class, 2, seed=0)
    models = [make_model(env, name), make_model(env, name, policy_kwargs={"rnn_type": "lstm"})]
    for model in models:
        assert type(model.policy) is cls
        assert "rnn_type" not in model.policy_kwargs
        assert type(model.policy.lstm_actor) is nn.LSTM
    for key, value in weights(models[0]).items():
        assert th.equal(value, weights(models[1])[key])
    models[1].save(tmp_path / "model.zip")
    check_same_predictions(models[1], RecurrentPPO.load(tmp_path / "model.zip"))


def test_policy_kwargs_are_not_changed():
    """The caller's dict keeps rnn_type, and makes several models."""
    for rnn_type, cls in (("gru", GRU), ("lstm", nn.LSTM)):
        policy_kwargs = {"rnn_type": rnn_type, "lstm_hidden_size": 4}
        for _ in range(2):
            model = SeqRecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs=policy_kwargs, device="cpu")
            assert type(model.policy.lstm_actor) is cls
            assert policy_kwargs == {"rnn_type": rnn_type, "lstm_hidden_size": 4}


@pytest.mark.parametrize("rnn_type", ["grv", "GRU", None, ["gru"]])
def test_unknown_rnn_type(rnn_type):
    """An unknown rnn_type is an error at construction, with what is valid."""
    with pytest.raises(ValueError, match="rnn_type in policy_kwargs must be one of lstm, gru, not ") as error:
        make_model(cartpole(1), policy_kwargs={"rnn_type": rnn_type})
    assert repr(rnn_type) in str(error.value)


def test_an_lstm_of_the_user_is_not_replaced():
    """A policy whose LSTM is not PyTorch's own can't become a GRU, and is told so."""
    with pytest.raises(ValueError, match="lstm_actor of policy OwnPolicy is a OwnLSTM: leave rnn_type out"):
        make_gru(cartpole(1), OwnPolicy, policy_kwargs={"own_lstm": True})


def test_lstm_kwargs_of_lstms_only():
    """An argument that only LSTMs have is refused by torch."""
    with pytest.raises(ValueError, match="proj_size"):
        make_gru(DummyVecEnv([lambda: LenEnv((3,))]), policy_kwargs={"lstm_kwargs": {"proj_size": 4}})


# --- The zoo


@pytest.mark.parametrize("policy_kwargs", ["dict(lstm_hidden_size=4, rnn_type='gru')", {"rnn_type": "gru", "net_arch": [4]}])
@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "tests.managers.OwnLstmPolicy"])
def test_yaml(tmp_path, policy, policy_kwargs):
    """The zoo takes rnn_type in policy_kwargs, as a string or a map."""
    block = {**LSTM, "policy": policy, "policy_kwargs": policy_kwargs}
    model, _ = make_manager(tmp_path, "ppo_lstm_seq", block=block).setup_experiment()
    assert type(model.policy.lstm_actor) is GRU
    assert model.learn(32).num_timesteps == 32


@pytest.mark.parametrize(
    ("policy_kwargs", "message"),
    [
        ("dict(rnn_type='grv')", "rnn_type: unknown value 'grv', did you mean 'gru'? Valid: lstm, gru"),
        ("dict(rnn_typ='gru')", "has no argument 'rnn_typ' to set, did you mean 'rnn_type'?"),
    ],
)
def test_wrong_yaml(tmp_path, policy_kwargs, message):
    """A wrong rnn_type, or a misspelt one, is told in one line before anything is made."""
    with pytest.raises(PluginError) as error:
        make_manager(tmp_path, "ppo_lstm_seq", block={**LSTM, "policy_kwargs": policy_kwargs}).setup_experiment()
    assert message in str(error.value)
    assert str(error.value).startswith("policy_kwargs: ")


def test_other_algorithms_have_no_rnn_type(tmp_path):
    """rnn_type is an argument of SeqRecurrentPPO: RecurrentPPO is not given it."""
    with pytest.raises(PluginError, match="has no argument 'rnn_type' to set"):
        make_manager(tmp_path, "ppo_lstm", block={**LSTM, "policy_kwargs": "dict(rnn_type='gru')"}).setup_experiment()
