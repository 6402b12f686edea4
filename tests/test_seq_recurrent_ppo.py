"""SeqRecurrentPPO by itself: corner cases, observation and action spaces, saving and loading, arguments."""

import base64
import inspect
import json
import pickle
import warnings
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.ppo_recurrent.policies import MlpLstmPolicy
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from tests.envs import DictImageEnv, ImageEnv, LenEnv
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceDictRolloutBuffer, SequenceRolloutBuffer

SMALL = {"lstm_hidden_size": 16, "net_arch": [8]}


def make_model(env: VecEnv | gym.Env, policy: str | type = "MlpLstmPolicy", cls: type = SeqRecurrentPPO, **kwargs: Any):
    """A small model on the CPU; policy_kwargs are added to the ones that make it small."""
    kwargs = {"n_steps": 16, "batch_size": 8, "n_epochs": 2, "seed": 0, "device": "cpu"} | kwargs
    kwargs["policy_kwargs"] = SMALL | kwargs.get("policy_kwargs", {})
    return cls(policy, env, **kwargs)


def cartpole(n_envs: int) -> VecEnv:
    return make_vec_env("CartPole-v1", n_envs, seed=0)


def train_logs(model: RecurrentPPO) -> dict[str, float]:
    """What the last update logged."""
    return {key: value for key, value in model.logger.name_to_value.items() if key.startswith("train/")}


def weights(model: RecurrentPPO) -> dict[str, th.Tensor]:
    return deepcopy(model.policy.state_dict())


def observations(model: RecurrentPPO, n: int, seed: int) -> Any:
    """Random observations of n environments."""
    space = model.observation_space
    space.seed(seed)
    samples = [space.sample() for _ in range(n)]
    return {key: np.stack([s[key] for s in samples]) for key in space} if isinstance(space, spaces.Dict) else np.stack(samples)


def check_same_predictions(a: RecurrentPPO, b: RecurrentPPO) -> None:
    """Two models act alike along a sequence of observations, with an episode start in it, and have the same states."""
    state_a = state_b = None
    for step in range(5):
        obs, starts = observations(a, 3, step), np.array([step == 0, step in (0, 3), step == 0])
        actions_a, state_a = a.predict(obs, state_a, starts, deterministic=True)
        actions_b, state_b = b.predict(obs, state_b, starts, deterministic=True)
        np.testing.assert_array_equal(actions_a, actions_b)
        # Actions may agree by accident, states do not
        np.testing.assert_array_equal(state_a, state_b)
        assert np.any(state_a[0])


def check_save_load(model: RecurrentPPO, path: Path, cls: type[RecurrentPPO], env: VecEnv) -> RecurrentPPO:
    """Save a trained model, load it as cls, compare weights and predictions, train on. Returns the loaded model."""
    model.save(path)
    loaded = cls.load(path, env=env, device="cpu")
    assert type(loaded) is cls
    before = weights(loaded)
    for name, value in weights(model).items():
        assert th.equal(value, before[name]), name
    check_same_predictions(model, loaded)
    assert (loaded.n_steps, loaded.batch_size, loaded.seed) == (model.n_steps, model.batch_size, model.seed)

    assert loaded._n_updates == model._n_updates > 0
    loaded.learn(loaded.n_steps * loaded.n_envs)
    assert loaded._n_updates == model._n_updates + loaded.n_epochs
    after = weights(loaded)
    assert not th.equal(before["action_net.weight"], after["action_net.weight"])
    assert all(value.isfinite().all() for value in after.values())
    return loaded


# --- Minibatches of a single timestep


@pytest.mark.parametrize(
    ("make_env", "n_steps", "batch_size"),
    [
        pytest.param(lambda: cartpole(1), 33, 32, id="remainder of one timestep"),
        pytest.param(lambda: DummyVecEnv([lambda: LenEnv((1,))]), 4, 1, id="every sequence and minibatch of one timestep"),
        pytest.param(lambda: DummyVecEnv([lambda: LenEnv((7,))]), 17, 8, id="remainder inside an episode"),
        pytest.param(
            lambda: DummyVecEnv([lambda i=i: LenEnv((7,), i) for i in range(3)]), 11, 16, id="remainder of several envs"
        ),
    ],
)
def test_single_timestep_minibatch_stays_finite(make_env, n_steps, batch_size):
    """A minibatch of one timestep leaves weights and logs finite (stable-baselines3 issue #325)."""
    env = make_env()
    assert batch_size == 1 or n_steps * env.num_envs % batch_size == 1
    model = make_model(env, n_steps=n_steps, batch_size=batch_size)
    before = weights(model)
    for _ in range(3):
        model.learn(n_steps * env.num_envs, reset_num_timesteps=False)
        assert all(np.isfinite(value) for value in train_logs(model).values()), train_logs(model)
        assert all(value.isfinite().all() for value in weights(model).values())
    assert not th.equal(before["action_net.weight"], weights(model)["action_net.weight"])


