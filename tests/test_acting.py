"""The fast paths of acting and of the loss, against the sb3_contrib and SB3 code that they replace."""

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticCnnPolicy, RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from zoo_plugins.algos.acting import NumpyActor, NumpyStates, TorchActor
from zoo_plugins.algos.action_distributions import is_usual, log_prob_and_entropy, reset_noise
from zoo_plugins.algos.gru import replace_lstms
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO

OBS = spaces.Box(-1, 1, (5,), np.float32)
BOX, DISCRETE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)


class OwnDistributionPolicy(RecurrentActorCriticPolicy):
    """A policy that computes its distribution in its own way."""

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        return super()._get_action_dist_from_latent(2 * latent_pi)


class OwnMlp(nn.Module):
    """Networks that do not consist of SB3's two lists of layers."""

    latent_dim_pi = latent_dim_vf = 4

    def __init__(self, latent_dim: int):
        super().__init__()
        self.shared = nn.Linear(latent_dim, 4)

    def forward_actor(self, features: th.Tensor) -> th.Tensor:
        return self.shared(features).sin()

    forward_critic = forward_actor


class OwnMlpPolicy(RecurrentActorCriticPolicy):
    """A policy with networks of its own."""

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = OwnMlp(self.lstm_output_dim)


class ScaledExtractor(FlattenExtractor):
    """An extractor that is not SB3's."""


def make_policy(
    obs_space=OBS, action_space=BOX, cls=RecurrentActorCriticPolicy, gru=False, **kwargs
) -> RecurrentActorCriticPolicy:
    kwargs = {"lstm_hidden_size": 7, "net_arch": [6, 4], "ortho_init": False, **kwargs}
    th.manual_seed(0)
    policy = cls(obs_space, action_space, lambda _: 1e-3, **kwargs)
    if gru:
        replace_lstms(policy, lambda _: 1e-3)
    # A policy that has learned something: no zero bias, no unit standard deviation
    with th.no_grad():
        for parameter in policy.parameters():
            parameter += 0.1 * th.randn_like(parameter)
    policy.set_training_mode(False)
    return policy


NUMPY_CASES: dict[str, dict[str, Any]] = {
    "Gaussian": {},
    "gSDE": {"use_sde": True},
    "gSDE with expln": {"use_sde": True, "use_expln": True, "full_std": False},
    "Discrete": {"action_space": DISCRETE},
    "ReLU": {"activation_fn": nn.ReLU},
    "no MLP": {"net_arch": []},
    "2 layers": {"n_lstm_layers": 2},
    "no bias": {"lstm_kwargs": {"bias": False}},
    "shared LSTM": {"shared_lstm": True, "enable_critic_lstm": False},
    "no critic LSTM": {"enable_critic_lstm": False},
    "separate extractors": {"share_features_extractor": False},
    "GRU": {"gru": True},
    "GRU, 2 layers": {"gru": True, "n_lstm_layers": 2},
    "GRU without bias": {"gru": True, "lstm_kwargs": {"bias": False}},
    "shared GRU": {"gru": True, "shared_lstm": True, "enable_critic_lstm": False},
    "no critic GRU": {"gru": True, "enable_critic_lstm": False},
    "float64 observations": {"obs_space": spaces.Box(-1, 1, (5,), np.float64)},
    "matrix observations": {"obs_space": spaces.Box(-1, 1, (2, 3), np.float32)},
}
TORCH_CASES: dict[str, dict[str, Any]] = {
    "MultiDiscrete": {"action_space": spaces.MultiDiscrete([2, 3])},
    "MultiBinary": {"action_space": spaces.MultiBinary(3)},
    "ELU": {"activation_fn": nn.ELU},
    "GRU, ELU": {"gru": True, "activation_fn": nn.ELU, "n_lstm_layers": 2},
    "squashed gSDE": {"use_sde": True, "squash_output": True},
    "own distribution": {"cls": OwnDistributionPolicy},
    "own MLP": {"cls": OwnMlpPolicy},
    "own extractor": {"features_extractor_class": ScaledExtractor},
    "discrete observations": {"obs_space": spaces.Discrete(4)},
    "image": {
        "cls": RecurrentActorCriticCnnPolicy,
        "obs_space": spaces.Box(0, 255, (1, 36, 36), np.uint8),
        "features_extractor_kwargs": {"features_dim": 4},
    },
}

