"""SeqRecurrentPPO on environments in tensors: what it learns, from which steps, and how often it waits for the device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import rl_zoo3.import_envs  # noqa: F401 (registers CartPoleNoVel-v1)
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from tests.tensor_fakes import DeviceTensor, TensorLenEnv
from tests.tensor_sims import ImageSim
from tests.test_seq_recurrent_ppo_equality import TrainLogs
from tests.test_tensor_ppo_syncs import counted
from zoo_plugins import MaskableSeqRecurrentPPO, SeqRecurrentPPO
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.buffers.sequence_batch import SequenceBatch
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceRolloutBuffer
from zoo_plugins.buffers.tensor_sequence_rollout_buffer import TensorSequenceRolloutBuffer
from zoo_plugins.vec_envs import TensorVecEnv
from zoo_plugins.vec_envs.tensor_vec_normalize import TensorVecNormalize

N_ROLLOUTS = 3
BASE = {"n_steps": 27, "batch_size": 17, "n_epochs": 2, "learning_rate": 3e-3, "seed": 3, "device": "cpu"}
SMALL = {"lstm_hidden_size": 16, "net_arch": [8]}
LENGTHS = (3, 7, 23, 1, 5)


class NumpyOnly(VecEnvWrapper):
    """Shows only the ordinary face of a VecEnv."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


def len_env(action_space: spaces.Space | None = None, **kwargs: Any) -> Callable[[], VecEnv]:
    return lambda: TensorLenEnv(3, LENGTHS, action_space, **kwargs)


def tensor_env(env_id: str, normalize: bool = False, **kwargs: Any) -> Callable[[], VecEnv]:
    def make() -> VecEnv:
        vec_env = TensorVecEnv(env_id, num_envs=3, **kwargs)
        return TensorVecNormalize(vec_env) if normalize else vec_env

    return make


CARTPOLE = tensor_env("TensorCartPoleNoVel-v1")
PENDULUM = tensor_env("TensorPendulumNoVel-v1", max_episode_steps=10)


@dataclass(frozen=True)
class Case:
    """What a model is made from."""

    make_env: Callable[[], VecEnv] = CARTPOLE
    policy: str = "MlpLstmPolicy"
    hyperparams: dict[str, Any] = field(default_factory=dict)
    policy_kwargs: dict[str, Any] = field(default_factory=dict)

    def make(self, tensors: bool = True, **overrides: Any) -> SeqRecurrentPPO:
        env = self.make_env()
        env = env if tensors else NumpyOnly(env)
        hyperparams = BASE | self.hyperparams | overrides
        return SeqRecurrentPPO(self.policy, env, **hyperparams, policy_kwargs=SMALL | self.policy_kwargs)


CASES = {
    "Discrete": Case(),
    "Box": Case(PENDULUM, hyperparams={"ent_coef": 0.01}),
    "gSDE": Case(PENDULUM, hyperparams={"use_sde": True, "sde_sample_freq": 4}),
    "MultiDiscrete": Case(len_env(spaces.MultiDiscrete([2, 3]))),
    "MultiBinary": Case(len_env(spaces.MultiBinary(3))),
    "terminated": Case(len_env(end="terminated")),
    "Dict": Case(len_env(as_dict=True), "MultiInputLstmPolicy"),
    "image": Case(
        lambda: TensorVecEnv(ImageSim((5, 3, 7), "truncated")),
        "CnnLstmPolicy",
        {"learning_rate": 1e-4, "n_steps": 9},
        {"features_extractor_kwargs": {"features_dim": 8}},
    ),
    "VecNormalize": Case(tensor_env("TensorPendulumNoVel-v1", normalize=True, max_episode_steps=10)),
    "shared LSTM": Case(len_env(), policy_kwargs={"shared_lstm": True, "enable_critic_lstm": False}),
    "critic without LSTM": Case(len_env(), policy_kwargs={"enable_critic_lstm": False}),
    "two layers": Case(len_env(), policy_kwargs={"n_lstm_layers": 2}),
    "GRU": Case(len_env(), policy_kwargs={"rnn_type": "gru"}),
    "sequences": Case(len_env(), hyperparams={"sampling": "sequences"}),
    "cut sequences": Case(len_env(), hyperparams={"sampling": "sequences", "max_seq_length": 4}),
    "cut pieces": Case(len_env(), hyperparams={"max_seq_length": 4}),
    "whole rollout": Case(len_env(), hyperparams={"batch_size": None}),
    "clipped value function": Case(len_env(), hyperparams={"clip_range_vf": 0.2}),
    "early stop": Case(len_env(), hyperparams={"target_kl": 1e-4}),
}


