"""The loss of PPO on a minibatch."""

import math
from typing import NamedTuple, Protocol

import torch as th
from torch.nn import functional as F

# What is logged about a minibatch, in this order
STATISTICS = ("entropy_loss", "policy_gradient_loss", "value_loss", "approx_kl", "clip_fraction", "loss")


class Minibatch(Protocol):
    """What the loss needs of a minibatch, whatever buffer it is from."""

    @property
    def actions(self) -> th.Tensor:
        """Shape: (n_steps, action_dim)."""

    @property
    def old_values(self) -> th.Tensor:
        """Shape: (n_steps,)."""

    @property
    def old_log_prob(self) -> th.Tensor:
        """Shape: (n_steps,)."""

    @property
    def advantages(self) -> th.Tensor:
        """Shape: (n_steps,)."""

    @property
    def returns(self) -> th.Tensor:
        """Shape: (n_steps,)."""


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
    values: th.Tensor, log_prob: th.Tensor, entropy: th.Tensor | None, batch: Minibatch, terms: LossTerms
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


def read_statistics(
    statistics: list[th.Tensor], epoch_start: int, *further: th.Tensor
) -> tuple[dict[str, float], list[float]]:
    """
    Fetch what was computed during an update, all at once: each fetch waits for the device.

    :param statistics: :data:`STATISTICS` of its minibatches
    :param epoch_start: Where the last epoch starts among them
    :param further: Other numbers
    :return: what SB3 logs: means over the update, ``approx_kl`` of its last epoch, and ``loss`` of its last minibatch; the
        other numbers
    :raises ValueError: if the loss is not finite
    """
    rows = th.stack(statistics)
    read = th.cat([rows.mean(dim=0), rows[epoch_start:].mean(dim=0), rows[-1], *(number.reshape(1) for number in further)])
    numbers = read.cpu().tolist()
    n = len(STATISTICS)
    means, last_epoch, last_row = (dict(zip(STATISTICS, numbers[i * n : (i + 1) * n], strict=True)) for i in range(3))
    if not math.isfinite(last_row["loss"]):
        raise ValueError(f"training diverged: the loss is {last_row['loss']}")
    return {**means, "approx_kl": last_epoch["approx_kl"], "loss": last_row["loss"]}, numbers[3 * n :]
