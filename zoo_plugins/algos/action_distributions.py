"""
SB3's usual action distributions as plain tensor operations.

For a small policy, building the objects of ``torch.distributions`` takes longer than the networks do. The functions here
give the same numbers, and the same random draws, for diagonal Gaussians, gSDE and categorical distributions, and leave the
rest, and policies with a distribution of their own, to SB3.
"""

import math

import numpy as np
import torch as th
from sb3_contrib.common.maskable.distributions import MaskableCategoricalDistribution, MaskableDistribution
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from torch.nn import functional as F

from zoo_plugins.algos.maskable_policies import MaskableRecurrentActorCriticPolicy

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
CATEGORICAL = (CategoricalDistribution, MaskableCategoricalDistribution)
# As sb3_contrib's: not infinite, so that the entropy has a gradient
MASKED_LOGIT = -1e8


def is_usual(policy: ActorCriticPolicy) -> bool:
    """
    Find out whether a policy's distribution is one of those computed here.

    :param policy: The policy
    :return: whether it is
    """
    usual = (ActorCriticPolicy, MaskableRecurrentActorCriticPolicy)
    if type(policy)._get_action_dist_from_latent not in [cls._get_action_dist_from_latent for cls in usual]:
        return False
    action_dist = policy.action_dist
    if type(action_dist) is StateDependentNoiseDistribution:
        return action_dist.bijector is None
    return type(action_dist) in (DiagGaussianDistribution, *CATEGORICAL)


def sample_actions(
    policy: ActorCriticPolicy, outputs: np.ndarray, latent_pi: np.ndarray, action_masks: np.ndarray | None = None
) -> np.ndarray:
    """
    Sample actions from a usual distribution.

    :param policy: The policy
    :param outputs: Output of its action network. Shape: (n_envs, n_outputs)
    :param latent_pi: Output of its actor's MLP. Shape: (n_envs, latent_dim)
    :param action_masks: Which actions are valid, None for all; at least one is. Shape: (n_envs, n_outputs)
    :return: actions. Shape: (n_envs, action_dim), or (n_envs,) for Discrete spaces
    :raises ValueError: if the outputs are not finite
    """
    if not math.isfinite(outputs.sum()):
        raise ValueError(f"the outputs of the policy are not finite: {outputs}")
    action_dist = policy.action_dist
    if isinstance(action_dist, CATEGORICAL):
        # As torch.multinomial draws a single sample: the first of several exponential clocks to ring
        clocks = th.empty(outputs.shape).exponential_().numpy()
        if action_masks is not None:
            # Never, even if a clock shows zero
            clocks[~action_masks] = np.inf
            outputs = np.where(action_masks, outputs, -np.inf)
        return np.argmax(np.exp(outputs - outputs.max(axis=1, keepdims=True)) / clocks, axis=1)
    if isinstance(action_dist, StateDependentNoiseDistribution):
        # One matrix per environment, unless there is only one of them (see StateDependentNoiseDistribution.get_noise)
        if len(latent_pi) == 1 or len(latent_pi) != len(action_dist.exploration_matrices):
            return outputs + latent_pi @ action_dist.exploration_mat.detach().numpy()
        return outputs + np.matmul(latent_pi[:, None], action_dist.exploration_matrices.detach().numpy())[:, 0]
    noise = th.randn(outputs.shape).numpy()
    return outputs + np.exp(policy.log_std.detach().numpy()) * noise


@th.no_grad()
def reset_noise(policy: ActorCriticPolicy, n_envs: int) -> None:
    """
    Sample new noise matrices for gSDE, as ``policy.reset_noise(n_envs)`` does.

    :param policy: A policy with gSDE
    :param n_envs: Number of environments
    """
    action_dist = policy.action_dist
    if not is_usual(policy) or type(action_dist) is not StateDependentNoiseDistribution:
        policy.reset_noise(n_envs)
        return
    std = action_dist.get_std(policy.log_std)
    action_dist.exploration_mat = std * th.randn_like(std)
    action_dist.exploration_matrices = std * th.randn((n_envs, *std.shape), device=std.device)


def log_prob_and_entropy(
    policy: ActorCriticPolicy, latent_pi: th.Tensor, actions: th.Tensor, action_masks: th.Tensor | None = None
) -> tuple[th.Tensor, th.Tensor | None]:
    """
    Evaluate actions.

    :param policy: The policy
    :param latent_pi: Output of its actor's MLP. Shape: (n_steps, latent_dim)
    :param actions: Actions, integers for Discrete spaces. Shape: (n_steps, action_dim), or (n_steps,) for Discrete spaces
    :param action_masks: Which actions were valid, None for all; only for maskable policies. Shape: (n_steps, n_choices)
    :return: log probabilities, and entropies of the distribution (None without an analytical form). Shape: (n_steps,)
    """
    if not is_usual(policy):
        distribution = policy._get_action_dist_from_latent(latent_pi)
        if action_masks is not None:
            assert isinstance(distribution, MaskableDistribution)
            distribution.apply_masking(action_masks)
        return distribution.log_prob(actions), distribution.entropy()

    outputs = policy.action_net(latent_pi)
    action_dist = policy.action_dist
    if isinstance(action_dist, CATEGORICAL):
        if action_masks is not None:
            outputs = th.where(action_masks, outputs, MASKED_LOGIT)
        # The probability of a masked action is exactly zero, and so is its part of the entropy
        log_probs = F.log_softmax(outputs, dim=-1)
        return log_probs.gather(1, actions[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(dim=-1)

    if isinstance(action_dist, StateDependentNoiseDistribution):
        latent_sde = latent_pi if action_dist.learn_features else latent_pi.detach()
        variance = th.mm(latent_sde**2, action_dist.get_std(policy.log_std) ** 2) + action_dist.epsilon
        log_std = 0.5 * th.log(variance)
    else:
        log_std = policy.log_std.expand_as(outputs)
        variance = th.exp(2 * policy.log_std)
    log_prob = -((actions - outputs) ** 2) / (2 * variance) - log_std - LOG_SQRT_2PI
    return log_prob.sum(dim=-1), (0.5 + LOG_SQRT_2PI + log_std).sum(dim=-1)
