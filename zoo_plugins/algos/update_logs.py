"""What is logged of an update."""

import math

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from zoo_plugins.algos.losses import LossTerms, read_statistics


def log_update(
    model: OnPolicyAlgorithm,
    statistics: list[th.Tensor],
    epoch_start: int,
    terms: LossTerms,
    values: th.Tensor,
    returns: th.Tensor,
) -> None:
    """
    Fetch what was computed during an update, all at once, and log it.

    :param model: The algorithm
    :param statistics: Statistics of the update's minibatches
    :param epoch_start: Where the last epoch starts among them
    :param terms: Coefficients and clipping parameters
    :param values: Predicted values of the rollout. Shape: that of ``returns``
    :param returns: Estimated returns of the rollout
    :raises ValueError: if training diverged
    """
    policy, variance = model.policy, returns.var(correction=0)
    # NaN if there is no variance to explain, as SB3's
    explained_variance = 1 - (returns - values).var(correction=0) / th.where(variance == 0, th.nan, variance)
    sum_of_parameters = th.stack([parameter.detach().sum() for parameter in policy.parameters()]).sum()
    std = [policy.log_std.detach().exp().mean()] if hasattr(policy, "log_std") else []
    logs, further = read_statistics(statistics, epoch_start, sum_of_parameters, explained_variance, *std)
    # Otherwise only the next rollout would tell, by an error of the device
    if not math.isfinite(further[0]):
        raise ValueError("training diverged: the parameters of the policy are not finite")

    for key, value in logs.items():
        model.logger.record(f"train/{key}", value)
    for key, value in zip(("explained_variance", "std"), further[1:], strict=False):
        model.logger.record(f"train/{key}", value)
    model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
    model.logger.record("train/clip_range", terms.clip_range)
    if terms.clip_range_vf is not None:
        model.logger.record("train/clip_range_vf", terms.clip_range_vf)
