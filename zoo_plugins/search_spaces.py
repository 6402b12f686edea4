"""
Search spaces of our algorithms, for ``-optimize``.

A sampler suggests parameters in transformed form (``batch_size_pow``, ``one_minus_gamma``) and returns what its converter
makes of them, so that ``--trial-id``, which only has the stored parameters, gives the same hyperparameters back.
"""

from typing import Any

import optuna
from torch import nn

NET_ARCH = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}
ACTIVATION_FN = {"tanh": nn.Tanh, "relu": nn.ReLU}
CRITIC = {
    "lstm": dict(enable_critic_lstm=True, shared_lstm=False),
    "shared_lstm": dict(enable_critic_lstm=False, shared_lstm=True),
    "feedforward": dict(enable_critic_lstm=False, shared_lstm=False),
}
RNN_TYPE = ("lstm", "gru")
SAMPLING = ("contiguous", "sequences")
MAX_SEQ_LENGTH = (None, 16, 64)


def sample_ppo_lstm_seq_params(
    trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Sample hyperparameters of SeqRecurrentPPO.

    Like the zoo's ``ppo``, with room for what its tuned ``ppo_lstm`` agents use (a discount factor of 0.9, a learning rate of
    1e-3), and without minibatches so small, or rollouts so long, that a trial takes a multiple of its budget of timesteps or
    of the time of its neighbours.

    :param trial: Optuna trial
    :param n_actions: Number of actions, not used
    :param n_envs: Number of environments; the rollout has at most 2**14 timesteps over all of them
    :param additional_args: The zoo's additional arguments, not used
    :return: the sampled hyperparameters
    """
    max_n_steps_pow = max(5, min(11, 14 - (n_envs - 1).bit_length()))
    params = {
        "n_steps_pow": trial.suggest_int("n_steps_pow", 5, max_n_steps_pow),
        "batch_size_pow": trial.suggest_int("batch_size_pow", 6, 11),
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True),
        "one_minus_gae_lambda": trial.suggest_float("one_minus_gae_lambda", 0.0001, 0.2, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 0.005, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4]),
        "n_epochs": trial.suggest_categorical("n_epochs", [1, 5, 10, 20]),
        "max_grad_norm": trial.suggest_float("max_grad_norm", 0.3, 2.0),
        "net_arch": trial.suggest_categorical("net_arch", list(NET_ARCH)),
        "activation_fn": trial.suggest_categorical("activation_fn", list(ACTIVATION_FN)),
        "lstm_hidden_size_pow": trial.suggest_int("lstm_hidden_size_pow", 4, 8),
        "critic": trial.suggest_categorical("critic", list(CRITIC)),
        "rnn_type": trial.suggest_categorical("rnn_type", RNN_TYPE),
        "sampling": trial.suggest_categorical("sampling", SAMPLING),
        "max_seq_length": trial.suggest_categorical("max_seq_length", MAX_SEQ_LENGTH),
    }
    hyperparams = convert_ppo_lstm_seq_params(params)
    # Display true values
    for key in ("gamma", "gae_lambda", "n_steps", "batch_size"):
        trial.set_user_attr(key, hyperparams[key])
    return hyperparams


def convert_ppo_lstm_seq_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    Convert sampled parameters to hyperparameters of SeqRecurrentPPO.

    :param sampled_params: Parameters as they are stored in a trial; those of older studies have no ``rnn_type``, ``sampling``
        and ``max_seq_length``
    :return: hyperparameters
    """
    params = dict(sampled_params)
    lstm = {"lstm_hidden_size": 2 ** params.pop("lstm_hidden_size_pow"), **CRITIC[params.pop("critic")]}
    if "rnn_type" in params:
        lstm["rnn_type"] = params.pop("rnn_type")
    return _convert_ppo_params(params, lstm)


def sample_ppo_tensor_params(
    trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Sample hyperparameters of TensorPPO.

    Like the zoo's ``ppo``, for any number of environments: rollouts are short, and minibatches large, where there are many.

    :param trial: Optuna trial
    :param n_actions: Number of actions, not used
    :param n_envs: Number of environments; the rollout has at most 2**16 timesteps over all of them
    :param additional_args: The zoo's additional arguments, not used
    :return: the sampled hyperparameters
    """
    n_envs_pow = (n_envs - 1).bit_length()
    params = {
        "n_steps_pow": trial.suggest_int("n_steps_pow", 3, max(3, min(11, 16 - n_envs_pow))),
        "batch_size_pow": trial.suggest_int("batch_size_pow", max(6, n_envs_pow), max(11, n_envs_pow + 2)),
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True),
        "one_minus_gae_lambda": trial.suggest_float("one_minus_gae_lambda", 0.0001, 0.2, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 0.005, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4]),
        "n_epochs": trial.suggest_categorical("n_epochs", [1, 4, 10, 20]),
        "max_grad_norm": trial.suggest_float("max_grad_norm", 0.3, 2.0),
        "net_arch": trial.suggest_categorical("net_arch", list(NET_ARCH)),
        "activation_fn": trial.suggest_categorical("activation_fn", list(ACTIVATION_FN)),
    }
    hyperparams = convert_ppo_tensor_params(params)
    # Display true values
    for key in ("gamma", "gae_lambda", "n_steps", "batch_size"):
        trial.set_user_attr(key, hyperparams[key])
    return hyperparams


def convert_ppo_tensor_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    Convert sampled parameters to hyperparameters of TensorPPO.

    :param sampled_params: Parameters as they are stored in a trial
    :return: hyperparameters
    """
    return _convert_ppo_params(dict(sampled_params), {})


def _convert_ppo_params(params: dict[str, Any], further_policy_kwargs: dict[str, Any]) -> dict[str, Any]:
    arch = NET_ARCH[params.pop("net_arch")]
    policy_kwargs = {
        "net_arch": {"pi": list(arch), "vf": list(arch)},
        "activation_fn": ACTIVATION_FN[params.pop("activation_fn")],
        **further_policy_kwargs,
    }
    return {
        "n_steps": 2 ** params.pop("n_steps_pow"),
        "batch_size": 2 ** params.pop("batch_size_pow"),
        "gamma": 1 - params.pop("one_minus_gamma"),
        "gae_lambda": 1 - params.pop("one_minus_gae_lambda"),
        "policy_kwargs": policy_kwargs,
        **params,
    }