@pytest.mark.filterwarnings(r"ignore:\w+ turns the tensors")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_weights_and_logs_as_with_numpy_arrays(case, fused, monkeypatch):
    """After several rollouts, parameters, logs and episodes are those of the same environments as NumPy arrays."""
    if not fused:
        monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    models, logs = [], []
    for tensors in (False, True):
        model = CASES[case].make(tensors)
        callback = TrainLogs()
        model.learn(N_ROLLOUTS * model.n_steps * model.n_envs, callback)
        assert isinstance(model.rollout_buffer, TensorSequenceRolloutBuffer) == tensors
        models.append(model)
        logs.append(callback.updates)

    expected, actual = (model.policy.state_dict() for model in models)
    assert actual.keys() == expected.keys()
    for name in expected:
        th.testing.assert_close(actual[name], expected[name], atol=1e-5, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    assert [len(updates) for updates in logs] == [N_ROLLOUTS, N_ROLLOUTS]
    for expected, actual in zip(*logs, strict=True):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            assert actual[key] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), key
    assert models[0]._n_updates == models[1]._n_updates
    expected, actual = ([[info["r"], info["l"]] for info in model.ep_info_buffer] for model in models)
    assert len(actual) > 0
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def run_buffers(n_steps: int, n_envs: int, **kwargs: Any) -> list[SequenceRolloutBuffer]:
    """Fill both kinds of buffers with the same rollout."""
    rng = np.random.default_rng(n_steps * n_envs)
    box, discrete = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(4)
    common = {"device": "cpu", "gamma": 0.9, "gae_lambda": 0.8, "n_envs": n_envs, **kwargs}
    arrays = SequenceRolloutBuffer(n_steps, box, discrete, **common)
    tensors = TensorSequenceRolloutBuffer(n_steps, box, discrete, **common)
    for buffer in (arrays, tensors):
        buffer.reset()
    values, log_probs = (th.tensor(rng.normal(size=(n_steps, n_envs)), dtype=th.float32) for _ in range(2))
    states = [[th.tensor(rng.normal(size=(2, n_envs, 3)), dtype=th.float32) for _ in range(4)] for _ in range(n_steps + 1)]
    tensors.start(rnn_states(states[0]))
    for step in range(n_steps):
        obs = rng.normal(size=(n_envs, 2)).astype(np.float32)
        actions, rewards = rng.integers(4, size=n_envs), rng.normal(size=n_envs).astype(np.float32)
        starts = rng.random(n_envs) < 0.3
        arrays.add_step(obs, actions, rewards, starts, rnn_states(states[step]))
        given = [th.from_numpy(array) for array in (obs, actions, rewards, starts)]
        tensors.add_step(*given, rnn_states(states[step + 1]), log_probs[step], values[step])
    dones, last_values = rng.random(n_envs) < 0.3, th.tensor(rng.normal(size=n_envs), dtype=th.float32)
    arrays.finish(values, log_probs, last_values, dones)
    tensors.finish(last_values, th.from_numpy(dones))
    return [arrays, tensors]


def rnn_states(components: list[th.Tensor]) -> Any:
    """The states of actor and critic."""
    return RNNStates(tuple(components[:2]), tuple(components[2:]))


def tensors_of(batch: SequenceBatch) -> dict[str, Any]:
    """All that is in a minibatch, by name."""
    flat = batch._asdict()
    pi, vf = flat.pop("lstm_states")
    return {**flat, **{f"state {i}": state for i, state in enumerate((*pi, *vf))}}


