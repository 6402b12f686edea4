"""
The heads of a small policy and the PPO loss as one differentiable operation, on the CPU.

With minibatches of a few hundred timesteps, recording a graph of a hundred small operations in PyTorch and walking it
backwards takes longer than the arithmetic. Here the gradient is written down instead. What is done to one number per
timestep is done by NumPy, which has less overhead. Matrices are multiplied by PyTorch: NumPy's BLAS has threads of its own,
which ``torch.set_num_threads`` does not limit, and which take many times longer when other processes want the cores too.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn
from torch.autograd.function import once_differentiable

from zoo_plugins.algos import action_distributions
from zoo_plugins.algos.action_distributions import CATEGORICAL, LOG_SQRT_2PI, MASKED_LOGIT
from zoo_plugins.algos.evaluation import as_taken
from zoo_plugins.algos.losses import STATISTICS, LossTerms, Minibatch
from zoo_plugins.algos.mlps import tanh_

# Turns gradients of log probabilities (one per timestep) and entropies (the same for all) into gradients of the outputs, the
# last hidden layer (if they depend on it otherwise) and the scale (if there is one)
EvaluationBackward = Callable[[np.ndarray, float], tuple[np.ndarray, th.Tensor | None, th.Tensor | None]]
Evaluation = tuple[np.ndarray, np.ndarray, EvaluationBackward]


class FusedPPOLoss:
    """
    PPO loss of minibatches, from what goes into the MLPs of a policy: outputs of its recurrent part, or features.

    Same loss and gradient as :func:`zoo_plugins.algos.losses.ppo_loss` after the heads of the policy. It refers to the
    policy's weights, which an optimizer may change in place, but nobody may replace.

    :param policy: A policy that :meth:`supports`
    :param terms: Coefficients and clipping parameters
    """

    def __init__(self, policy: ActorCriticPolicy, terms: LossTerms):
        self.policy = policy
        self.terms = terms
        self.pi_net = [*policy.mlp_extractor.policy_net, policy.action_net]
        self.vf_net = [*policy.mlp_extractor.value_net, policy.value_net]
        self.weights = [weight for layer in (*self.pi_net, *self.vf_net) for weight in layer.parameters()]

    @staticmethod
    def supports(policy: ActorCriticPolicy) -> bool:
        """
        Find out whether the heads of a policy consist of what is implemented here.

        :param policy: The policy
        :return: whether they do
        """
        if policy.device.type != "cpu" or type(policy.mlp_extractor) is not MlpExtractor:
            return False
        layers = [*policy.mlp_extractor.policy_net, *policy.mlp_extractor.value_net, policy.action_net, policy.value_net]
        return action_distributions.is_usual(policy) and all(type(layer) in (nn.Linear, nn.Tanh, nn.ReLU) for layer in layers)

    def __call__(
        self, latent_pi: th.Tensor, latent_vf: th.Tensor, batch: Minibatch, action_masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the loss of a minibatch.

        :param latent_pi: Input of the actor's MLP. Shape: (n_steps, hidden_size)
        :param latent_vf: Input of the critic's MLP. Shape: (n_steps, hidden_size)
        :param batch: The minibatch
        :param action_masks: Which actions were valid, None for all. Shape: (n_steps, n_choices)
        :return: the loss, and its :data:`~zoo_plugins.algos.losses.STATISTICS`
        """
        action_dist = self.policy.action_dist
        scale = None
        if isinstance(action_dist, StateDependentNoiseDistribution):
            scale = action_dist.get_std(self.policy.log_std)
        elif not isinstance(action_dist, CATEGORICAL):
            scale = self.policy.log_std
        statistics = np.empty(len(STATISTICS), dtype=np.float32)
        constants = _Constants(self, batch, action_masks, statistics)
        return _Function.apply(constants, latent_pi, latent_vf, scale, *self.weights), th.from_numpy(statistics)


class _Constants(NamedTuple):
    """What the loss depends on, but for what has a gradient."""

    loss: FusedPPOLoss
    batch: Minibatch
    action_masks: th.Tensor | None
    statistics: np.ndarray


