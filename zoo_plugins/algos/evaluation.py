"""The forward pass of a recurrent policy over the sequences of a minibatch."""

from typing import Any

import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from torch import nn

from zoo_plugins.algos.action_distributions import log_prob_and_entropy
from zoo_plugins.buffers.sequence_batch import SequenceBatch


def evaluate_actions(
    policy: RecurrentActorCriticPolicy, batch: SequenceBatch
) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
    """
    Evaluate the actions of a minibatch according to the current policy.

    Same result as sb3_contrib's ``RecurrentActorCriticPolicy.evaluate_actions``, in one call per LSTM.

    :param policy: The policy
    :param batch: The minibatch
    :return: values, log likelihood of the actions and entropy of the action distribution
        (None without an analytical form). Shape of each: (n_steps,)
    """
    features = policy.extract_features(batch.observations)
    pi_features, vf_features = (features, features) if isinstance(features, th.Tensor) else features

    latent_pi = run_lstm(policy.lstm_actor, pi_features, batch.lstm_states.pi, batch)
    if policy.lstm_critic is not None:
        latent_vf = run_lstm(policy.lstm_critic, vf_features, batch.lstm_states.vf, batch)
    elif policy.shared_lstm:
        # Only the actor's gradient reaches a shared LSTM
        latent_vf = latent_pi.detach()
    else:
        assert policy.critic is not None
        latent_vf = policy.critic(batch.drop_context(vf_features))

    log_prob, entropy = log_prob_and_entropy(
        policy, policy.mlp_extractor.forward_actor(latent_pi), as_taken(batch.actions, policy.action_space)
    )
    values = policy.value_net(policy.mlp_extractor.forward_critic(latent_vf)).flatten()
    return values, log_prob, entropy


def run_lstm(lstm: nn.LSTM, features: th.Tensor, states: tuple[th.Tensor, ...], batch: SequenceBatch) -> th.Tensor:
    """
    Run an LSTM over all sequences of a minibatch at once.

    :param lstm: The LSTM
    :param features: Its input. Shape: (n_inputs, features_dim)
    :param states: Hidden and cell states at the start of each sequence. Shape of each: (n_layers, n_seq, hidden_size)
    :param batch: The minibatch that the features come from
    :return: Its output. Shape: (n_steps, hidden_size)
    """
    output, _ = lstm(batch.pad(features), states)
    return batch.unpad(output)


def as_taken(actions: th.Tensor, action_space: spaces.Space[Any]) -> th.Tensor:
    """
    Undo the shape and type in which a rollout buffer holds actions.

    :param actions: Stored actions. Shape: (n_steps, action_dim)
    :param action_space: Action space
    :return: actions as the distribution takes them
    """
    if isinstance(action_space, spaces.Discrete):
        return actions.long().flatten()
    # MultiBinary ones are stored as int8, for which no Bernoulli log-probability exists
    return actions.float()
