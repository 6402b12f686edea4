"""Forward passes of SB3's actor-critic policies, with few operations, of which none waits for the device."""

from types import TracebackType

import torch as th
from stable_baselines3.common.distributions import CategoricalDistribution, DiagGaussianDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch.distributions import Distribution
from torch.nn import functional as F

from zoo_plugins.algos import action_distributions
from zoo_plugins.algos.action_distributions import LOG_SQRT_2PI, log_prob_and_entropy
from zoo_plugins.algos.evaluation import as_taken
from zoo_plugins.algos.mlps import forward_actor, forward_critic
from zoo_plugins.vec_envs.tensor_step import TensorObs

# What a policy of the user's own may do in another way
FORWARD_PASSES = ("forward", "evaluate_actions", "predict_values", "extract_features")
# Observations whose values are predicted in one call: few calls, whose intermediate results fit into a cache
ROWS_AT_ONCE = 4096


class NoValidation:
    """
    Context in which distributions of PyTorch do not look at their parameters and samples.

    They do so by default, and each time wait for the device to tell whether all are valid.
    """

    def __enter__(self) -> None:
        self.before = Distribution._validate_args
        Distribution.set_default_validate_args(False)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        Distribution.set_default_validate_args(self.before)


def is_plain(policy: ActorCriticPolicy) -> bool:
    """
    Find out whether a policy has the forward passes of SB3's own.

    :param policy: The policy
    :return: whether it does; its networks and its distribution may be of any kind
    """
    return all(getattr(type(policy), name) is getattr(ActorCriticPolicy, name) for name in FORWARD_PASSES)


def values_can_wait(policy: ActorCriticPolicy) -> bool:
    """
    Find out whether values can be predicted after a rollout, at no additional cost.

    :param policy: The policy
    :return: whether actor and critic have nothing in common that takes time
    """
    extractors = (policy.pi_features_extractor, policy.vf_features_extractor)
    return is_plain(policy) and all(type(extractor) is FlattenExtractor for extractor in extractors)


@th.no_grad()
def act(policy: ActorCriticPolicy, obs: TensorObs) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
    """
    Choose actions, with the random draws of ``policy(obs)``.

    :param policy: The policy
    :param obs: Observations. Shape: ``(n_envs, *obs_shape)``
    :return: actions, shape ``(n_envs, *action_shape)``; their log likelihood, shape ``(n_envs,)``; values, shape
        ``(n_envs, 1)``, ``None`` if :func:`values_can_wait`
    """
    if not values_can_wait(policy):
        with NoValidation():
            actions, values, log_prob = policy(obs)
        return actions, log_prob, values
    features = BasePolicy.extract_features(policy, obs, policy.pi_features_extractor)
    actions, log_prob = sample_actions(policy, forward_actor(policy.mlp_extractor, features))
    return actions.reshape(-1, *policy.action_space.shape), log_prob, None  # type: ignore[misc]


def sample_actions(policy: ActorCriticPolicy, latent_pi: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    Sample actions.

    :param policy: The policy
    :param latent_pi: Output of its actor's MLP. Shape: ``(n_envs, latent_dim)``
    :return: actions as the distribution gives them, and their log likelihood
    """
    if action_distributions.is_usual(policy):
        outputs = policy.action_net(latent_pi)
        if type(policy.action_dist) is CategoricalDistribution:
            log_probs = F.log_softmax(outputs, dim=-1)
            # As torch.multinomial draws a single sample: the first of several exponential clocks to ring
            actions = th.argmax(log_probs.exp() / th.empty_like(outputs).exponential_(), dim=-1)
            return actions, log_probs.gather(1, actions[:, None]).squeeze(1)
        if type(policy.action_dist) is DiagGaussianDistribution:
            noise = th.randn_like(outputs)
            log_prob = -(0.5 * noise * noise + (policy.log_std + LOG_SQRT_2PI)).sum(dim=-1)
            return outputs + noise * policy.log_std.exp(), log_prob
    with NoValidation():
        distribution = policy._get_action_dist_from_latent(latent_pi)
        actions = distribution.get_actions()
        return actions, distribution.log_prob(actions)


@th.no_grad()
def predict_values(policy: ActorCriticPolicy, obs: TensorObs, out: th.Tensor) -> None:
    """
    Predict values of many observations.

    :param policy: The policy
    :param obs: Observations. Shape: ``(n, *obs_shape)``
    :param out: Where to write the values. Shape: ``(n,)``
    """
    for start in range(0, len(out), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        part = {key: tensor[rows] for key, tensor in obs.items()} if isinstance(obs, dict) else obs[rows]
        out[rows].copy_(_values(policy, part).squeeze(-1))


def _values(policy: ActorCriticPolicy, obs: TensorObs) -> th.Tensor:
    if not is_plain(policy):
        return policy.predict_values(obs)
    features = BasePolicy.extract_features(policy, obs, policy.vf_features_extractor)
    return policy.value_net(forward_critic(policy.mlp_extractor, features))


def latents(policy: ActorCriticPolicy, obs: TensorObs) -> tuple[th.Tensor, th.Tensor]:
    """
    Extract features.

    :param policy: A policy that :func:`is_plain`
    :param obs: Observations. Shape: ``(n_steps, *obs_shape)``
    :return: inputs of the MLPs of actor and critic. Shape of each: ``(n_steps, features_dim)``
    """
    features = policy.extract_features(obs)
    return (features, features) if isinstance(features, th.Tensor) else features


def evaluate_actions(
    policy: ActorCriticPolicy, obs: TensorObs, actions: th.Tensor
) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
    """
    Evaluate actions according to the current policy, as ``policy.evaluate_actions(obs, actions)`` does.

    :param policy: The policy
    :param obs: Observations. Shape: ``(n_steps, *obs_shape)``
    :param actions: Actions as a rollout buffer holds them. Shape: ``(n_steps, action_dim)``
    :return: values, log likelihood of the actions and entropy of the action distribution
        (None without an analytical form). Shape of each: ``(n_steps,)``
    """
    actions = as_taken(actions, policy.action_space)
    if not is_plain(policy):
        values, log_prob, entropy = policy.evaluate_actions(obs, actions)
        return values.flatten(), log_prob, entropy
    latent_pi, latent_vf = latents(policy, obs)
    values = policy.value_net(policy.mlp_extractor.forward_critic(latent_vf)).flatten()
    return values, *log_prob_and_entropy(policy, policy.mlp_extractor.forward_actor(latent_pi), actions)