def test_single_timestep_is_trained_on_without_normalisation():
    """The only timestep of a minibatch trains actor and critic, by its advantage as it is."""
    model = make_model(cartpole(1), n_steps=1, batch_size=8, n_epochs=1, learning_rate=1e-2)
    before = weights(model)
    model.learn(1)
    after = weights(model)
    for name in ("lstm_actor.weight_ih_l0", "action_net.weight", "lstm_critic.weight_ih_l0", "value_net.weight"):
        assert not th.equal(before[name], after[name]), name
    # The ratio is 1 before the first gradient step
    advantage = float(model.rollout_buffer.advantages.item())
    assert abs(advantage) > 1e-2
    assert train_logs(model)["train/policy_gradient_loss"] == pytest.approx(-advantage, rel=1e-5)
    assert train_logs(model)["train/value_loss"] == pytest.approx(advantage**2, rel=1e-4)


def test_logged_sequences_and_padding():
    """train/n_sequences is the mean number of sequences per minibatch, train/padding the share of timesteps added to them."""
    env = DummyVecEnv([lambda i=i: LenEnv((1000,), i) for i in range(2)])
    model = make_model(env, batch_size=None, n_epochs=4)
    model.learn(16 * 2)
    logs = train_logs(model)
    # One sequence of 16 steps per environment; the one in which an epoch begins is cut in two, unless at its start
    assert logs["train/n_sequences"] in (2.5, 2.75, 3.0)
    assert logs["train/padding"] == pytest.approx(1 - 32 / (16 * logs["train/n_sequences"]))


@pytest.mark.parametrize("learning_rate", [0.0, 1e-2])
def test_multi_binary_actions(learning_rate):
    """MultiBinary actions are trained on, and with learning rate 0 their log_probs are the recorded ones."""
    env = DummyVecEnv([lambda i=i: LenEnv((3, 7, 23), i, action_space=spaces.MultiBinary(3)) for i in range(2)])
    model = make_model(env, learning_rate=learning_rate)
    before = weights(model)
    model.learn(3 * 16 * 2)
    after, logs = weights(model), train_logs(model)
    assert all(np.isfinite(value) for value in logs.values())
    assert all(value.isfinite().all() for value in after.values())
    if learning_rate == 0:
        assert abs(logs["train/approx_kl"]) < 1e-7
        assert logs["train/clip_fraction"] == 0
    else:
        assert logs["train/approx_kl"] > 1e-7
        assert not th.equal(before["action_net.weight"], after["action_net.weight"])


# --- Number of environments


def test_load_with_other_numbers_of_envs(tmp_path):
    """Trained with 4 environments, a model learns with 3, predicts for any number, and is evaluated with 5."""
    model = make_model(cartpole(4))
    model.learn(2 * 16 * 4)
    loaded = check_save_load(model, tmp_path / "model.zip", SeqRecurrentPPO, cartpole(3))
    assert loaded.rollout_buffer.flat_states.shape == (4, 1, 16 * 3, 16)
    assert loaded._last_lstm_states.pi[0].shape == (1, 3, 16)
    assert loaded._last_episode_starts.shape == (3,)

    lonely = SeqRecurrentPPO.load(tmp_path / "model.zip", device="cpu")
    obs = observations(model, 7, seed=0)
    actions, states = lonely.predict(obs, episode_start=np.ones(7, dtype=bool), deterministic=True)
    assert actions.shape == (7,)
    assert [state.shape for state in states] == [(1, 7, 16)] * 2
    for i in range(7):
        action, state = lonely.predict(obs[i], deterministic=True)
        assert action == actions[i]
        assert state[0].shape == (1, 1, 16)
        np.testing.assert_allclose(state[0][:, 0], states[0][:, i], atol=1e-6)

    returns, lengths = evaluate_policy(lonely, cartpole(5), n_eval_episodes=10, return_episode_rewards=True)
    assert returns == lengths  # CartPole: one per step
    assert len(lengths) == 10

    with pytest.raises((AssertionError, ValueError), match="number of environments"):
        lonely.set_env(cartpole(2))


