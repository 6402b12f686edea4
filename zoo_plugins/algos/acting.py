"""One step of a recurrent policy, in as little time as possible: in PyTorch for any policy, in NumPy for small ones."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn

from zoo_plugins.algos import action_distributions
from zoo_plugins.algos.gru import GRU

# Number of products in a matrix multiplication up to which NumPy's BLAS uses one thread, with a margin: OpenBLAS has 2**18
SINGLE_THREADED = 2**17


class NumpyStates(NamedTuple):
    """:class:`RNNStates` with NumPy arrays. Shape of each: (n_layers, n_envs, hidden_size)."""

    pi: tuple[np.ndarray, ...]
    vf: tuple[np.ndarray, ...]


class TorchActor:
    """
    Acts for any recurrent policy, with LSTM or GRU cells, which are several times faster than ``nn.LSTM`` for a single step.

    :param policy: The policy
    """

    def __init__(self, policy: RecurrentActorCriticPolicy):
        self.policy = policy

    @th.no_grad()
    def act(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        lstm_states: RNNStates,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[th.Tensor, th.Tensor], RNNStates]:
        """
        Choose actions.

        :param obs: Observations. Shape: (n_envs, *obs_shape), a dict of them for Dict spaces
        :param lstm_states: LSTM states before the step. Shape of each: (n_layers, n_envs, hidden_size)
        :param episode_starts: Where to reset them first. Shape: (n_envs,)
        :param action_masks: Which actions are valid, None for all; only for maskable policies. Shape: (n_envs, n_choices)
        :return: actions, shape (n_envs, action_dim), or (n_envs,) for Discrete spaces; latents of actor and critic before
            their MLPs, shape of each (n_envs, hidden_size); LSTM states after the step
        """
        policy = self.policy
        if episode_starts.any():
            lstm_states = keep_states(lstm_states, th.as_tensor(1.0 - episode_starts, dtype=th.float32, device=policy.device))
        latent_pi, latent_vf, lstm_states = step_lstms(policy, obs_as_tensor(obs, policy.device), lstm_states)

        distribution = policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(latent_pi))
        if action_masks is not None:
            assert isinstance(distribution, MaskableDistribution)
            distribution.apply_masking(action_masks)
        actions = distribution.get_actions().cpu().numpy()
        return actions, (latent_pi, latent_vf), lstm_states


def keep_states(lstm_states: RNNStates, keep: th.Tensor) -> RNNStates:
    """
    Reset the LSTM states of some environments to zero.

    :param lstm_states: The states of all. Shape of each: (n_layers, n_envs, hidden_size)
    :param keep: 1 for states to keep, 0 for others. Shape: (n_envs,)
    :return: new states; those of the critic are those of the actor, if they were
    """
    pi_states, vf_states = lstm_states
    kept = tuple(state * keep[:, None] for state in pi_states)
    return RNNStates(kept, kept if vf_states is pi_states else tuple(state * keep[:, None] for state in vf_states))


def step_lstms(
    policy: RecurrentActorCriticPolicy, obs: th.Tensor | TensorDict, lstm_states: RNNStates
) -> tuple[th.Tensor, th.Tensor, RNNStates]:
    """
    Do one step of the recurrent part of a policy.

    :param policy: The policy
    :param obs: Observations. Shape: (n_envs, *obs_shape), a dict of them for Dict spaces
    :param lstm_states: LSTM states before the step. Shape of each: (n_layers, n_envs, hidden_size)
    :return: latents of actor and critic before their MLPs, shape of each (n_envs, hidden_size); LSTM states after the step,
        those of the critic being those of the actor if it has no LSTM of its own
    """
    pi_states, vf_states = lstm_states
    features = policy.extract_features(obs)
    pi_features, vf_features = (features, features) if isinstance(features, th.Tensor) else features
    pi_states = _step_cells(policy.lstm_actor, pi_features, pi_states)
    latent_pi = pi_states[0][-1]
    if policy.lstm_critic is not None:
        vf_states = _step_cells(policy.lstm_critic, vf_features, vf_states)
        latent_vf = vf_states[0][-1]
    elif policy.shared_lstm:
        vf_states, latent_vf = pi_states, latent_pi
    else:
        assert policy.critic is not None
        vf_states, latent_vf = pi_states, policy.critic(vf_features)
    return latent_pi, latent_vf, RNNStates(pi_states, vf_states)


@th.no_grad()
def predict_values(
    policy: RecurrentActorCriticPolicy, obs: th.Tensor | TensorDict, vf_states: tuple[th.Tensor, ...]
) -> th.Tensor:
    """
    Predict values, as ``policy.predict_values`` does, without waiting for the device.

    :param policy: The policy
    :param obs: Observations. Shape: (n, *obs_shape), a dict of them for Dict spaces
    :param vf_states: LSTM states of the critic before them. Shape of each: (n_layers, n, hidden_size)
    :return: values. Shape: (n, 1)
    """
    features = BasePolicy.extract_features(policy, obs, policy.vf_features_extractor)
    lstm = policy.lstm_actor if policy.shared_lstm else policy.lstm_critic
    if lstm is not None:
        latent = _step_cells(lstm, features, vf_states)[0][-1]
    else:
        assert policy.critic is not None
        latent = policy.critic(features)
    return policy.value_net(policy.mlp_extractor.forward_critic(latent))


def _step_cells(lstm: nn.LSTM | GRU, features: th.Tensor, states: tuple[th.Tensor, ...]) -> tuple[th.Tensor, th.Tensor]:
    hidden_states, cell_states = [], []
    for weights, hidden, cell in zip(lstm.all_weights, *states, strict=True):
        if isinstance(lstm, GRU):
            features, next_cell = th.gru_cell(features, hidden, *weights), cell
        else:
            features, next_cell = th.lstm_cell(features, (hidden, cell), *weights)
        hidden_states.append(features)
        cell_states.append(next_cell)
    return th.stack(hidden_states), th.stack(cell_states)


class NumpyActor:
    """
    Acts for a policy of flat observations, LSTMs or GRUs, and small MLPs on the CPU, without the overhead of PyTorch's
    operators.

    It copies the weights, so make a new one for each rollout. Random draws are PyTorch's, and those of the policy.

    :param policy: A policy that :meth:`supports`
    """

    def __init__(self, policy: RecurrentActorCriticPolicy):
        self.policy = policy
        self.lstm_actor = _numpy_rnn(policy.lstm_actor)
        self.lstm_critic = None if policy.lstm_critic is None else _numpy_rnn(policy.lstm_critic)
        self.critic = None if policy.critic is None else _numpy_layer(policy.critic)
        self.policy_net = [_numpy_layer(layer) for layer in policy.mlp_extractor.policy_net]
        self.action_net = _numpy_layer(policy.action_net)

    @staticmethod
    def supports(policy: RecurrentActorCriticPolicy) -> bool:
        """
        Find out whether a policy consists of what is implemented here.

        :param policy: The policy
        :return: whether it does
        """
        if policy.device.type != "cpu" or type(policy.mlp_extractor) is not MlpExtractor:
            return False
        space = policy.observation_space
        modules = [*policy.mlp_extractor.policy_net, policy.action_net]
        return (
            isinstance(space, spaces.Box)
            and not is_image_space(space)
            and type(policy).extract_features is ActorCriticPolicy.extract_features
            and type(policy.pi_features_extractor) is type(policy.vf_features_extractor) is FlattenExtractor
            and all(type(module) in (nn.Linear, nn.Tanh, nn.ReLU) for module in modules)
            and all(parameter.dtype == th.float32 for parameter in policy.parameters())
            and action_distributions.is_usual(policy)
        )

    def act(
        self,
        obs: np.ndarray,
        lstm_states: NumpyStates,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], NumpyStates]:
        """
        Choose actions. See :meth:`TorchActor.act`.

        :param obs: Observations. Shape: (n_envs, *obs_shape)
        :param lstm_states: LSTM states before the step. Shape of each: (n_layers, n_envs, hidden_size)
        :param episode_starts: Where to reset them first. Shape: (n_envs,)
        :param action_masks: Which actions are valid, None for all; only for maskable policies. Shape: (n_envs, n_choices)
        :return: actions, latents of actor and critic, and LSTM states after the step
        """
        pi_states, vf_states = lstm_states
        if episode_starts.any():
            keep = (1.0 - episode_starts).astype(np.float32)[:, None]
            pi_states = tuple(state * keep for state in pi_states)
            vf_states = tuple(state * keep for state in vf_states)

        features = obs.reshape(len(obs), -1).astype(np.float32, copy=False)
        pi_states = self.lstm_actor(features, pi_states)
        latent_pi = pi_states[0][-1]
        if self.lstm_critic is not None:
            vf_states = self.lstm_critic(features, vf_states)
            latent_vf = vf_states[0][-1]
        else:
            vf_states = pi_states
            latent_vf = latent_pi if self.critic is None else self.critic(features)

        latent = latent_pi
        for layer in self.policy_net:
            latent = layer(latent)
        actions = action_distributions.sample_actions(self.policy, self.action_net(latent), latent, action_masks)
        return actions, (latent_pi, latent_vf), NumpyStates(pi_states, vf_states)


class _NumpyLSTM:
    """
    LSTM for one step at a time.

    All gates go through one tanh, as sigmoid(x) = (tanh(x / 2) + 1) / 2.
    """

    def __init__(self, lstm: nn.LSTM):
        size = lstm.hidden_size
        # Order of the gates: input, forget, cell, output
        self.scale = np.full(4 * size, 0.5, dtype=np.float32)
        self.scale[2 * size : 3 * size] = 1.0
        self.offset = 1.0 - self.scale
        self.layers = []
        for weight_ih, weight_hh, *biases in (tuple(w.detach().numpy() for w in layer) for layer in lstm.all_weights):
            weight = np.concatenate([weight_ih, weight_hh], axis=1).T * self.scale
            bias = sum(biases, start=np.zeros(4 * size, dtype=np.float32)) * self.scale
            self.layers.append((np.ascontiguousarray(weight), bias))

    def __call__(self, features: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        next_hidden, next_cell = np.empty_like(states[0]), np.empty_like(states[1])
        size = next_hidden.shape[-1]
        for i, (weight, bias) in enumerate(self.layers):
            gates = _matmul(np.concatenate([features, states[0][i]], axis=1), weight)
            gates += bias
            np.tanh(gates, out=gates)
            gates *= self.scale
            gates += self.offset
            cell = np.multiply(gates[:, size : 2 * size], states[1][i], out=next_cell[i])
            cell += gates[:, :size] * gates[:, 2 * size : 3 * size]
            features = np.multiply(gates[:, 3 * size :], np.tanh(cell), out=next_hidden[i])
        return next_hidden, next_cell


class _NumpyGRU:
    """
    GRU for one step at a time.

    One product gives the reset and update gates, and the parts of the new gate that come from the input and from the
    hidden state, which the reset gate keeps apart.
    """

    def __init__(self, gru: GRU):
        size = gru.hidden_size
        self.layers = []
        for weight_ih, weight_hh, *biases in (tuple(w.detach().numpy() for w in layer) for layer in gru.all_weights):
            weight = np.zeros((weight_ih.shape[1] + size, 4 * size), dtype=np.float32)
            weight[:-size, : 3 * size] = weight_ih.T
            weight[-size:, : 2 * size] = weight_hh[: 2 * size].T
            weight[-size:, 3 * size :] = weight_hh[2 * size :].T
            bias_ih, bias_hh = biases or np.zeros((2, 3 * size), dtype=np.float32)
            bias = np.concatenate([bias_ih[: 2 * size] + bias_hh[: 2 * size], bias_ih[2 * size :], bias_hh[2 * size :]])
            # sigmoid(x) = (tanh(x / 2) + 1) / 2
            weight[:, : 2 * size] *= 0.5
            bias[: 2 * size] *= 0.5
            self.layers.append((weight, bias))

    def __call__(self, features: np.ndarray, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        next_hidden = np.empty_like(states[0])
        size = next_hidden.shape[-1]
        for i, (weight, bias) in enumerate(self.layers):
            gates = _matmul(np.concatenate([features, states[0][i]], axis=1), weight)
            gates += bias
            reset, update = np.split(0.5 * np.tanh(gates[:, : 2 * size]) + 0.5, 2, axis=1)
            new = np.tanh(gates[:, 2 * size : 3 * size] + reset * gates[:, 3 * size :])
            features = np.add(new, update * (states[0][i] - new), out=next_hidden[i])
        return next_hidden, states[1]


def _numpy_rnn(rnn: nn.LSTM | GRU) -> _NumpyLSTM | _NumpyGRU:
    return _NumpyGRU(rnn) if isinstance(rnn, GRU) else _NumpyLSTM(rnn)


def _numpy_layer(layer: nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    if isinstance(layer, nn.Tanh):
        return np.tanh
    if isinstance(layer, nn.ReLU):
        return lambda x: np.maximum(x, 0.0)
    assert isinstance(layer, nn.Linear)
    weight, bias = np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy()
    return lambda x: _matmul(x, weight) + bias


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # A larger product would wake NumPy's own threads, which torch.set_num_threads does not limit (see fused_loss.py)
    if len(a) * b.size < SINGLE_THREADED:
        return a @ b
    return (th.from_numpy(a) @ th.from_numpy(b)).numpy()
