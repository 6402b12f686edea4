"""Minibatches of whole sequences: where they are cut, what is in them, and how they are padded."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.nn.utils.rnn import pad_sequence

from tests.envs import LenEnv
from zoo_plugins.buffers.sequence_batch import SequenceBatch, locate_sequences
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceDictRolloutBuffer, SequenceRolloutBuffer

# Whether a sequence starts at a timestep; the first one always does
STARTS = st.lists(st.booleans(), max_size=40).map(lambda starts: np.array([True, *starts]))
no_deadline = settings(deadline=None, max_examples=60)


def make_batch(starts: np.ndarray) -> SequenceBatch:
    """A batch of which only the layout matters."""
    first, positions, max_length = locate_sequences(starts)
    empty = th.empty(0)
    no_states = RNNStates((empty, empty), (empty, empty))
    return SequenceBatch(
        *(empty,) * 6, lstm_states=no_states, positions=th.as_tensor(positions), n_seq=len(first), max_length=max_length
    )


def test_locate_sequences_by_hand():
    """Sequences of 3, 1 and 2 steps are the columns of a (3, 3) array, in the order of collection."""
    first, positions, max_length = locate_sequences(np.array([1, 0, 0, 1, 1, 0], dtype=bool))
    assert first.tolist() == [0, 3, 4]
    # Row of step t of sequence s: t * 3 + s
    assert positions.tolist() == [0, 3, 6, 1, 2, 5]
    assert max_length == 3


def test_pad_and_unpad_by_hand():
    """pad() lays sequences side by side with zeros below the shorter ones; unpad() leaves the padding out."""
    batch = make_batch(np.array([1, 0, 0, 1, 1, 0], dtype=bool))
    padded = batch.pad(th.tensor([10, 11, 12, 20, 30, 31]))
    assert padded[:3].tolist() == [[10, 20, 30], [11, 0, 31], [12, 0, 0]]
    # Up to the next multiple of ROWS
    assert padded.shape == (8, 3)
    assert not padded[3:].any()
    assert batch.unpad(padded + 1).tolist() == [11, 12, 13, 21, 31, 32]


@no_deadline
@given(STARTS)
def test_positions_are_unique_rows_of_the_padded_array(starts):
    """Each timestep has a row of its own, and the longest sequence fills its column."""
    first, positions, max_length = locate_sequences(starts)
    lengths = np.diff([*np.flatnonzero(starts), len(starts)])
    assert len(first) == starts.sum()
    assert max_length == lengths.max()
    assert len(set(positions.tolist())) == len(starts)
    assert positions.min() >= 0
    assert positions.max() < len(first) * max_length


@no_deadline
@given(STARTS, st.sampled_from([(), (2,), (2, 3)]), st.sampled_from([th.float32, th.float64, th.int64]))
def test_pad_is_pad_sequence_and_unpad_its_inverse(starts, shape, dtype):
    """pad(x) is torch's pad_sequence() of the pieces of x (zeros elsewhere), and unpad(pad(x)) == x."""
    batch = make_batch(starts)
    # No zero among the data, so that padding can be told from it
    x = th.arange(1, 1 + len(starts) * int(np.prod(shape))).reshape(len(starts), *shape).to(dtype)
    padded = batch.pad(x)
    pieces = th.tensor_split(x, np.flatnonzero(starts)[1:].tolist())
    assert padded.dtype == dtype
    assert th.equal(padded[: batch.max_length], pad_sequence(list(pieces)))
    assert (padded == 0).sum() == padded.numel() - x.numel()
    assert th.equal(batch.unpad(padded), x)


@no_deadline
@given(STARTS)
def test_gradient_goes_through_timesteps_only(starts):
    """Every timestep gets its own gradient back through pad() and unpad(), and padding gets none."""
    batch = make_batch(starts)
    x = th.rand(len(starts), 2, requires_grad=True)
    padded = batch.pad(x)
    padded.retain_grad()
    weights = th.arange(1.0, 1 + len(starts))[:, None].expand(-1, 2)
    (batch.unpad(padded) * weights).sum().backward()
    assert th.equal(x.grad, weights)
    assert th.equal(padded.grad, batch.pad(weights))


def lstm_states(layers: int, n_envs: int, hidden: int, rng: np.random.Generator) -> RNNStates:
    """Random states, none of which is zero."""
    a, b, c, d = (th.as_tensor(rng.uniform(0.1, 1, (layers, n_envs, hidden)), dtype=th.float32) for _ in range(4))
    return RNNStates((a, b), (c, d))


