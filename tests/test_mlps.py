"""MLPs without a graph give what PyTorch's modules give."""

from collections import Counter

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from tests.tensor_fakes import DeviceTensor
from zoo_plugins.algos import mlps


@pytest.fixture
def calls(monkeypatch):
    """Counts calls of NumPy's tanh."""
    counts: Counter[str] = Counter()
    numpys = np.tanh

    def tanh(*args, **kwargs):
        counts["tanh"] += 1
        return numpys(*args, **kwargs)

    monkeypatch.setattr(np, "tanh", tanh)
    return counts


@pytest.mark.parametrize("shape", [(1,), (7, 64), (4096, 64), (0, 3)])
def test_tanh(shape, calls):
    """Numbers are exact up to one unit of 2**-23, in the same memory."""
    numbers = th.randn(shape, generator=th.Generator().manual_seed(0)) * 4
    exact = th.tanh(numbers.double())
    found = mlps.tanh_(numbers)
    assert found is numbers
    assert calls["tanh"] == 1
    assert (found.double() - exact).abs().sum() <= 2**-23 * max(1, found.numel())
    assert th.equal(mlps.tanh_(th.tensor([0.0, th.inf, -th.inf])), th.tensor([0.0, 1.0, -1.0]))
    assert mlps.tanh_(th.tensor([th.nan])).isnan().all()


@pytest.mark.parametrize("slice_", [np.s_[:, ::2], np.s_[1:3]])
def test_tanh_of_a_part(slice_):
    """Nothing but the part changes."""
    numbers = th.randn(4, 6)
    before = numbers.clone()
    mlps.tanh_(numbers[slice_])
    before[slice_] = th.tanh(before[slice_])
    th.testing.assert_close(numbers, before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("numbers", [th.ones(3, dtype=th.float64), th.ones(3).as_subclass(DeviceTensor)])
def test_tanh_of_others(numbers, calls):
    """What is no float32 on the CPU stays with PyTorch, and so do many threads."""
    expected = th.tanh(numbers.double())
    th.testing.assert_close(mlps.tanh_(numbers).double(), expected, check_dtype=False, rtol=0, atol=1e-6)
    threads = th.get_num_threads()
    try:
        th.set_num_threads(mlps.FEW_THREADS + 1)
        mlps.tanh_(th.ones(3))
    finally:
        th.set_num_threads(threads)
    assert calls["tanh"] == 0


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.ELU])
@pytest.mark.parametrize("net_arch", [[], [8], [8, 4], {"pi": [5], "vf": []}])
def test_forward(net_arch, activation):
    """Outputs are those of the extractor, and inputs stay as they are."""
    extractor = MlpExtractor(3, net_arch, activation, device="cpu")
    features = th.randn(10, 3)
    before = features.clone()
    th.testing.assert_close(mlps.forward_actor(extractor, features), extractor.forward_actor(features), rtol=0, atol=1e-6)
    th.testing.assert_close(mlps.forward_critic(extractor, features), extractor.forward_critic(features), rtol=0, atol=1e-6)
    assert th.equal(features, before)


def test_tanh_before_anything(calls):
    """An activation in front of all layers does not write into the features."""
    extractor = MlpExtractor(3, [], nn.Tanh, device="cpu")
    extractor.policy_net = nn.Sequential(nn.Tanh(), nn.Tanh())
    features = th.randn(10, 3)
    before = features.clone()
    th.testing.assert_close(mlps.forward_actor(extractor, features), th.tanh(th.tanh(before)))
    assert th.equal(features, before)
    assert calls["tanh"] == 0


def test_extractor_of_ones_own():
    """A subclass computes as it wants."""

    class Doubled(MlpExtractor):
        def forward_actor(self, features: th.Tensor) -> th.Tensor:
            return 2 * features

        def forward_critic(self, features: th.Tensor) -> th.Tensor:
            return 3 * features

    extractor = Doubled(3, [8], nn.Tanh, device="cpu")
    assert mlps.forward_actor(extractor, th.ones(1, 3)).tolist() == [[2, 2, 2]]
    assert mlps.forward_critic(extractor, th.ones(1, 3)).tolist() == [[3, 3, 3]]
