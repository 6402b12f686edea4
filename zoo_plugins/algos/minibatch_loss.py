"""The loss of a minibatch of single steps."""

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from zoo_plugins.algos import feedforward
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.algos.losses import LossTerms, ppo_loss


def plain_loss(policy: ActorCriticPolicy, batch: RolloutBufferSamples, terms: LossTerms) -> tuple[th.Tensor, th.Tensor]:
    """
    Compute the loss of a minibatch, by operations that can be compiled or recorded.

    :param policy: The policy
    :param batch: The minibatch
    :param terms: Coefficients and clipping parameters
    :return: the loss, and its :data:`~zoo_plugins.algos.losses.STATISTICS`
    """
    return ppo_loss(*feedforward.evaluate_actions(policy, batch.observations, batch.actions), batch, terms)


def fast_loss(policy: ActorCriticPolicy, batch: RolloutBufferSamples, terms: LossTerms) -> tuple[th.Tensor, th.Tensor]:
    """
    Compute the same as :func:`plain_loss`, with written-down gradients where there are some.

    :param policy: The policy
    :param batch: The minibatch
    :param terms: Coefficients and clipping parameters
    :return: the loss, and its :data:`~zoo_plugins.algos.losses.STATISTICS`
    """
    if feedforward.is_plain(policy) and FusedPPOLoss.supports(policy):
        return FusedPPOLoss(policy, terms)(*feedforward.latents(policy, batch.observations), batch)
    return plain_loss(policy, batch, terms)