# --- Files


def saved_attributes(path: Path) -> tuple[str, dict[str, bytes]]:
    """The text of a saved model's data file, and its pickled attributes."""
    with zipfile.ZipFile(path) as archive:
        text = archive.read("data").decode()
    attributes = {key: value for key, value in json.loads(text).items() if isinstance(value, dict) and ":serialized:" in value}
    return text, {key: base64.b64decode(value[":serialized:"]) for key, value in attributes.items()}


def test_saved_model_holds_no_rollout(tmp_path):
    """No tensor or buffer is pickled, so files open on any device and do not grow with n_envs and n_steps."""
    # What a pickled tensor and a pickled buffer look like
    marks = (b"_rebuild_", b"RolloutBuffer")
    assert marks[0] in pickle.dumps(th.zeros(1))
    sizes = []
    for n_envs, n_steps in ((1, 16), (64, 64)):
        # No episode ends: SB3 saves the statistics of the last 100 episodes, however many envs there are
        env = DummyVecEnv([lambda i=i: LenEnv((1000,), i) for i in range(n_envs)])
        model = make_model(env, n_steps=n_steps, batch_size=None, n_epochs=1)
        model.learn(n_steps * n_envs)
        assert marks[1] in pickle.dumps(model.rollout_buffer)
        path = tmp_path / f"{n_envs}.zip"
        model.save(path)
        text, pickled = saved_attributes(path)
        sizes.append(len(text))
        assert "policy_class" in pickled
        for key, content in pickled.items():
            assert not any(mark in content for mark in marks), key
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_same_predictions(model, SeqRecurrentPPO.load(path, device="cpu"))
    assert abs(sizes[1] - sizes[0]) < 3_000


def test_saved_model_does_not_need_this_package(tmp_path):
    """Nothing in the file names zoo_plugins, so that RecurrentPPO opens it where this package is not installed."""
    model = make_model(cartpole(2))
    model.learn(16 * 2)
    model.save(tmp_path / "model.zip")
    text, pickled = saved_attributes(tmp_path / "model.zip")
    assert "zoo_plugins" not in text
    assert not [key for key, content in pickled.items() if b"zoo_plugins" in content]


@pytest.mark.parametrize("saver", [SeqRecurrentPPO, RecurrentPPO])
@pytest.mark.parametrize("loader", [SeqRecurrentPPO, RecurrentPPO])
@pytest.mark.parametrize(
    ("env_class", "policy"),
    [("CartPole-v1", "MlpLstmPolicy"), (DictImageEnv, "MultiInputLstmPolicy"), (ImageEnv, "CnnLstmPolicy")],
)
def test_save_load_both_ways(saver, loader, env_class, policy, tmp_path):
    """Files of SeqRecurrentPPO and RecurrentPPO are interchangeable: same weights and predictions, and training goes on."""
    env = make_vec_env(env_class, 2, seed=0)
    # batch_size divides the rollout: RecurrentPPO becomes NaN with a remainder of one timestep
    model = make_model(env, policy, saver, n_steps=16, batch_size=8)
    model.learn(16 * 2)
    loaded = check_save_load(model, tmp_path / "there.zip", loader, env)
    check_save_load(loaded, tmp_path / "back.zip", saver, env)


# --- Arguments


