"""The forward pass of a recurrent policy over the sequences of a minibatch."""

from typing import Any

import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

from zoo_plugins.algos.action_distributions import log_prob_and_entropy
from zoo_plugins.buffers.sequence_batch import SequenceBatch


def read_sequences(policy: RecurrentActorCriticPolicy, batch: SequenceBatch) -> tuple[th.Tensor, th.Tensor]:
    """
    Run the recurrent part of a policy over a minibatch, in one call per LSTM.

    :param policy: The policy
    :param batch: The minibatch
    :return: latents of actor and critic before their MLPs. Shape of each: (n_steps, hidden_size)
    """
    features = policy.extract_features(batch.observations)
    pi_features, vf_features = (features, features) if isinstance(features, th.Tensor) else features

    pi_sequences = batch.pad(pi_features)
    latent_pi = batch.unpad(policy.lstm_actor(pi_sequences, batch.lstm_states.pi)[0])
    if policy.lstm_critic is not None:
        vf_sequences = pi_sequences if vf_features is pi_features else batch.pad(vf_features)
        latent_vf = batch.unpad(policy.lstm_critic(vf_sequences, batch.lstm_states.vf)[0])
    elif policy.shared_lstm:
        # Only the actor's gradient reaches a shared LSTM
        latent_vf = latent_pi.detach()
    else:
        assert policy.critic is not None
        latent_vf = policy.critic(batch.drop_context(vf_features))
    return latent_pi, latent_vf


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
    latent_pi, latent_vf = read_sequences(policy, batch)
    log_prob, entropy = log_prob_and_entropy(
        policy,
        policy.mlp_extractor.forward_actor(latent_pi),
        as_taken(batch.actions, policy.action_space),
        batch.action_masks,
    )
    values = policy.value_net(policy.mlp_extractor.forward_critic(latent_vf)).flatten()
    return values, log_prob, entropy


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
