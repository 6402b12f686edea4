"""The loss with a written-down gradient is the loss that autograd differentiates."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from sb3_contrib.ppo_recurrent import MlpLstmPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from zoo_plugins.algos.action_distributions import log_prob_and_entropy
from zoo_plugins.algos.evaluation import as_taken
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.algos.losses import STATISTICS, LossTerms, ppo_loss
from zoo_plugins.algos.maskable_policies import MlpLstmPolicy as MaskableMlpLstmPolicy
from zoo_plugins.buffers.sequence_batch import SequenceBatch

OBS = spaces.Box(-1, 1, (3,))
BOX, DISCRETE = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
TERMS = LossTerms(clip_range=0.1, clip_range_vf=None, ent_coef=0.1, vf_coef=0.5, normalize_advantage=True)
N_STEPS = 40


def make_policy(action_space: spaces.Space, cls: type = MlpLstmPolicy, **kwargs) -> MlpLstmPolicy:
    th.manual_seed(0)
    kwargs = {"lstm_hidden_size": 8, "net_arch": [6], "ortho_init": False, **kwargs}
    policy = cls(OBS, action_space, lambda _: 1e-3, **kwargs)
    with th.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * th.randn_like(parameter))
    return policy


def make_batch(action_space: spaces.Space, n_steps: int = N_STEPS) -> SequenceBatch:
    th.manual_seed(1)
    action_space.seed(0)
    actions = th.as_tensor(np.array([action_space.sample() for _ in range(n_steps)])).reshape(n_steps, -1)
    state = th.zeros(1, 1, 8)
    return SequenceBatch(
        observations=th.zeros(n_steps, 3),
        actions=actions,
        old_values=th.randn(n_steps),
        old_log_prob=0.2 * th.randn(n_steps),  # relative to the policy's, see loss_and_gradients()
        advantages=th.randn(n_steps),
        returns=th.randn(n_steps),
        lstm_states=RNNStates((state, state), (state, state)),
        positions=th.arange(n_steps),
        n_seq=1,
        max_length=n_steps,
    )


def loss_and_gradients(policy: MlpLstmPolicy, batch: SequenceBatch, terms: LossTerms, fused: bool):
    th.manual_seed(2)
    latents = [th.randn(len(batch.actions), 8, requires_grad=True) for _ in range(2)]
    log_prob, entropy = log_prob_and_entropy(
        policy,
        policy.mlp_extractor.forward_actor(latents[0]),
        as_taken(batch.actions, policy.action_space),
        batch.action_masks,
    )
    # So that ratios lie on both sides of both clipping limits
    batch = batch._replace(old_log_prob=batch.old_log_prob + log_prob.detach())
    if fused:
        loss, statistics = FusedPPOLoss(policy, terms)(*latents, batch, batch.action_masks)
    else:
        values = policy.value_net(policy.mlp_extractor.forward_critic(latents[1])).flatten()
        loss, statistics = ppo_loss(values, log_prob, entropy, batch, terms)
    heads = [policy.mlp_extractor, policy.action_net, policy.value_net]
    weights = [weight for head in heads for weight in head.parameters()]
    if hasattr(policy, "log_std"):
        weights.append(policy.log_std)
    # Three times the loss: gradients are scaled by what comes after it
    return loss.detach(), statistics, th.autograd.grad(3 * loss, [*latents, *weights])


@pytest.mark.parametrize(
    ("action_space", "kwargs"),
    [
        (DISCRETE, {}),
        (BOX, {}),
        (spaces.Box(-1, 1, (2,), np.float64), {}),
        (BOX, {"use_sde": True, "log_std_init": -1.0}),
        (BOX, {"use_sde": True, "log_std_init": -1.0, "full_std": False}),
        (BOX, {"use_sde": True, "log_std_init": -1.0, "use_expln": True}),
        (BOX, {"activation_fn": nn.ReLU, "net_arch": {"pi": [6, 5], "vf": []}}),
        (DISCRETE, {"net_arch": {"pi": [], "vf": [4, 4]}}),
    ],
)
@pytest.mark.parametrize(
    "terms",
    [
        TERMS,
        TERMS._replace(clip_range_vf=0.3, ent_coef=0.0),
        TERMS._replace(normalize_advantage=False, vf_coef=2.0),
    ],
)
def test_same_loss_and_gradients(action_space, kwargs, terms):
    """Loss, statistics and the gradients of latents and weights are those of autograd."""
    policy, batch = make_policy(action_space, **kwargs), make_batch(action_space)
    assert FusedPPOLoss.supports(policy)
    loss, statistics, gradients = loss_and_gradients(policy, batch, terms, fused=False)
    fused_loss, fused_statistics, fused_gradients = loss_and_gradients(policy, batch, terms, fused=True)
    assert 0 < statistics[STATISTICS.index("clip_fraction")] < 1
    th.testing.assert_close(fused_loss, loss, atol=1e-5, rtol=1e-5)
    th.testing.assert_close(fused_statistics, statistics, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(fused_gradients, gradients, strict=True):
        assert theirs.abs().max() > 0
        th.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_features_that_gsde_learns():
    """With ``learn_features``, the noise has a gradient with respect to the actor as well."""
    policy, batch = make_policy(BOX, use_sde=True, log_std_init=-1.0), make_batch(BOX)
    before = loss_and_gradients(policy, batch, TERMS, fused=True)[2][0]
    policy.action_dist.learn_features = True
    mine, theirs = (loss_and_gradients(policy, batch, TERMS, fused=fused)[2][0] for fused in (True, False))
    assert (mine - before).abs().max() > 1e-3
    th.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_masked_actions():
    """Masked actions have no part in the loss, and get no gradient."""
    policy = make_policy(spaces.Discrete(4), cls=MaskableMlpLstmPolicy)
    batch = make_batch(spaces.Discrete(4))
    th.manual_seed(3)
    masks = th.rand(N_STEPS, 4) < 0.6
    masks[th.arange(N_STEPS), batch.actions[:, 0]] = True
    batch = batch._replace(action_masks=masks)
    mine, theirs = (loss_and_gradients(policy, batch, TERMS, fused=fused) for fused in (True, False))
    for a, b in zip((mine[0], mine[1], *mine[2]), (theirs[0], theirs[1], *theirs[2]), strict=True):
        th.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    unmasked = loss_and_gradients(policy, batch._replace(action_masks=None), TERMS, fused=True)
    assert (unmasked[2][0] - mine[2][0]).abs().max() > 1e-4


def test_single_timestep():
    """The advantage of a lonely timestep is not normalized."""
    policy, batch = make_policy(DISCRETE), make_batch(DISCRETE, n_steps=1)
    mine, theirs = (loss_and_gradients(policy, batch, TERMS, fused=fused) for fused in (True, False))
    assert th.isfinite(mine[0])
    th.testing.assert_close(mine[0], theirs[0])


def test_nan_is_not_hidden():
    """A NaN among the advantages shows in the loss and in the gradients of the actor."""
    policy, batch = make_policy(BOX), make_batch(BOX)
    batch.advantages[3] = th.nan
    loss, _, gradients = loss_and_gradients(policy, batch, TERMS, fused=True)
    assert loss.isnan()
    assert gradients[0].isnan().any()


class OwnExtractor(MlpExtractor):
    """A user's class: what it does is unknown."""


def test_other_heads_are_not_supported():
    """What is not made of plain layers is left to autograd."""
    assert not FusedPPOLoss.supports(make_policy(BOX, activation_fn=nn.ELU))
    assert not FusedPPOLoss.supports(make_policy(spaces.MultiDiscrete([2, 3])))
    policy = make_policy(BOX)
    policy.mlp_extractor.__class__ = OwnExtractor
    assert not FusedPPOLoss.supports(policy)