def test_policy_kwargs_are_not_changed(tmp_path):
    """The caller's dict, nested ones included, is left as it was and serves several models (stable-baselines3 issue #1895)."""
    policy_kwargs = {
        # SB3's policies add an entry to these for images that are already normalised
        "normalize_images": False,
        "features_extractor_kwargs": {"features_dim": 8},
        "net_arch": {"pi": [8], "vf": [4]},
        "lstm_hidden_size": 16,
        "optimizer_kwargs": {"weight_decay": 0.0},
    }
    original = deepcopy(policy_kwargs)
    env = make_vec_env(ImageEnv, 2, seed=0)
    models = []
    for _ in range(2):
        model = SeqRecurrentPPO("CnnLstmPolicy", env, n_steps=16, batch_size=8, policy_kwargs=policy_kwargs, device="cpu")
        model.learn(16 * 2)
        model.save(tmp_path / "model.zip")
        assert policy_kwargs == original
        assert model.policy_kwargs is not policy_kwargs
        models.append(model)
    assert models[0].policy_kwargs["features_extractor_kwargs"] is not models[1].policy_kwargs["features_extractor_kwargs"]
    assert SeqRecurrentPPO.load(tmp_path / "model.zip", device="cpu").policy.lstm_actor.hidden_size == 16


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batch_size_below_one_is_refused(batch_size):
    """A batch_size of no timestep is an error at construction, not an endless epoch."""
    with pytest.raises(ValueError, match=f"batch_size must be .* not {batch_size}"):
        make_model(cartpole(1), batch_size=batch_size)


@pytest.mark.parametrize("name", ["evaluate_actions", "_process_sequence"])
def test_policy_with_its_own_training_pass_is_refused(name):
    """A policy whose forward pass would be bypassed while training is refused by name; one that keeps it is welcome."""

    class UserPolicy(MlpLstmPolicy):
        pass

    assert isinstance(make_model(cartpole(1), UserPolicy).policy, UserPolicy)
    setattr(UserPolicy, name, lambda *args: None)
    with pytest.raises(ValueError, match=f"UserPolicy overrides {name}"):
        make_model(cartpole(1), UserPolicy)


@pytest.mark.parametrize(
    ("env_class", "policy", "buffer_class", "wanted"),
    [
        ("CartPole-v1", "MlpLstmPolicy", RolloutBuffer, "SequenceRolloutBuffer"),
        ("CartPole-v1", "MlpLstmPolicy", SequenceDictRolloutBuffer, "SequenceRolloutBuffer"),
        (DictImageEnv, "MultiInputLstmPolicy", SequenceRolloutBuffer, "SequenceDictRolloutBuffer"),
    ],
)
def test_other_rollout_buffers_are_refused(env_class, policy, buffer_class, wanted):
    """A buffer without sequences, or for another kind of observation, is refused with the name of the right one."""
    with pytest.raises(ValueError, match=f"must be a {wanted} .* not {buffer_class.__name__}"):
        make_model(make_vec_env(env_class, 1), policy, rollout_buffer_class=buffer_class)


class ScaledRewards(SequenceRolloutBuffer):
    """A user's buffer with an argument of its own."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.scale = scale

    def add_step(self, obs, actions, rewards, *args: Any, **kwargs: Any) -> None:
        super().add_step(obs, actions, self.scale * rewards, *args, **kwargs)


def test_rollout_buffer_class_and_kwargs_are_used(tmp_path):
    """The user's buffer gets the model's settings and rollout_buffer_kwargs, collects the rollout, and is saved by name."""
    buffer_kwargs = {"scale": 7.0}
    arguments = {"rollout_buffer_class": ScaledRewards, "rollout_buffer_kwargs": buffer_kwargs}
    model = make_model(cartpole(2), gamma=0.9, gae_lambda=0.8, **arguments)
    model.learn(16 * 2)
    model.save(tmp_path / "model.zip")
    loaded = SeqRecurrentPPO.load(tmp_path / "model.zip", device="cpu")
    for buffer in (model.rollout_buffer, loaded.rollout_buffer):
        assert type(buffer) is ScaledRewards
        assert (buffer.scale, buffer.gamma, buffer.gae_lambda, buffer.n_envs) == (7.0, 0.9, 0.8, 2)
    assert model.rollout_buffer.rewards.min() >= 7.0 - 1e-6
    assert buffer_kwargs == {"scale": 7.0}


def test_constructor_starts_with_the_arguments_of_recurrent_ppo():
    """RecurrentPPO's arguments come first, in its order and with its defaults; new ones are keyword-only."""
    theirs = list(inspect.signature(RecurrentPPO).parameters.values())
    ours = list(inspect.signature(SeqRecurrentPPO).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]
    extra = ours[len(theirs) :]
    assert [p.name for p in extra] == ["rollout_buffer_class", "rollout_buffer_kwargs", "sampling", "max_seq_length"]
    assert {p.kind for p in extra} == {inspect.Parameter.KEYWORD_ONLY}
