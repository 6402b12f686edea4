"""How often TensorPPO waits for the device, counted on the CPU."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tensor_fakes import DeviceTensor, TensorLenEnv
from zoo_plugins import TensorPPO
from zoo_plugins.algos import feedforward
from zoo_plugins.algos.fused_loss import FusedPPOLoss

# Operations whose result has to be known on the host
WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "unique", "_unique2", "item"}
ACTION_SPACES = {
    "Discrete": spaces.Discrete(2),
    "Box": spaces.Box(-1, 1, (2,)),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(2),
    "gSDE": spaces.Box(-1, 1, (2,)),
}


class WaitingOps(TorchDispatchMode):
    """Counts operations that would wait for a GPU."""

    def __init__(self, counts: Counter[str], host_tensors: set[int]):
        super().__init__()
        self.counts, self.host_tensors = counts, host_tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING and id(args[0]) not in self.host_tensors:
            self.counts[name] += 1
        if name in ("index", "index_put_") and any(i is not None and i.dtype is th.bool for i in args[1]):
            self.counts[f"{name} by a mask"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(model: TensorPPO) -> Iterator[Counter[str]]:
    """Count what would wait for a GPU."""
    counts: Counter[str] = Counter()
    # The steps that an optimizer has done are on the host
    host_tensors = {id(state["step"]) for state in model.policy.optimizer.state.values()}
    running: list[str] = []
    with pytest.MonkeyPatch.context() as patch, WaitingOps(counts, host_tensors):
        for name in ("cpu", "numpy", "__array__"):
            patch.setattr(DeviceTensor, name, counting(getattr(DeviceTensor, name), name, counts, running))
        patch.setattr(th.Tensor, "cpu", counting(th.Tensor.cpu, "cpu", counts, running))
        yield counts


def counting(method: Any, name: str, counts: Counter[str], running: list[str]) -> Any:
    def call(self: th.Tensor, *args: Any, **kwargs: Any) -> Any:
        # A copy that is on the CPU is free to become an array; methods of classes call each other
        if not running and (name == "cpu" or isinstance(self, DeviceTensor)):
            counts[name] += 1
        running.append(name)
        try:
            return method(self, *args, **kwargs)
        finally:
            running.pop()

    return call


@pytest.fixture(params=ACTION_SPACES)
def model(request, monkeypatch):
    """A model on an environment of DeviceTensors, which has been trained, without what is only used on the CPU."""
    monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    env = TensorLenEnv(4, lengths=(3, 5), action_space=ACTION_SPACES[request.param], tensor_class=DeviceTensor)
    kwargs = {"use_sde": request.param == "gSDE", "sde_sample_freq": 4, "clip_range_vf": 0.2, "ent_coef": 0.01}
    return TensorPPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=3, device="cpu", **kwargs).learn(64)


def test_once_per_rollout(model):
    """A rollout waits for the device once, an update too, and neither does so for a step or a minibatch."""
    callback = model._init_callback(None)
    with counted(model) as counts:
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    assert counts == {"cpu": 1}
    with counted(model) as counts:
        model.train()
    assert counts == {"cpu": 1}


def test_counting(model):
    """What is counted above does get counted."""
    obs = model.env.reset_tensors()
    with counted(model) as counts:
        assert obs[0, 0] == 0
        assert obs.nonzero().shape
        assert obs[obs > 0].shape
        assert obs.cpu().numpy().shape
        with pytest.raises(TypeError):
            obs.numpy()
    assert counts["_local_scalar_dense"] + counts["is_nonzero"] >= 1
    assert counts["nonzero"] == 1
    assert counts["index by a mask"] == 1
    assert counts["cpu"] == 1
    assert counts["numpy"] == 1


def test_target_kl_looks_at_each_minibatch(model):
    """With target_kl, each minibatch is waited for: as documented."""
    model.target_kl = 1e9
    model.learn(64)
    with counted(model) as counts:
        model.train()
    assert counts["cpu"] == 1
    assert counts["_local_scalar_dense"] + counts["is_nonzero"] == 3 * 4


def test_operations_per_step(model):
    """A step of the policy is a few operations."""
    ops: Counter[str] = Counter()

    class All(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ops[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    obs = model.env.reset_tensors()
    with All():
        feedforward.act(model.policy, obs)
    assert 10 < ops.total() < 100
