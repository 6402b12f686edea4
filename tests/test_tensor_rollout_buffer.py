import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from zoo_plugins.buffers import TensorRolloutBuffer

N_STEPS, N_ENVS = 3, 16
GAMMAS = {"gamma": 0.97, "gae_lambda": 0.9}
BOX = spaces.Box(-10, 10, (2,), np.float32)
DICT = spaces.Dict({"img": spaces.Box(0, 255, (3, 8, 8), np.uint8), "vec": BOX, "n": spaces.Discrete(5)})
DISCRETE = spaces.Discrete(4)
CASES = {
    "Box": (BOX, DISCRETE),
    "image": (DICT["img"], DISCRETE),
    "Discrete": (spaces.Discrete(7), DISCRETE),
    "MultiBinary": (spaces.MultiBinary(3), DISCRETE),
    "Dict": (DICT, DISCRETE),
    "Box actions": (BOX, spaces.Box(-1, 1, (2, 3), np.float32)),
    "MultiDiscrete actions": (BOX, spaces.MultiDiscrete([2, 3])),
    "MultiBinary actions": (BOX, spaces.MultiBinary(3)),
}


class Permuted(TensorRolloutBuffer):
    """Draws its permutations as SB3's buffers do."""

    def permutation(self, n: int) -> th.Tensor:
        return th.from_numpy(np.random.permutation(n))


def sample(space: spaces.Space) -> np.ndarray | dict[str, np.ndarray]:
    if isinstance(space, spaces.Dict):
        return {key: sample(part) for key, part in space.spaces.items()}
    return np.stack([space.sample() for _ in range(N_ENVS)])


def to_tensors(obs):
    return {key: th.from_numpy(part) for key, part in obs.items()} if isinstance(obs, dict) else th.from_numpy(obs)


def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (N_STEPS + 1, N_ENVS)
    return {
        "rewards": rng.normal(size=shape),
        "starts": rng.random(shape) < 0.3,
        "values": rng.normal(size=shape).astype(np.float32),
        "log_probs": rng.normal(size=shape).astype(np.float32),
    }


def fill(
    ours: TensorRolloutBuffer, theirs: RolloutBuffer, spaces_: tuple[spaces.Space, spaces.Space], column: bool, dtype: type
):
    """Give the same rollout to both, to ours in another form."""
    data = numbers()

    def form(array: np.ndarray) -> th.Tensor:
        return th.from_numpy(array[:, None] if column else array)

    for space in spaces_:
        space.seed(1)
    for ours_or_theirs in (ours, theirs):
        ours_or_theirs.reset()
    for step in range(N_STEPS):
        obs, actions = sample(spaces_[0]), sample(spaces_[1])
        rewards, starts, values, log_probs = (array[step] for array in data.values())
        theirs.add(obs, actions, rewards, starts, th.from_numpy(values), th.from_numpy(log_probs))
        ours.add(
            to_tensors(obs), th.from_numpy(actions), form(rewards), form(starts.astype(dtype)), form(values), form(log_probs)
        )
    last_values, dones = data["values"][-1], data["starts"][-1]
    theirs.compute_returns_and_advantage(th.from_numpy(last_values), dones)
    ours.compute_returns_and_advantage(form(last_values), form(dones.astype(dtype)))


def make(case: str, cls: type[TensorRolloutBuffer] = Permuted) -> tuple[TensorRolloutBuffer, RolloutBuffer]:
    observation_space, action_space = CASES[case]
    their_class = DictRolloutBuffer if isinstance(observation_space, spaces.Dict) else RolloutBuffer
    return tuple(
        buffer_class(N_STEPS, observation_space, action_space, device="cpu", n_envs=N_ENVS, **GAMMAS)
        for buffer_class in (cls, their_class)
    )


@pytest.mark.parametrize(("column", "dtype"), [(False, bool), (False, np.uint8), (True, bool), (True, np.float32)])
@pytest.mark.parametrize("case", CASES)
def test_same_minibatches_as_sb3(case, column, dtype):
    """Advantages, returns and, with the same permutation, every minibatch are SB3's, whatever the form of what is added."""
    buffers = make(case)
    for _ in range(2):  # the second rollout overwrites the first one
        fill(*buffers, CASES[case], column, dtype)
        batches = []
        for buffer in buffers:
            np.random.seed(5)
            batches.append([*buffer.get(10), *buffer.get(None)])
        assert len(batches[0]) == len(batches[1]) == 6
        for ours, theirs in zip(*batches, strict=True):
            for name in theirs._fields:
                actual, expected = getattr(ours, name), getattr(theirs, name)
                for key in expected if isinstance(expected, dict) else [None]:
                    a, e = (actual, expected) if key is None else (actual[key], expected[key])
                    th.testing.assert_close(a, e.to(a.dtype), atol=1e-5, rtol=0, msg=f"{name} {key}")
                    if name not in ("observations", "actions"):
                        assert a.dtype is th.float32
        np.testing.assert_allclose(buffers[0].values.T.flatten(), buffers[1].values.flatten(), atol=1e-6)
        np.testing.assert_allclose(buffers[0].returns.T.flatten(), buffers[1].returns.flatten(), atol=1e-5)