def collect_len_env(skip: int, lengths: tuple[int, ...] = (3, 7, 23, 1, 5)) -> tuple[SequenceRolloutBuffer, dict]:
    """After skip steps, store 16 of 3 LenEnv; return the buffer, and what was stored with each (env, episode, t)."""
    action_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    env = DummyVecEnv([lambda i=i: LenEnv(lengths, i, action_space=action_space) for i in range(3)])
    buffer = SequenceRolloutBuffer(16, env.observation_space, action_space, "cpu", 0.9, 0.8, n_envs=3)
    rng = np.random.default_rng(0)
    obs, dones = env.reset(), np.ones(3, dtype=bool)
    codes = []
    for step in range(skip + 16):
        code = obs @ np.array([10_000, 100, 1], np.float32)
        actions = np.stack([code, -code], axis=1)
        new_obs, rewards, new_dones, _ = env.step(actions)
        if step >= skip:
            buffer.add_step(obs, actions, rewards, dones, lstm_states(1, 3, 2, rng))
            codes.append(code)
        obs, dones = new_obs, new_dones
    code = th.as_tensor(np.stack(codes))
    buffer.finish(code / 3, code / 7, th.ones(3), dones)
    stored = {
        tuple(buffer.observations[i]): (
            *buffer.actions[i],
            *(array[i] for array in (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)),
        )
        for i in np.ndindex(16, 3)
    }
    return buffer, stored


@pytest.mark.parametrize("batch_size", [1, 4, 7, 48, None, 10**6])
@pytest.mark.parametrize("skip", [0, 30])  # after 30 steps: the middle of an episode, and an episode of one step follows
def test_every_stored_step_once_per_epoch(batch_size, skip):
    """An epoch holds each (env, episode, t) exactly once, with its own action, value, log_prob, advantage and return."""
    buffer, stored = collect_len_env(skip)
    assert len(stored) == 48
    for _ in range(3):
        seen = []
        for batch in buffer.get(batch_size):
            n_steps = len(batch.observations)
            assert n_steps <= (batch_size or 48)
            fields = (batch.old_values, batch.old_log_prob, batch.advantages, batch.returns)
            assert {tuple(field.shape) for field in fields} == {(n_steps,)}
            for i, obs in enumerate(batch.observations.tolist()):
                seen.append(tuple(obs))
                assert (*batch.actions[i].tolist(), *(field[i].item() for field in fields)) == stored[tuple(obs)]
        assert sorted(seen) == sorted(stored)


@pytest.mark.parametrize("batch_size", [1, 4, 7, None])
def test_no_episode_starts_inside_a_sequence(batch_size):
    """Along a sequence env and episode are constant and t counts up by one."""
    buffer, _ = collect_len_env(skip=30)
    for batch in buffer.get(batch_size):
        # + 1: padding is the only row of zeros
        padded = batch.pad(batch.observations + 1)
        for sequence in padded.unbind(dim=1):
            steps = sequence[sequence[:, 0] > 0] - 1
            expected = steps[0] + th.arange(len(steps))[:, None] * th.tensor([0.0, 0.0, 1.0])
            assert th.equal(steps, expected)


def test_one_sequence_fills_the_rollout():
    """A rollout without an episode start in it is one sequence per environment, or one more where the split cuts."""
    buffer, stored = collect_len_env(skip=0, lengths=(100,))
    counts = set()
    for _ in range(20):
        (batch,) = buffer.get(None)
        counts.add(batch.n_seq)
        assert len(batch.observations) == len(stored)
        assert batch.max_length == 16
    assert counts <= {3, 4}


OBS_SPACES = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (1, 4, 4), np.uint8),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict({"img": spaces.Box(0, 255, (1, 4, 4), np.uint8), "vec": spaces.Box(-1, 1, (3,), np.float32)}),
}
ACTION_SPACES = {"discrete": spaces.Discrete(3), "box": spaces.Box(-1, 1, (2,)), "multi": spaces.MultiDiscrete([2, 3])}