class _Function(th.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, constants: _Constants, latent_pi: th.Tensor, latent_vf: th.Tensor, scale: th.Tensor | None, *_: th.Tensor
    ) -> th.Tensor:
        loss, batch, action_masks, statistics = constants
        terms, action_dist = loss.terms, loss.policy.action_dist
        actions = as_taken(batch.actions, loss.policy.action_space).numpy()
        pi_outputs, vf_outputs = _forward(loss.pi_net, latent_pi), _forward(loss.vf_net, latent_vf)
        outputs, values = pi_outputs[-1].numpy(), vf_outputs[-1].numpy()[:, 0]
        if scale is None:
            log_prob, entropy, ctx.evaluation_backward = _categorical(outputs, actions, action_masks)
        elif isinstance(action_dist, StateDependentNoiseDistribution):
            log_prob, entropy, ctx.evaluation_backward = _state_dependent(pi_outputs[-2], outputs, actions, scale, action_dist)
        else:
            log_prob, entropy, ctx.evaluation_backward = _gaussian(outputs, actions, scale.numpy())

        n_steps = len(log_prob)
        advantages = batch.advantages.numpy()
        if terms.normalize_advantage and n_steps > 1:
            advantages = advantages - advantages.sum() / n_steps
            advantages /= np.sqrt((advantages * advantages).sum() / (n_steps - 1)) + 1e-8
        log_ratio = log_prob - batch.old_log_prob.numpy()
        ratio = np.exp(log_ratio)
        objective = advantages * ratio
        clipped_objective = advantages * ratio.clip(1 - terms.clip_range, 1 + terms.clip_range)
        policy_loss = -np.minimum(objective, clipped_objective).sum() / n_steps
        # Where the clipped objective is the smaller one, the ratio has no influence
        objective[clipped_objective < objective] = 0.0
        ctx.grad_log_prob = objective

        old_values = batch.old_values.numpy()
        change = values - old_values
        if terms.clip_range_vf is not None:
            values = old_values + change.clip(-terms.clip_range_vf, terms.clip_range_vf)
        error = values - batch.returns.numpy()
        value_loss = (error * error).sum() / n_steps
        if terms.clip_range_vf is not None:
            error[np.abs(change) > terms.clip_range_vf] = 0.0
        ctx.grad_values = error

        entropy_loss = -entropy.sum() / len(entropy)
        total = policy_loss + terms.ent_coef * entropy_loss + terms.vf_coef * value_loss
        ratio -= 1
        # See http://joschu.net/blog/kl-approx.html
        approx_kl = (ratio - log_ratio).sum() / n_steps
        clip_fraction = np.count_nonzero(np.abs(ratio) > terms.clip_range) / n_steps
        statistics[:] = entropy_loss, policy_loss, value_loss, approx_kl, clip_fraction, total
        ctx.loss, ctx.pi_outputs, ctx.vf_outputs = loss, pi_outputs, vf_outputs
        return th.tensor(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: th.Tensor) -> tuple[th.Tensor | None, ...]:
        terms = ctx.loss.terms
        grad_mean = grad_total.numpy() / np.float32(len(ctx.grad_values))
        grad_log_prob = (ctx.grad_log_prob * -grad_mean)[:, None]
        grads = ctx.evaluation_backward(grad_log_prob, -terms.ent_coef * grad_mean)
        grad_outputs, grad_hidden, grad_scale = th.from_numpy(grads[0]), grads[1], grads[2]
        grad_values = th.from_numpy(ctx.grad_values * (2 * terms.vf_coef * grad_mean))[:, None]

        _, pi_has_grad, vf_has_grad, *_ = ctx.needs_input_grad
        pi_grads = _backward(ctx.loss.pi_net, ctx.pi_outputs, grad_outputs, pi_has_grad, grad_hidden)
        vf_grads = _backward(ctx.loss.vf_net, ctx.vf_outputs, grad_values, vf_has_grad)
        return None, pi_grads[0], vf_grads[0], grad_scale, *pi_grads[1:], *vf_grads[1:]


def _categorical(outputs: np.ndarray, actions: np.ndarray, action_masks: th.Tensor | None) -> Evaluation:
    if action_masks is not None:
        # Masked actions get a probability of exactly zero, and with it no gradient
        outputs = np.where(action_masks.numpy(), outputs, np.float32(MASKED_LOGIT))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    probs = np.exp(shifted)
    normalizer = probs.sum(axis=1, keepdims=True)
    probs /= normalizer
    log_probs = shifted - np.log(normalizer)
    entropy = -(probs * log_probs).sum(axis=1)
    rows = np.arange(len(outputs))

    def backward(grad_log_prob: np.ndarray, grad_entropy: float) -> tuple[np.ndarray, None, None]:
        grad = -probs * (grad_log_prob + grad_entropy * (log_probs + entropy[:, None]))
        grad[rows, actions] += grad_log_prob[:, 0]
        return grad, None, None

    return log_probs[rows, actions], entropy, backward