def test_memory_is_kept():
    """Rollouts after the first one take no new memory."""
    buffer, other = make("Dict")
    tensors = [*buffer.rollout.observations.values(), buffer.rollout.rewards, buffer.rollout.advantages]
    fill(buffer, other, CASES["Dict"], False, bool)
    list(buffer.get(7))
    buffer.reset()
    assert all(
        kept is tensor
        for kept, tensor in zip(
            [*buffer.rollout.observations.values(), buffer.rollout.rewards, buffer.rollout.advantages], tensors, strict=True
        )
    )


def test_permutations_follow_the_global_seed():
    """The same seed gives the same minibatches, which are shuffled, and another seed others."""
    orders = []
    buffer, other = make("Box", TensorRolloutBuffer)
    fill(buffer, other, CASES["Box"], False, bool)
    for seed in (3, 3, 4):
        th.manual_seed(seed)
        orders.append(th.cat([batch.old_log_prob for batch in buffer.get(10)]))
    assert th.equal(orders[0], orders[1])
    assert not th.equal(orders[0], orders[2])
    assert not th.equal(orders[0], buffer.rollout.log_probs.t().flatten())
    assert th.equal(orders[0].sort().values, orders[2].sort().values)


@pytest.mark.parametrize("shape", [(N_ENVS, N_ENVS), (1,), (N_ENVS, 2), (N_ENVS - 1,), (1, N_ENVS), ()])
def test_wrong_shapes_are_refused(shape):
    """Numbers per environment of any other shape are an error, and never repeated."""
    buffer, _ = make("Box")
    ones = th.ones(N_ENVS)
    with pytest.raises(ValueError, match=r"rewards must have shape \(16,\) or \(16, 1\), not"):
        buffer.add(th.zeros(N_ENVS, 2), th.zeros(N_ENVS), th.ones(shape), ones, ones, ones)
    buffer.pos = N_STEPS
    with pytest.raises(ValueError, match="dones must have shape"):
        buffer.compute_returns_and_advantage(ones, th.ones(shape))


def test_invalid_steps():
    """Steps that are none are in no minibatch, and values and rewards of theirs in no advantage."""
    buffer = TensorRolloutBuffer(4, BOX, DISCRETE, device="cpu", n_envs=2, gamma=0.5, gae_lambda=1.0)
    # Environment 0 spends step 2 on a reset; rewards are powers of ten, values of the invalid step would show
    valid = th.tensor([[1, 1], [1, 1], [0, 1], [1, 1]], dtype=th.bool)
    starts = th.tensor([[1, 1], [0, 0], [1, 0], [1, 0]], dtype=th.bool)
    for step in range(4):
        rewards = th.tensor([10.0**step, 1.0])
        values = th.where(valid[step], 0.0, 1e6)
        mask = valid[step] if step else None  # the first one has no mask: all are valid
        buffer.add(th.full((2, 2), float(step)), th.zeros(2), rewards, starts[step], values, values, mask)
    buffer.compute_returns_and_advantage(th.tensor([8.0, 8.0]), th.tensor([False, False]))

    assert buffer.rollout.returns[:, 0][valid[:, 0]].tolist() == [1 + 0.5 * 10, 10, 1000 + 0.5 * 8]
    batches = list(buffer.get(3))
    assert [len(batch.actions) for batch in batches] == [3, 3, 1]
    returns = th.cat([batch.returns for batch in batches])
    assert sorted(returns.tolist()) == sorted(buffer.rollout.returns[valid].tolist())

    buffer.reset()
    for _ in range(4):
        buffer.add(th.zeros(2, 2), th.zeros(2), *[th.ones(2)] * 4, valid=th.zeros(2, dtype=th.bool))
    with pytest.raises(ValueError, match="no step of the rollout is valid: n_steps must be larger"):
        next(buffer.get(3))


def test_incomplete_rollout():
    """Minibatches of a rollout that is not complete are refused, as by SB3."""
    buffer, _ = make("Box")
    with pytest.raises(AssertionError, match="not complete"):
        next(buffer.get(3))
