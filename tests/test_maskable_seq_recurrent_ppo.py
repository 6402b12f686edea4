"""MaskableSeqRecurrentPPO: no invalid action is ever taken, and all else is SeqRecurrentPPO."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked_policy
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.wrappers import ActionMasker
from sb3_contrib.ppo_recurrent.policies import MlpLstmPolicy
from stable_baselines3.common.callbacks import CallbackList, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from torch import nn

from tests.envs import DictImageEnv, ImageEnv, LenEnv
from tests.masked_env import MaskedEnv
from tests.test_sampling import Reevaluation
from tests.test_seq_recurrent_ppo import check_save_load, make_model, weights
from zoo_plugins.algos.acting import NumpyActor
from zoo_plugins.algos.action_distributions import is_usual, log_prob_and_entropy, sample_actions
from zoo_plugins.algos.maskable_policies import (
    MaskableRecurrentActorCriticCnnPolicy,
    MaskableRecurrentActorCriticPolicy,
    MaskableRecurrentMultiInputActorCriticPolicy,
)
from zoo_plugins.algos.maskable_seq_recurrent_ppo import MaskableSeqRecurrentPPO
from zoo_plugins.algos.masking import MaskedModel, check_action_masks
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO

ACTION_SPACES = {
    "Discrete": spaces.Discrete(6),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
}
UNSUPPORTED = "Environment does not support action masking. Consider using ActionMasker wrapper"


def masked_envs(n_envs=3, seed=0, **kwargs) -> DummyVecEnv:
    env = DummyVecEnv([lambda: MaskedEnv(**kwargs)] * n_envs)
    env.seed(seed)
    return env


def make_masked(env=None, policy="MlpLstmPolicy", **kwargs) -> MaskableSeqRecurrentPPO:
    """A small model, whose initial policy is far from uniform."""
    kwargs["policy_kwargs"] = {"ortho_init": False, **kwargs.get("policy_kwargs", {})}
    return make_model(masked_envs() if env is None else env, policy, MaskableSeqRecurrentPPO, **kwargs)


# --- No mask changes nothing


def all_valid(env):
    return ActionMasker(env, lambda env: np.ones(env.action_space.n, dtype=bool))


def check_same_learning(make, use_masking=True, exact=True) -> tuple[SeqRecurrentPPO, ...]:
    """make(cls) makes models of both classes that learn the same for three rollouts; return them."""
    models = []
    for cls, kwargs in ((MaskableSeqRecurrentPPO, {"use_masking": use_masking}), (SeqRecurrentPPO, {})):
        model = make(cls)  # just before it learns, as it seeds the random generators
        before = weights(model)
        models.append(model.learn(3 * model.n_steps * model.n_envs, **kwargs))
        assert not th.equal(before["action_net.weight"], weights(model)["action_net.weight"])
    assert (models[0].rollout_buffer.action_masks is not None) == use_masking
    ours, theirs = map(weights, models)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        th.testing.assert_close(ours[name], value, rtol=0, atol=0 if exact else 1e-5)
    return tuple(models)


@pytest.mark.parametrize("sampling", ["contiguous", "sequences"])
@pytest.mark.parametrize(
    "policy_kwargs", [{}, {"rnn_type": "gru"}, {"activation_fn": nn.ELU}, {"shared_lstm": True, "enable_critic_lstm": False}]
)
def test_all_actions_valid(sampling, policy_kwargs):
    """While all actions are valid, the weights are those of SeqRecurrentPPO, bit for bit."""
    kwargs = {"sampling": sampling, "ent_coef": 0.01, "policy_kwargs": {"ortho_init": False, **policy_kwargs}}
    masked, _ = check_same_learning(lambda cls: make_model(masked_envs(valid=1.0), cls=cls, **kwargs))
    assert NumpyActor.supports(masked.policy) == ("activation_fn" not in policy_kwargs)


@pytest.mark.parametrize(
    ("env_class", "policy", "cls"),
    [
        (ImageEnv, "CnnLstmPolicy", MaskableRecurrentActorCriticCnnPolicy),
        (DictImageEnv, "MultiInputLstmPolicy", MaskableRecurrentMultiInputActorCriticPolicy),
    ],
)
def test_images_and_dicts(env_class, policy, cls):
    """Policies for images and Dict observations are masked too; with ActionMasker and all actions valid, nothing changes."""
    masked, _ = check_same_learning(
        lambda algo: make_model(make_vec_env(env_class, 2, seed=0, wrapper_class=all_valid), policy, algo)
    )
    assert type(masked.policy) is cls


def test_multi_discrete_all_valid():
    """With MultiDiscrete actions, which sb3_contrib normalises twice, the weights are the same up to rounding."""
    kwargs = {"valid": 1.0, "action_space": ACTION_SPACES["MultiDiscrete"]}
    check_same_learning(lambda cls: make_model(masked_envs(**kwargs), cls=cls), exact=False)


@pytest.mark.parametrize("make_env", [lambda: masked_envs(strict=False), lambda: make_vec_env("CartPole-v1", 3, seed=0)])
def test_use_masking_false(make_env):
    """With use_masking=False it is SeqRecurrentPPO, whether or not the environment has masks; invalid actions are taken."""
    models = check_same_learning(lambda cls: make_model(make_env(), cls=cls), use_masking=False)
    for model in models:
        if model.env.has_attr("action_masks"):
            assert model.env.get_attr("n_masks") == [0] * 3
            assert min(model.env.get_attr("n_invalid")) > 10


# --- Invalid actions


@pytest.mark.parametrize("sampling", ["contiguous", "sequences"])
@pytest.mark.parametrize("policy_kwargs", [{}, {"rnn_type": "gru"}, {"activation_fn": nn.ELU}])
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_training_takes_no_invalid_action(space, policy_kwargs, sampling):
    """No invalid action is taken, and before each update the log-probs under the masks are those of acting."""
    env = masked_envs(action_space=ACTION_SPACES[space])  # raises an error if one is taken
    model = make_masked(env, policy_kwargs=policy_kwargs, sampling=sampling, ent_coef=0.1, learning_rate=1e-2)
    before, callback = weights(model), Reevaluation()
    model.learn(4 * 16 * 3, callback)
    assert len(callback.differences) == 4 * 6
    assert max(callback.differences) < 1e-5
    assert all(value.isfinite().all() for value in weights(model).values())
    assert not th.equal(before["action_net.weight"], weights(model)["action_net.weight"])
    assert env.get_attr("n_masks") == [4 * 16] * 3


def test_in_subprocesses_and_wrappers():
    """Masks come through VecEnv wrappers and from other processes."""
    env = VecNormalize(SubprocVecEnv([MaskedEnv] * 2, start_method="fork"))
    assert make_masked(env).learn(64).num_timesteps == 64
    env.close()


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_predict_takes_no_invalid_action(space, deterministic):
    """predict() with masks takes valid actions only; without, all actions are valid; both give the same states."""
    env = masked_envs(action_space=ACTION_SPACES[space])
    model = make_masked(env)
    obs, state, starts, differ = env.reset(), None, np.ones(3, dtype=bool), 0
    for _ in range(50):
        unmasked, other_state = model.predict(obs, state, starts, deterministic=deterministic)
        actions, state = model.predict(obs, state, starts, deterministic=deterministic, action_masks=get_action_masks(env))
        np.testing.assert_array_equal(state, other_state)
        differ += int(np.any(actions != unmasked))
        obs, _, starts, _ = env.step(actions)
    assert differ > 10


def test_predict_for_one_environment():
    """Masks of a single environment need no dimension for it."""
    model = make_masked()
    for action in range(6):
        masks = np.arange(6) == action
        for given in (masks, masks[None], masks.tolist(), th.as_tensor(masks)):
            assert model.predict(np.zeros(6, np.float32), action_masks=given)[0] == action
    assert model.policy._masks_to_predict_with is None


def test_masks_of_several_dimensions():
    """Masks may have the shape of the choices, as (n_actions, 2) for MultiBinary ones."""
    env = masked_envs(action_space=spaces.MultiBinary(3), mask_shape=(3, 2))
    model = make_masked(env)
    assert model.learn(3 * 16).rollout_buffer.action_masks.shape == (16, 3, 6)
    actions, _ = model.predict(env.reset(), action_masks=np.stack([[[False, True]] * 3] * 3))
    assert (actions == 1).all()


def test_sampling_is_exact():
    """Valid actions are sampled with their renormalised probabilities, invalid ones never, though they have most of it."""
    policy = make_masked().policy
    # exp(-1000) is zero
    logits = np.tile(np.log(np.array([1, 2, 1e6, 5, 1, 1e9], np.float32)) + np.float32([0, 0, 0, 0, 1000, 0]), (20_000, 1))
    masks = np.tile([True, True, False, True, False, False], (20_000, 1))
    th.manual_seed(0)
    counts = np.bincount(sample_actions(policy, logits, logits, masks), minlength=6)
    np.testing.assert_allclose(counts / 20_000, np.array([1, 2, 0, 5, 0, 0]) / 8, atol=0.02)
    assert counts[[2, 4, 5]].sum() == 0


@pytest.mark.filterwarnings("ignore:.*divide")
def test_unlucky_draws(monkeypatch):
    """Even where the random draws are zero, a valid action is taken."""
    monkeypatch.setattr(th.Tensor, "exponential_", lambda self: self.zero_())
    outputs, masks = np.zeros((1, 6), np.float32), np.arange(6)[None] == 4
    assert sample_actions(make_masked().policy, outputs, outputs, masks).tolist() == [4]


def test_numpy_draws_what_torch_draws(monkeypatch):
    """From the same random draws, the NumPy actor takes the actions that sb3_contrib's distribution samples."""
    taken = []
    for in_numpy in (True, False):
        monkeypatch.setattr(NumpyActor, "supports", lambda policy, in_numpy=in_numpy: in_numpy)
        model = make_masked(n_epochs=1)
        model.learn(16 * 3)
        taken.append((model.rollout_buffer.actions, model.rollout_buffer.log_probs, model.rollout_buffer.action_masks))
    for numpy, torch in zip(*taken, strict=True):
        np.testing.assert_allclose(numpy, torch, atol=1e-5)