@pytest.mark.parametrize("batch_size", [None, 1, 7, 64])
@pytest.mark.parametrize(
    "kwargs", [{}, {"max_seq_length": 2}, {"sampling": "sequences"}, {"sampling": "sequences", "max_seq_length": 3}]
)
@pytest.mark.parametrize(("n_steps", "n_envs"), [(1, 1), (1, 5), (9, 1), (13, 4)])
def test_same_minibatches(n_steps, n_envs, kwargs, batch_size):
    """From the same steps and random numbers come the same minibatches."""
    epochs = []
    for buffer in run_buffers(n_steps, n_envs, **kwargs):
        np.random.seed(0)
        epochs.append([batch for _ in range(2) for batch in buffer.get(batch_size)])
    expected, actual = epochs
    assert len(actual) == len(expected) > 0
    for one, other in zip(expected, actual, strict=True):
        mine, theirs = tensors_of(other), tensors_of(one)
        for name, value in theirs.items():
            if isinstance(value, th.Tensor):
                th.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
            else:
                assert mine[name] == value, name


@pytest.mark.parametrize("hyperparams", [{}, {"max_seq_length": 3}, {"sampling": "sequences"}])
def test_steps_that_are_none(hyperparams):
    """Steps that environments spend on resets are in no minibatch, and no sequence goes past one."""
    env = TensorLenEnv(3, (1, 5, 2), resets_by_step=True)
    model = SeqRecurrentPPO("MlpLstmPolicy", env, **BASE, **hyperparams, policy_kwargs=SMALL).learn(1)
    buffer = model.rollout_buffer
    valid = buffer.steps.rollout.valid
    assert 0 < valid.sum() < valid.numel()
    obs = buffer.steps.rollout.observations
    expected = sorted(map(tuple, obs[valid].tolist()))
    # The step after it has the first observation of the next episode
    assert len(set(expected)) == len(expected)

    counted_obs = []
    for batch in buffer.get(17):
        for sequence in batch.pad(batch.observations + 1).unbind(1):
            steps = sequence[sequence.any(dim=1)] - 1
            assert len(steps[:, :2].unique(dim=0)) == 1
            assert steps[:, 2].diff().eq(1).all()
        counted_obs += map(tuple, batch.drop_context(batch.observations).tolist())
    assert sorted(counted_obs) == expected


def test_no_step_at_all():
    """A rollout in which all steps were spent on resets can't be learned from."""
    env = TensorLenEnv(2, (1,), resets_by_step=True)
    model = SeqRecurrentPPO("MlpLstmPolicy", env, **BASE | {"n_steps": 1, "batch_size": 2}, policy_kwargs=SMALL)
    with pytest.raises(ValueError, match="no step of the rollout is valid: n_steps must be larger"):
        model.learn(8)


SYNC_CASES = {
    "Discrete": ({}, {}),
    "Box": ({"action_space": spaces.Box(-1, 1, (2,))}, {}),
    "MultiDiscrete": ({"action_space": spaces.MultiDiscrete([2, 3])}, {}),
    "gSDE": ({"action_space": spaces.Box(-1, 1, (2,))}, {"use_sde": True, "sde_sample_freq": 4}),
    "sequences": ({}, {"sampling": "sequences", "max_seq_length": 4}),
    "resets by steps": ({"resets_by_step": True}, {}),
}


@pytest.mark.parametrize("case", SYNC_CASES)
def test_waits_for_the_device(case, monkeypatch):
    """A rollout waits for the device twice, an update once, and neither does so for a step or a minibatch."""
    monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    env_kwargs, hyperparams = SYNC_CASES[case]
    env = TensorLenEnv(4, lengths=(3, 5), tensor_class=DeviceTensor, **env_kwargs)
    model = SeqRecurrentPPO("MlpLstmPolicy", env, **BASE | hyperparams, policy_kwargs=SMALL).learn(64)
    callback = model._init_callback(None)
    with counted(model) as counts:
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    assert counts == {"cpu": 2}
    with counted(model) as counts:
        model.train()
    assert counts == {"cpu": 1}