# Of these, the ones with a usual distribution
USUAL_TORCH_CASES = ("ELU", "GRU, ELU", "own MLP", "own extractor", "discrete observations", "image")


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("case", [*NUMPY_CASES, *TORCH_CASES])
def test_acts_like_the_policy(case, n_envs):
    """Step by step, actors choose sb3_contrib's actions from the same random draws, and carry the same states."""
    policy = make_policy(**{**NUMPY_CASES, **TORCH_CASES}[case])
    shape = (policy.lstm_actor.num_layers, n_envs, policy.lstm_actor.hidden_size)
    actors = [TorchActor(policy)]
    if case in NUMPY_CASES:
        actors.append(NumpyActor(policy))
    policy.observation_space.seed(1)
    for actor in actors:
        rng = np.random.default_rng(2)
        theirs = ours = RNNStates(*[(th.full(shape, 0.3), th.full(shape, -0.2))] * 2)
        if isinstance(actor, NumpyActor):
            ours = NumpyStates(*(tuple(state.numpy() for state in states) for states in ours))
        for step in range(8):
            if policy.use_sde and step % 3 == 0:
                policy.reset_noise(n_envs)
            obs = np.stack([policy.observation_space.sample() for _ in range(n_envs)])
            starts = rng.random(n_envs) < 0.3
            seed = th.get_rng_state()
            with th.no_grad():
                expected, values, log_prob, theirs = policy(th.as_tensor(obs), theirs, th.as_tensor(starts).float())
            th.set_rng_state(seed)
            actions, (latent_pi, latent_vf), ours = actor.act(obs, ours, starts)
            np.testing.assert_allclose(actions.reshape(expected.shape), expected.numpy(), atol=1e-5)
            for mine, their in zip((*ours.pi, *ours.vf), (*theirs.pi, *theirs.vf), strict=True):
                np.testing.assert_allclose(mine, their, atol=1e-6)

            with th.no_grad():
                latent = policy.mlp_extractor.forward_actor(th.as_tensor(latent_pi))
                late_log_prob, _ = log_prob_and_entropy(policy, latent, expected)
                late_values = policy.value_net(policy.mlp_extractor.forward_critic(th.as_tensor(latent_vf)))
            th.testing.assert_close(late_log_prob, log_prob, atol=1e-4, rtol=1e-5)
            th.testing.assert_close(late_values, values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", NUMPY_CASES)
def test_numpy_is_used_for_small_policies(case):
    """Policies of flat observations, LSTMs and small MLPs act in NumPy."""
    assert NumpyActor.supports(make_policy(**NUMPY_CASES[case]))


@pytest.mark.parametrize("case", TORCH_CASES)
def test_numpy_is_not_used_for_others(case):
    """What is not implemented in NumPy is left to PyTorch."""
    assert not NumpyActor.supports(make_policy(**TORCH_CASES[case]))


@pytest.mark.parametrize("action_space", [BOX, DISCRETE])
def test_weights_that_are_not_finite_are_told(action_space):
    """A policy that has diverged raises ValueError, as torch.distributions does, before an environment sees an action."""
    policy = make_policy(action_space=action_space)
    policy.action_net.bias.data[0] = float("nan")
    states = NumpyStates(*[(np.zeros((1, 2, 7), np.float32),) * 2] * 2)
    with pytest.raises(ValueError, match="not finite"):
        NumpyActor(policy).act(np.zeros((2, 5), np.float32), states, np.ones(2))


@pytest.mark.parametrize("case", [*NUMPY_CASES, *TORCH_CASES])
def test_log_prob_and_entropy_are_those_of_the_distribution(case):
    """Values and gradients of log-probabilities and entropies are those of SB3's distribution objects."""
    policy = make_policy(**{**NUMPY_CASES, **TORCH_CASES}[case])
    assert is_usual(policy) == (case in (*NUMPY_CASES, *USUAL_TORCH_CASES))
    latent = th.randn(9, policy.mlp_extractor.latent_dim_pi)
    actions = policy._get_action_dist_from_latent(latent).get_actions().detach()
    gradients = []
    for fast in (True, False):
        policy.zero_grad()
        if fast:
            log_prob, entropy = log_prob_and_entropy(policy, latent, actions)
        else:
            distribution = policy._get_action_dist_from_latent(latent)
            log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        loss = (log_prob * th.arange(9)).sum() + (0 if entropy is None else entropy.square().sum())
        loss.backward()
        grads = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        gradients.append((log_prob.detach(), grads, None if entropy is None else entropy.detach()))
    for mine, theirs in zip(*gradients, strict=True):
        th.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    assert gradients[0][1]


@pytest.mark.parametrize("kwargs", [{}, {"full_std": False}, {"use_expln": True}, {"squash_output": True}])
def test_reset_noise_draws_the_same_matrices(kwargs):
    """New noise matrices for gSDE come from the same random draws as upstream's."""
    policy = make_policy(use_sde=True, **kwargs)
    drawn = []
    for function in (lambda: policy.reset_noise(3), lambda: reset_noise(policy, 3)):
        th.manual_seed(5)
        function()
        drawn.append((policy.action_dist.exploration_mat.detach(), policy.action_dist.exploration_matrices.detach()))
    for theirs, mine in zip(*drawn, strict=True):
        assert th.equal(mine, theirs)


class StopAt(BaseCallback):
    """Stops training in the middle of a rollout."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.n_calls < self.step


def test_learning_goes_on_after_a_callback_stopped_it():
    """After a rollout that a callback broke off, learning goes on with the weights that RecurrentPPO has."""
    weights = []
    for cls in (RecurrentPPO, SeqRecurrentPPO):
        env = make_vec_env("CartPole-v1", 2, seed=0)
        model = cls("MlpLstmPolicy", env, n_steps=16, batch_size=17, seed=0, policy_kwargs={"lstm_hidden_size": 8})
        model.learn(64, callback=StopAt(22))
        model.learn(64, reset_num_timesteps=False)
        weights.append(th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()]))
    th.testing.assert_close(weights[1], weights[0], atol=1e-5, rtol=0)