def _gaussian(outputs: np.ndarray, actions: np.ndarray, log_std: np.ndarray) -> Evaluation:
    variance = np.exp(2 * log_std)
    distance = actions - outputs
    squared = distance * distance / variance

    def backward(grad_log_prob: np.ndarray, grad_entropy: float) -> tuple[np.ndarray, None, th.Tensor]:
        grad_log_std = grad_log_prob * (squared - 1) + grad_entropy
        return grad_log_prob * distance / variance, None, th.from_numpy(grad_log_std.sum(axis=0))

    log_prob = (-0.5 * squared - (log_std + LOG_SQRT_2PI)).sum(axis=1)
    return log_prob, (0.5 + LOG_SQRT_2PI + log_std).sum(keepdims=True), backward


def _state_dependent(
    hidden: th.Tensor, outputs: np.ndarray, actions: np.ndarray, std: th.Tensor, action_dist: StateDependentNoiseDistribution
) -> Evaluation:
    hidden_squared, std_squared = hidden * hidden, std * std
    variance = (hidden_squared @ std_squared).numpy() + np.float32(action_dist.epsilon)
    log_std = 0.5 * np.log(variance)
    distance = actions - outputs
    squared = distance * distance / variance

    def backward(grad_log_prob: np.ndarray, grad_entropy: float) -> tuple[np.ndarray, th.Tensor | None, th.Tensor]:
        # Twice the gradient with respect to the variance
        grad_variance = th.from_numpy((grad_log_prob * (squared - 1) + grad_entropy) / variance)
        grad_hidden = grad_variance @ std_squared.T * hidden if action_dist.learn_features else None
        return grad_log_prob * distance / variance, grad_hidden, hidden_squared.T @ grad_variance * std

    log_prob = (-0.5 * squared - log_std - LOG_SQRT_2PI).sum(axis=1)
    return log_prob, (0.5 + LOG_SQRT_2PI + log_std).sum(axis=1), backward


def _forward(net: list[nn.Module], latent: th.Tensor) -> list[th.Tensor]:
    """
    Run a network and keep what each layer gave.

    :param net: Its layers
    :param latent: Its input
    :return: the input and the output of each layer
    """
    outputs = [latent]
    for i, layer in enumerate(net):
        if i > 0 and isinstance(net[i - 1], nn.Linear) and not isinstance(layer, nn.Linear):
            # Nobody needs what came out of the linear layer: large pieces of new memory take longer than the activation
            outputs.append(tanh_(outputs[-1]) if isinstance(layer, nn.Tanh) else outputs[-1].relu_())
        else:
            outputs.append(layer(outputs[-1]))
    return outputs


def _backward(
    net: list[nn.Module],
    outputs: list[th.Tensor],
    grad: th.Tensor,
    input_has_grad: bool,
    grad_last_input: th.Tensor | None = None,
) -> list[th.Tensor | None]:
    """
    Propagate a gradient through a network.

    :param net: Its layers
    :param outputs: What :func:`_forward` gave
    :param grad: Gradient with respect to the last layer's output
    :param input_has_grad: Whether the gradient with respect to the input is needed
    :param grad_last_input: What to add to the gradient with respect to the last layer's input
    :return: gradients with respect to the input (``None`` if it is not needed), and to the parameters, in the order of layers
    """
    weights: list[th.Tensor] = []
    for i in reversed(range(len(net))):
        layer, output = net[i], outputs[i + 1]
        if isinstance(layer, nn.Linear):
            grads = [_product(grad, outputs[i])] if layer.bias is None else [_product(grad, outputs[i]), grad.sum(dim=0)]
            weights = grads + weights
            if i == 0 and not input_has_grad:
                return [None, *weights]
            grad = grad @ layer.weight
        elif isinstance(layer, nn.Tanh):
            grad = th.ops.aten.tanh_backward.grad_input(grad, output, grad_input=grad)
        else:
            grad = th.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
        if grad_last_input is not None and i == len(net) - 1:
            grad = grad + grad_last_input
    return [grad, *weights]


def _product(grad: th.Tensor, inputs: th.Tensor) -> th.Tensor:
    """
    Compute ``grad.T @ inputs``, the gradient with respect to a weight.

    MKL takes several times longer for a product with more rows than columns than for its transpose.

    :param grad: Gradient with respect to the layer's output. Shape: (n_steps, n_outputs)
    :param inputs: Its input. Shape: (n_steps, n_inputs)
    :return: the product. Shape: (n_outputs, n_inputs)
    """
    return grad.T @ inputs if grad.shape[1] < inputs.shape[1] else (inputs.T @ grad).T