@pytest.mark.parametrize("env_id", ["CartPoleNoVel-v1", "PendulumNoVel-v1"])
def test_saves_and_loads(env_id, tmp_path):
    """What it saves opens as RecurrentPPO, and goes on in environments of either kind."""
    model = SeqRecurrentPPO("MlpLstmPolicy", TensorVecEnv(f"Tensor{env_id}", num_envs=2), **BASE, policy_kwargs=SMALL).learn(
        54
    )
    model.save(tmp_path / "model")
    stock = RecurrentPPO.load(tmp_path / "model", device="cpu")
    obs = model.observation_space.sample()
    for loaded in (stock, SeqRecurrentPPO.load(tmp_path / "model", device="cpu")):
        np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])

    numpy_env, tensor_env = make_vec_env(env_id, 2), TensorVecEnv(f"Tensor{env_id}", num_envs=2)
    loaded = SeqRecurrentPPO.load(tmp_path / "model", numpy_env, device="cpu")
    assert not isinstance(loaded.rollout_buffer, TensorSequenceRolloutBuffer)
    loaded.learn(54, reset_num_timesteps=False)
    assert loaded.num_timesteps == 108
    loaded.set_env(tensor_env)
    assert isinstance(loaded.rollout_buffer, TensorSequenceRolloutBuffer)
    loaded.learn(54, reset_num_timesteps=False)
    assert loaded.num_timesteps == 162
    loaded.set_env(numpy_env)
    assert not isinstance(loaded.rollout_buffer, TensorSequenceRolloutBuffer)
    assert loaded.learn(54, reset_num_timesteps=False).num_timesteps == 216
    rewards, lengths = evaluate_policy(loaded, tensor_env, n_eval_episodes=2, return_episode_rewards=True)
    assert len(rewards) == 2
    assert min(lengths) > 1


def test_unbounded_actions():
    """Actions without bounds reach the environments as they are."""
    env = TensorLenEnv(2, (5,), spaces.Box(-np.inf, np.inf, (1,), np.float32))
    model = SeqRecurrentPPO("MlpLstmPolicy", env, **BASE, policy_kwargs={**SMALL, "log_std_init": 2.0}).learn(54)
    assert model.action_space == env.action_space
    th.testing.assert_close(th.stack(env.actions), model.rollout_buffer.steps.rollout.actions)
    assert th.stack(env.actions).abs().max() > 3


def test_without_last_observations():
    """Without them, truncated episodes count as terminated: with one warning."""
    env = TensorLenEnv(2, (3, 5), tells_final_obs=False)
    model = SeqRecurrentPPO("MlpLstmPolicy", env, **BASE, policy_kwargs=SMALL)
    with pytest.warns(UserWarning, match="do not tell the last observations of truncated episodes") as caught:
        model.learn(108)
    assert len([warning for warning in caught if "last observations" in str(warning.message)]) == 1
    rollout = model.rollout_buffer.steps.rollout
    th.testing.assert_close(rollout.rewards, rollout.observations[..., 2])


def test_memory_is_kept():
    """No rollout allocates the buffer again."""
    model = SeqRecurrentPPO("MlpLstmPolicy", TensorLenEnv(2), **BASE, policy_kwargs=SMALL).learn(54)
    buffer = model.rollout_buffer
    before = [buffer.states.data_ptr(), buffer.steps.rollout.observations.data_ptr(), buffer.rollout["returns"].data_ptr()]
    model.learn(108)
    assert [
        buffer.states.data_ptr(),
        buffer.steps.rollout.observations.data_ptr(),
        buffer.rollout["returns"].data_ptr(),
    ] == before


def test_bad_input():
    """A buffer of the other kind, and masks, are refused; NumPy arrays in place of tensors are warned of."""
    env = TensorLenEnv(2)
    with pytest.raises(
        ValueError, match="must be a TensorSequenceRolloutBuffer for these environments, not SequenceRolloutBuffer"
    ):
        SeqRecurrentPPO("MlpLstmPolicy", env, rollout_buffer_class=SequenceRolloutBuffer)
    with pytest.raises(ValueError, match="must be a SequenceRolloutBuffer for these environments, not TensorSequence"):
        SeqRecurrentPPO("MlpLstmPolicy", "CartPole-v1", rollout_buffer_class=TensorSequenceRolloutBuffer)
    with pytest.warns(UserWarning, match="NumpyOnly turns the tensors of TensorLenEnv into NumPy arrays"):
        SeqRecurrentPPO("MlpLstmPolicy", NumpyOnly(env))
    with pytest.raises(ValueError, match=r"masks of environments in tensors are not read: .*use_masking=False"):
        MaskableSeqRecurrentPPO("MlpLstmPolicy", env).learn(1)
    assert MaskableSeqRecurrentPPO("MlpLstmPolicy", env, **BASE).learn(54, use_masking=False).num_timesteps == 54
