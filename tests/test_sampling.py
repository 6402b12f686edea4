"""Options of SeqRecurrentPPO's minibatches: whole sequences, and a maximum length."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.envs import DictImageEnv, LenEnv
from zoo_plugins.algos.evaluation import evaluate_actions
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO
from zoo_plugins.buffers.sequence_batch import ROWS
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceRolloutBuffer

SAMPLING = ["contiguous", "sequences"]
OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def fill(starts: np.ndarray, sampling: str, max_seq_length: int | None, with_masks: bool = False) -> SequenceRolloutBuffer:
    """A rollout with obs = [env, step, 1], a state of 1 + the number of the step, and 1000 * env + step in binary as mask."""
    n_steps, n_envs = starts.shape
    action_space = spaces.Box(-1, 1, (1,))
    buffer = SequenceRolloutBuffer(
        n_steps, OBS, action_space, "cpu", n_envs=n_envs, sampling=sampling, max_seq_length=max_seq_length
    )
    for step in range(n_steps):
        obs = np.stack([np.arange(n_envs), np.full(n_envs, step), np.ones(n_envs)], axis=1).astype(np.float32)
        state = th.full((1, n_envs, 2), 1.0 + step)
        action = (obs[:, :1] * 1000 + step) / 1e6
        masks = ((1000 * np.arange(n_envs) + step)[:, None] >> np.arange(12) & 1) == 1 if with_masks else None
        buffer.add_step(obs, action, np.zeros(n_envs), starts[step], RNNStates((state, state), (state, state)), masks)
    code = th.arange(n_steps, dtype=th.float32)[:, None] + 1000 * th.arange(n_envs)
    buffer.finish(code, code, th.zeros(n_envs), np.zeros(n_envs, dtype=bool))
    return buffer


rollouts = st.tuples(st.integers(1, 12), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]).map(
        lambda flags: np.array(flags).reshape(shape)
    )
)


@settings(deadline=None, max_examples=150)
@given(
    rollouts,
    st.sampled_from(SAMPLING),
    st.sampled_from([None, 1, 2, 5]),
    st.integers(1, 40),
    st.integers(0, 99),
    st.booleans(),
)
def test_each_step_counts_once(starts, sampling, max_seq_length, batch_size, seed, with_masks):
    """Minibatches have the wanted size but for the last one, and each timestep counts once, with its own data and state."""
    buffer = fill(starts, sampling, max_seq_length, with_masks)
    np.random.seed(seed)
    batches = list(buffer.get(batch_size))
    sizes = [len(batch.actions) for batch in batches]
    assert sizes[:-1] == [batch_size] * (len(batches) - 1)
    assert 0 < sizes[-1] <= batch_size

    seen = []
    for batch in batches:
        counted = batch.drop_context(batch.observations)
        codes = counted[:, 0] * 1000 + counted[:, 1]
        assert th.equal(codes, batch.old_values)
        assert th.equal(codes, batch.old_log_prob)
        th.testing.assert_close(batch.actions.flatten() * 1e6, codes)
        assert (batch.action_masks is not None) == with_masks
        if with_masks:
            assert th.equal(batch.action_masks.float() @ 2.0 ** th.arange(12), codes)
        assert th.equal(batch.unpad(batch.pad(batch.observations)), counted)
        seen += codes.tolist()

        padded = batch.pad(batch.observations)
        assert padded.shape[:2] == (batch.n_rows, batch.n_seq)
        assert batch.n_rows == batch.max_length or 0 < batch.n_rows - batch.max_length < ROWS
        for column in range(batch.n_seq):
            steps = padded[:, column][padded[:, column, 2] > 0].long()
            env, first = steps[0, 0].item(), steps[0, 1].item()
            assert th.equal(steps[:, 1], first + th.arange(len(steps)))
            assert (steps[:, 0] == env).all()
            assert not starts[steps[1:, 1], env].any()
            assert max_seq_length is None or len(steps) <= max_seq_length
            expected_state = 0.0 if starts[first, env] else 1.0 + first
            assert (batch.lstm_states.pi[0][:, column] == expected_state).all()
            if sampling == "sequences":
                # From the start of the sequence: an episode's, the rollout's, or where the maximum length cuts
                latest = max([0, *np.flatnonzero(starts[: first + 1, env])])
                assert first == latest or (max_seq_length is not None and (first - latest) % max_seq_length == 0)
    assert sorted(seen) == sorted((1000 * env + step) for step, env in np.ndindex(starts.shape))


def test_masks_of_the_last_rollout_are_forgotten():
    """A rollout without masks has none, whatever was there before; masks of some of its steps only are refused."""
    buffer = fill(np.zeros((2, 1)), "contiguous", None, with_masks=True)
    assert buffer.action_masks.shape == (2, 1, 12)
    buffer.reset()
    assert buffer.action_masks is None
    step = (np.zeros((1, 3)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), RNNStates((), ()))
    buffer.add_step(*step)
    with pytest.raises(AssertionError, match="only some steps have action_masks"):
        buffer.add_step(*step, np.ones((1, 12), dtype=bool))


def test_sequences_are_shuffled():
    """Minibatches of whole sequences hold sequences from different places of the rollout, in another order each epoch."""
    buffer = fill(np.arange(60).reshape(30, 2) % 3 == 0, "sequences", None)
    np.random.seed(0)
    orders = [th.cat([batch.old_values for batch in buffer.get(10)]).tolist() for _ in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def make_model(env, policy="MlpLstmPolicy", **kwargs) -> SeqRecurrentPPO:
    kwargs = {"n_steps": 24, "batch_size": 10, "n_epochs": 2, "seed": 0, "device": "cpu", **kwargs}
    policy_kwargs = {"lstm_hidden_size": 8, "net_arch": [4], "ortho_init": False, **kwargs.pop("policy_kwargs", {})}
    return SeqRecurrentPPO(policy, env, policy_kwargs=policy_kwargs, **kwargs)


def len_envs() -> DummyVecEnv:
    return DummyVecEnv([lambda i=i: LenEnv((3, 17, 1, 40), i) for i in range(3)])


class Reevaluation(BaseCallback):
    """Largest difference between re-evaluated and recorded log-probs and values, before each update."""

    def __init__(self) -> None:
        super().__init__()
        self.differences: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        for batch in self.model.rollout_buffer.get(self.model.batch_size):
            with th.no_grad():
                values, log_prob, _ = evaluate_actions(self.model.policy, batch)
            assert values.shape == log_prob.shape == batch.old_values.shape
            differences = (values - batch.old_values).abs().max(), (log_prob - batch.old_log_prob).abs().max()
            self.differences.append(max(differences).item())


@pytest.mark.parametrize("max_seq_length", [None, 4])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("critic", [{}, {"enable_critic_lstm": False}, {"enable_critic_lstm": False, "shared_lstm": True}])
def test_minibatches_are_what_the_policy_did(sampling, max_seq_length, critic):
    """However minibatches are made, the policy gives the log-probs and values of acting before each update, and learns."""
    model = make_model(len_envs(), sampling=sampling, max_seq_length=max_seq_length, policy_kwargs=critic)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    callback = Reevaluation()
    model.learn(3 * 24 * 3, callback=callback)
    assert len(callback.differences) == 3 * 8
    assert max(callback.differences) < 1e-5
    assert any((new - old).abs().max() > 1e-4 for new, old in zip(model.policy.parameters(), before, strict=True))


def test_sequences_with_dict_observations():
    """Whole sequences of Dict observations are sampled as well."""
    model = make_model(make_vec_env(DictImageEnv, 2), "MultiInputLstmPolicy", sampling="sequences")
    callback = Reevaluation()
    model.learn(2 * 24 * 2, callback=callback)
    assert max(callback.differences) < 1e-5


def gradient(model: SeqRecurrentPPO, batch_size: int | None) -> th.Tensor:
    """Gradient of the sum of all values and log-probs, added up over the minibatches of an epoch."""
    model.policy.zero_grad()
    for batch in model.rollout_buffer.get(batch_size):
        values, log_prob, _ = evaluate_actions(model.policy, batch)
        (values.sum() + log_prob.sum()).backward()
    return th.cat([p.grad.flatten().clone() for p in model.policy.parameters() if p.grad is not None])


@pytest.mark.parametrize(("sampling", "whole"), [("sequences", True), ("contiguous", False)])
def test_gradients_flow_through_whole_sequences(sampling, whole, monkeypatch):
    """Small minibatches of whole sequences add up to the gradient of the rollout; cut ones miss a part of it."""
    model = make_model(len_envs(), sampling=sampling)
    model.learn(24 * 3)
    monkeypatch.setattr(np.random, "randint", lambda high: 0)  # cut the whole rollout where an environment starts
    expected = gradient(model, None)
    difference = (gradient(model, 7) - expected).abs().max() / expected.abs().max()
    assert (difference < 1e-5) == whole
    assert (difference > 1e-3) != whole


def test_options_are_saved(tmp_path):
    """A saved model keeps its options, and goes on learning with them."""
    model = make_model(len_envs(), sampling="sequences", max_seq_length=5)
    model.save(tmp_path / "model.zip")
    loaded = SeqRecurrentPPO.load(tmp_path / "model.zip", env=len_envs())
    for buffer in (model.rollout_buffer, loaded.rollout_buffer):
        assert (buffer.sampling, buffer.max_seq_length) == ("sequences", 5)
    loaded.learn(24 * 3)
    assert max(batch.max_length for batch in loaded.rollout_buffer.get(10)) == 5


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"sampling": "sequence"}, "sampling must be one of contiguous, sequences, not 'sequence'"),
        ({"max_seq_length": 0}, "max_seq_length must be at least 1 timestep, or None for no limit, not 0"),
        ({"max_seq_length": -2}, "max_seq_length must be at least 1"),
    ],
)
def test_wrong_options_are_refused(kwargs, message):
    """Unknown or impossible options are refused when the model is made, with what is valid."""
    with pytest.raises(ValueError, match=message):
        make_model(len_envs(), **kwargs)