def fill_twins(obs_space: spaces.Space, action_space: spaces.Space, n_envs: int, n_steps: int) -> list:
    """sb3_contrib's buffer and ours, with the same random content."""
    is_dict = isinstance(obs_space, spaces.Dict)
    classes = (
        (RecurrentDictRolloutBuffer, SequenceDictRolloutBuffer) if is_dict else (RecurrentRolloutBuffer, SequenceRolloutBuffer)
    )
    their_class, our_class = classes
    theirs = their_class(n_steps, obs_space, action_space, (n_steps, 2, n_envs, 3), "cpu", n_envs=n_envs)
    ours = our_class(n_steps, obs_space, action_space, "cpu", n_envs=n_envs)
    rng = np.random.default_rng(1)
    obs_space.seed(2)
    action_space.seed(3)
    predictions = []
    for step in range(n_steps):
        samples = [obs_space.sample() for _ in range(n_envs)]
        obs = {key: np.stack([s[key] for s in samples]) for key in obs_space} if is_dict else np.stack(samples)
        actions = np.stack([action_space.sample() for _ in range(n_envs)]).reshape(n_envs, -1)
        values, log_probs = (th.as_tensor(rng.normal(size=n_envs), dtype=th.float32) for _ in range(2))
        states = lstm_states(2, n_envs, 3, rng)
        rewards, starts = rng.normal(size=n_envs), rng.random(n_envs) < 0.2
        # At least one environment goes on with an episode of the previous rollout
        starts[0] &= step > 0
        theirs.add(obs, actions, rewards, starts, values, log_probs, lstm_states=states)
        ours.add_step(obs, actions, rewards, starts, states)
        predictions.append((values, log_probs))
    dones, last_values = rng.random(n_envs) < 0.5, th.as_tensor(rng.normal(size=n_envs), dtype=th.float32)
    theirs.compute_returns_and_advantage(last_values, dones)
    ours.finish(*(th.stack(steps) for steps in zip(*predictions, strict=True)), last_values, dones)
    return [theirs, ours]


def epochs_of(buffer, batch_size: int | None) -> Iterator:
    """The minibatches of three epochs, from a fixed NumPy seed."""
    np.random.seed(4)
    for _ in range(3):
        yield from buffer.get(batch_size)


@pytest.mark.parametrize("batch_size", [1, 5, 13, None])
@pytest.mark.parametrize(
    ("obs", "action", "n_envs"),
    [("box", "discrete", 1), ("box", "box", 3), ("image", "multi", 2), ("discrete", "discrete", 3), ("dict", "box", 3)],
)
def test_same_minibatches_as_sb3_contrib(obs, action, n_envs, batch_size):
    """With one NumPy seed, our minibatches are sb3_contrib's without padding, and with zeroed states at episode starts."""
    theirs, ours = fill_twins(OBS_SPACES[obs], ACTION_SPACES[action], n_envs, n_steps=14)
    expected, actual = list(epochs_of(theirs, batch_size)), list(epochs_of(ours, batch_size))
    assert len(actual) == len(expected)
    n_reset, n_continued = 0, 0

    for a, e in zip(actual, expected, strict=True):
        mask = e.mask > 0
        # Both are in the order of collection: sb3_contrib's padded rows go sequence by sequence
        if obs == "dict":
            assert a.observations.keys() == e.observations.keys()
            for key in a.observations:
                assert th.equal(a.observations[key], e.observations[key][mask])
        else:
            assert th.equal(a.observations, e.observations[mask])
        assert a.actions.dtype == e.actions.dtype
        assert th.equal(a.actions, e.actions[mask])
        for name in ("old_values", "old_log_prob", "advantages", "returns"):
            assert th.equal(getattr(a, name), getattr(e, name)[mask]), name

        n_seq = e.lstm_states.pi[0].shape[1]
        assert (a.n_seq, a.max_length) == (n_seq, len(mask) // n_seq)
        assert th.equal(a.pad(th.ones(len(a.actions)))[: a.max_length].T.flatten(), e.mask)
        starts = e.episode_starts.reshape(n_seq, -1)[:, 0].bool()
        n_reset, n_continued = n_reset + int(starts.sum()), n_continued + int((~starts).sum())
        for own, stored in zip((*a.lstm_states.pi, *a.lstm_states.vf), (*e.lstm_states.pi, *e.lstm_states.vf), strict=True):
            assert own.shape == (2, n_seq, 3)
            assert own.is_contiguous()
            assert th.equal(own[:, ~starts], stored[:, ~starts])
            assert not own[:, starts].any()
            assert stored[:, starts].all()

    # Both kinds of sequences were compared
    assert n_reset > 0
    assert n_continued > 0