# --- Distributions


@pytest.mark.parametrize("space", ACTION_SPACES)
def test_distribution_is_that_of_maskable_ppo(space):
    """From the same latents, weights and masks come MaskablePPO's log-probs, entropies and modes."""
    env = masked_envs(action_space=ACTION_SPACES[space])
    ours = make_masked(env, policy_kwargs={"net_arch": [8]}).policy
    theirs = MaskablePPO("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, device="cpu").policy
    theirs.action_net.load_state_dict(ours.action_net.state_dict())  # of the same shape
    latent = th.randn(20, 8)
    rng = np.random.default_rng(0)
    masks = rng.random((20, env.get_attr("observation_space")[0].shape[0])) < 0.5
    masks[:, env.get_attr("offsets")[0]] = True
    expected = theirs._get_action_dist_from_latent(latent)
    expected.apply_masking(masks)
    actual = ours._get_action_dist_from_latent(latent)
    assert type(actual) is type(expected)
    actual.apply_masking(masks)
    th.testing.assert_close(actual.mode(), expected.mode())
    actions = expected.sample()
    log_prob, entropy = log_prob_and_entropy(ours, latent, actions, th.as_tensor(masks))
    th.testing.assert_close(log_prob, expected.log_prob(actions), atol=1e-5, rtol=1e-5)
    th.testing.assert_close(entropy, expected.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("space", ACTION_SPACES)
def test_gradients_are_those_of_sb3_contrib(space):
    """Log-probs and entropies under masks have the gradients of sb3_contrib's objects, and none to masked outputs."""
    policy = make_masked(masked_envs(action_space=ACTION_SPACES[space])).policy
    assert is_usual(policy) == (space == "Discrete")
    latent = th.randn(9, 8)
    masks = th.rand(9, policy.action_net.out_features) < 0.5
    masks[:, -1] = False  # never valid
    masks[:, np.cumsum([0, *MaskedEnv(ACTION_SPACES[space]).choices[:-1]])] = True
    distribution = policy._get_action_dist_from_latent(latent)
    distribution.apply_masking(masks)
    actions = distribution.sample()
    results = []
    for fast in (True, False):
        policy.zero_grad()
        if fast:
            log_prob, entropy = log_prob_and_entropy(policy, latent, actions, masks)
        else:
            distribution = policy._get_action_dist_from_latent(latent)
            distribution.apply_masking(masks)
            log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        ((log_prob * th.arange(9)).sum() + entropy.square().sum()).backward()
        results.append((log_prob.detach(), entropy.detach(), policy.action_net.weight.grad.clone()))
    for ours, theirs in zip(*results, strict=True):
        th.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    gradient = results[0][2]
    assert gradient[-1].abs().max() < 1e-6
    assert gradient.abs().max() > 0.1


def test_entropy_of_a_single_valid_action():
    """Where only one action is valid, its probability is one and the entropy zero, with finite gradients."""
    policy = make_masked().policy
    masks = th.arange(6)[None] == th.tensor([[2], [5]])
    log_prob, entropy = log_prob_and_entropy(policy, th.randn(2, 8), th.tensor([2, 5]), masks)
    assert log_prob.tolist() == entropy.tolist() == [0, 0]
    (log_prob + entropy).sum().backward()
    assert policy.action_net.weight.grad.isfinite().all()


# --- Learning


def test_learns_where_invalid_actions_are_punished():
    """It remembers what the first observation told, and never pays the price of an invalid action."""
    env = masked_envs(8, action_space=spaces.Discrete(4), valid=0.5, strict=False)
    kwargs = dict(n_steps=40, batch_size=160, n_epochs=10, learning_rate=1e-2, gamma=0.5)
    model = make_masked(env, **kwargs)
    eval_env = masked_envs(4, seed=1, action_space=spaces.Discrete(4), valid=0.5)
    before, _ = evaluate_policy(model.with_masks_of(eval_env), eval_env, 100, warn=False)
    model.learn(25 * 320)
    after, _ = evaluate_policy(model.with_masks_of(eval_env), eval_env, 100, warn=False)
    assert before < 3
    assert after > 4.7  # of 5
    assert env.get_attr("n_invalid") == [0] * 8


# --- Evaluation


def strict_eval(n_envs=2, **kwargs):
    """A callback that evaluates every ninth step, in an environment that raises an error when an invalid action is taken."""
    kwargs = {"eval_freq": 9, "n_eval_episodes": 4, "verbose": 0, "warn": False, **kwargs}
    return kwargs.pop("cls", EvalCallback)(masked_envs(n_envs), **kwargs)


def n_masks(callback) -> int:
    return sum(callback.eval_env.get_attr("n_masks"))


@pytest.mark.parametrize("cls", [EvalCallback, MaskableEvalCallback])
def test_eval_callbacks_use_masks(cls, tmp_path):
    """Evaluation asks its own environment for masks, wherever the callback is; what it saves is the model."""
    plain, listed, best = strict_eval(cls=cls), strict_eval(cls=cls), strict_eval(cls=cls, eval_freq=1)
    inner = strict_eval(cls=cls, eval_freq=1, best_model_save_path=str(tmp_path), callback_on_new_best=best)
    after = strict_eval(cls=cls, eval_freq=1, callback_after_eval=CallbackList([listed]))
    model = make_masked(masked_envs(strict=True))
    for _ in range(2):
        model.learn(32 * 3, [plain, EveryNTimesteps(30, inner), after])
        counts = [n_masks(callback) for callback in (plain, inner, listed, best, after)]
        assert min(counts) > 0
        for callback in (plain, inner, listed, best, after):
            # Anew in each learn(), around the model itself
            assert type(callback.model) is MaskedModel
            assert vars(callback.model)["model"] is model
            assert vars(callback.model)["masking_env"] is callback.eval_env
    # A step of each evaluation takes one mask per environment
    assert n_masks(plain) == len(plain.eval_env.envs) * 5 * 2 * (2 * 32 // 9)
    loaded = MaskableSeqRecurrentPPO.load(tmp_path / "best_model.zip")
    assert type(loaded) is MaskableSeqRecurrentPPO
    assert "model" not in vars(loaded)


def test_evaluation_without_masks():
    """use_masking=False of learn(), or of a MaskableEvalCallback, is respected."""
    lenient = [EvalCallback(masked_envs(strict=False), n_eval_episodes=3, eval_freq=8, verbose=0, warn=False)]
    model = make_masked(masked_envs(strict=False))
    model.learn(16 * 3, lenient, use_masking=False)
    own = MaskableEvalCallback(masked_envs(strict=False), eval_freq=8, verbose=0, warn=False, use_masking=False)
    model.learn(16 * 3, own)
    for callback in (*lenient, own):
        assert n_masks(callback) == 0
        assert sum(callback.eval_env.get_attr("n_invalid")) > 0
        assert callback.model is model


def test_evaluation_environment_without_masks():
    """An evaluation environment that can't tell masks is refused before training starts."""
    model = make_masked()
    with pytest.raises(ValueError, match=UNSUPPORTED):
        model.learn(48, EvalCallback(DummyVecEnv([lambda: LenEnv((3,))])))
    assert model.num_timesteps == 0


@pytest.mark.parametrize("n_envs", [1, 3])
def test_both_evaluate_policy_functions(n_envs):
    """SB3's evaluation and sb3_contrib's maskable one, which loses LSTM states, give the same with with_masks_of()."""
    model = make_masked()
    model.learn(16 * 3)
    results = []
    for function in (evaluate_policy, evaluate_masked_policy):
        env = masked_envs(n_envs, seed=3)
        results.append(function(model.with_masks_of(env), env, 30, return_episode_rewards=True, warn=False))
    assert results[0] == results[1]
    env = masked_envs(n_envs, seed=3)
    assert evaluate_masked_policy(model, env, 30, return_episode_rewards=True, warn=False) != results[0]


def test_masked_model_is_the_model():
    """What with_masks_of() returns reads and writes the attributes of the model, can be copied, and takes a gym.Env too."""
    env = MaskedEnv()
    model = make_masked()
    masked = model.with_masks_of(env)
    masked.num_timesteps = 77
    assert model.num_timesteps == masked.num_timesteps == 77
    assert masked.policy is model.policy
    with pytest.raises(AttributeError, match="no_such"):
        masked.no_such  # noqa: B018
    obs, _ = env.reset(seed=0)
    for _ in range(20):
        env.step(masked.predict(obs)[0])
    assert copy.copy(masked).policy is model.policy
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(MaskedModel.__new__(MaskedModel))).policy  # noqa: B018
    with pytest.raises(ValueError, match=UNSUPPORTED):
        model.with_masks_of(LenEnv((3,)))


# --- Files


@pytest.mark.parametrize("policy_kwargs", [{}, {"rnn_type": "gru"}])
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_save_load(space, policy_kwargs, tmp_path):
    """A loaded model has the same weights and predictions, and goes on learning with masks."""
    env = masked_envs(action_space=ACTION_SPACES[space])
    model = make_masked(env, policy_kwargs=policy_kwargs)
    model.learn(16 * 3)
    loaded = check_save_load(model, tmp_path / "model.zip", MaskableSeqRecurrentPPO, env)
    assert loaded.rollout_buffer.action_masks is not None


# --- What is refused


def masks_of(env_masks):
    """Environments whose masks are those given."""

    class Env(MaskedEnv):
        def action_masks(self):
            return env_masks.pop(0)

    return Env


@pytest.mark.parametrize(
    ("space", "masks", "message"),
    [
        ("Discrete", [[1] * 6, [1] * 5], r"action_masks of environment 1 have shape \(5,\), expected \(6,\)"),
        ("Discrete", [[[1] * 7], [1] * 6], r"action_masks of environment 0 have shape \(1, 7\), expected \(6,\)"),
        ("Discrete", [True, [1] * 6], r"action_masks of environment 0 have shape \(\), expected \(6,\)"),
        ("Discrete", [[1] * 6, [0] * 6], "action_masks leave environment 1 without a valid action"),
        ("MultiDiscrete", [[1] * 9, [1] * 3], r"action_masks of environment 1 have shape \(3,\), expected \(9,\)"),
        (
            "MultiDiscrete",
            [[1] * 9, [1, 1, 1, 0, 0, 1, 1, 1, 1]],
            "action_masks leave sub-action 1 of environment 1 without a valid action",
        ),
        ("MultiBinary", [[1] * 4 + [0] * 2, [1] * 6], "action_masks leave sub-action 2 of environment 0 without"),
        ("MultiBinary", [[1] * 3, [1] * 6], r"action_masks of environment 0 have shape \(3,\), expected \(6,\)"),
    ],
)
def test_wrong_masks_of_environments(space, masks, message):
    """Wrong masks are told at the first step, with the environment that gave them."""
    cls = masks_of(list(masks))
    model = make_masked(DummyVecEnv([lambda: cls(ACTION_SPACES[space])] * 2))
    with pytest.raises(ValueError, match=message):
        model.learn(32)
    assert model.num_timesteps == 0


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (np.ones((3, 5)), r"action_masks have shape \(3, 5\), expected \(3, 6\)"),
        (np.ones((2, 6)), r"action_masks have shape \(2, 6\), expected \(3, 6\)"),
        (np.ones((6, 3)), r"action_masks have shape \(6, 3\), expected \(3, 6\)"),
        (np.ones(6), r"action_masks have shape \(6,\), expected \(3, 6\)"),
        (np.ones(18), r"action_masks have shape \(18,\), expected \(3, 6\)"),
        (np.arange(18).reshape(3, 6) > 5, "action_masks leave environment 0 without a valid action"),
    ],
)
def test_wrong_masks_for_predict(masks, message):
    """Wrong masks are refused by predict() too, and forgotten."""
    model = make_masked()
    with pytest.raises(ValueError, match=message):
        model.predict(np.zeros((3, 6), np.float32), action_masks=masks)
    assert model.predict(np.zeros((3, 6), np.float32))[0].shape == (3,)
    with pytest.raises(ValueError, match=message):
        check_action_masks(masks, spaces.Discrete(6), 3)


def test_environment_without_masks():
    """An environment without action_masks() is refused in MaskablePPO's words."""
    model = make_masked(make_vec_env("CartPole-v1", 1))
    with pytest.raises(ValueError, match=UNSUPPORTED):
        model.learn(16)


def test_box_actions():
    """Actions that can't be masked are refused at construction."""
    with pytest.raises(ValueError, match="only Discrete, MultiDiscrete and MultiBinary actions can be masked, not Box"):
        make_masked(make_vec_env("Pendulum-v1", 1))


def test_policy_without_masks():
    """A policy that knows no masks is refused at construction; a subclass of ours is welcome."""

    class OwnPolicy(MaskableRecurrentActorCriticPolicy):
        pass

    assert type(make_masked(policy=OwnPolicy).policy) is OwnPolicy
    with pytest.raises(ValueError, match="policy RecurrentActorCriticPolicy must subclass MaskableRecurrent"):
        make_masked(policy=MlpLstmPolicy)
