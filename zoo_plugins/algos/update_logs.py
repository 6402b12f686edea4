"""What is logged of an update."""

import math
from typing import cast

import torch as th
from stable_baselines3 import PPO

from zoo_plugins.algos.losses import LossTerms, read_statistics
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer


def log_update(model: PPO, statistics: list[th.Tensor], epoch_start: int, terms: LossTerms) -> None:
    """
    Fetch what was computed during an update, and log it.

    :param model: The algorithm, with a :class:`TensorRolloutBuffer`
    :param statistics: Statistics of the update's minibatches
    :param epoch_start: Where the last epoch starts among them
    :param terms: Coefficients and clipping parameters
    :raises ValueError: if training diverged
    """
    policy, rollout = model.policy, cast(TensorRolloutBuffer, model.rollout_buffer).rollout
    explained_variance = 1 - (rollout.returns - rollout.values).var() / rollout.returns.var()
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
