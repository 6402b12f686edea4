"""The loss of PPO on a minibatch."""

from typing import NamedTuple

import torch as th
from torch.nn import functional as F

from zoo_plugins.buffers.sequence_batch import SequenceBatch

# What is logged about a minibatch, in this order
STATISTICS = ("entropy_loss", "policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "loss")


class LossTerms(NamedTuple):
    """
    What the loss of a minibatch depends on beside the minibatch.

    :param clip_range: Clipping parameter of the policy's objective
    :param clip_range_vf: Clipping parameter of the value function, None for no clipping
    :param ent_coef: Entropy coefficient
    :param vf_coef: Value function coefficient
    :param normalize_advantage: Whether to normalize the advantages of the minibatch
    """

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool


def ppo_loss(
    values: th.Tensor, log_prob: th.Tensor, entropy: th.Tensor | None, batch: SequenceBatch, terms: LossTerms
) -> tuple[th.Tensor, th.Tensor]:
    """
    PPO loss of a minibatch.

    Paper: https://arxiv.org/abs/1707.06347

    :param values: Values. Shape: (n_steps,)
    :param log_prob: Log likelihood of the actions. Shape: (n_steps,)
    :param entropy: Entropy of the action distribution, None without an analytical form. Shape: (n_steps,)
    :param batch: The minibatch
    :param terms: Coefficients and clipping parameters
    :return: the loss, and its :data:`STATISTICS`, detached
    """
    advantages = batch.advantages
    # Normalization does not make sense for a single timestep, see stable-baselines3 issue #325
    if terms.normalize_advantage and len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    # ratio between old and new policy, should be one at the first iteration
    log_ratio = log_prob - batch.old_log_prob
    ratio = th.exp(log_ratio)
    clipped_ratio = th.clamp(ratio, 1 - terms.clip_range, 1 + terms.clip_range)
    policy_loss = -th.min(advantages * ratio, advantages * clipped_ratio).mean()

    if terms.clip_range_vf is not None:
        values = batch.old_values + th.clamp(values - batch.old_values, -terms.clip_range_vf, terms.clip_range_vf)
    value_loss = F.mse_loss(values, batch.returns)

    # Without an analytical form, -log_prob approximates the entropy
    entropy_loss = -th.mean(-log_prob if entropy is None else entropy)

    loss = policy_loss + terms.ent_coef * entropy_loss + terms.vf_coef * value_loss
    with th.no_grad():
        # See http://joschu.net/blog/kl-approx.html
        approx_kl = th.mean((ratio - 1) - log_ratio)
        clip_fraction = th.mean((th.abs(ratio - 1) > terms.clip_range).float())
        return loss, th.stack([entropy_loss, policy_loss, value_loss, approx_kl, clip_fraction, loss])
