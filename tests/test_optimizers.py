"""Steps on one vector are the steps of the optimizer."""

from copy import deepcopy

import pytest
import torch as th
from torch import nn

from zoo_plugins.algos.optimizers import FlatAdamStep, GradientStep


def make_net() -> nn.Module:
    th.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))


def run(net: nn.Module, step: GradientStep, n_steps: int) -> None:
    th.manual_seed(1)
    with step:
        for _ in range(n_steps):
            step((net(th.randn(5, 3)) ** 2).sum())


@pytest.mark.parametrize("cls", [th.optim.Adam, th.optim.AdamW])
@pytest.mark.parametrize("kwargs", [{}, {"weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}, {"maximize": True}])
@pytest.mark.parametrize("max_norm", [0.05, 1e6])
def test_same_weights_and_state(cls, kwargs, max_norm):
    """Weights and the state of the optimizer are those of the optimizer's own steps, also of steps after the flat ones."""
    nets, optimizers = [make_net(), make_net()], []
    for net, step_class in zip(nets, (GradientStep, FlatAdamStep), strict=True):
        optimizer = cls(net.parameters(), lr=0.01, **kwargs)
        assert not FlatAdamStep.supports(optimizer)
        run(net, GradientStep(optimizer, max_norm), 2)
        assert FlatAdamStep.supports(optimizer)
        before = [parameter.data_ptr() for parameter in net.parameters()]
        run(net, step_class(optimizer, max_norm), 5)
        assert [parameter.data_ptr() for parameter in net.parameters()] == before
        run(net, GradientStep(optimizer, max_norm), 2)
        optimizers.append(optimizer)
    for theirs, mine in zip(*(net.parameters() for net in nets), strict=True):
        th.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    theirs, mine = (optimizer.state_dict()["state"] for optimizer in optimizers)
    assert theirs[0]["step"] == 9
    th.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def test_weights_are_kept_when_training_breaks_off():
    """After an exception, the parameters have the last weights in their own memory."""
    net = make_net()
    optimizer = th.optim.Adam(net.parameters())
    run(net, GradientStep(optimizer, 1.0), 1)
    step = FlatAdamStep(optimizer, 1.0)
    before = deepcopy(net)

    def train() -> None:
        with step:
            step(net(th.ones(1, 3)).sum())
            changed.extend(parameter.detach().clone() for parameter in net.parameters())
            raise KeyboardInterrupt

    changed: list[th.Tensor] = []
    with pytest.raises(KeyboardInterrupt):
        train()
    for parameter, old, new in zip(net.parameters(), before.parameters(), changed, strict=True):
        assert th.equal(parameter, new)
        assert not th.equal(parameter, old)
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4


def test_parameters_without_gradient_are_left_alone():
    """An optimizer with a parameter that is never used, or frozen, keeps to its own steps."""
    for freeze in (False, True):
        net, spare = make_net(), nn.Parameter(th.ones(2), requires_grad=not freeze)
        optimizer = th.optim.AdamW([*net.parameters(), spare], weight_decay=0.5)
        run(net, GradientStep(optimizer, 1.0), 1)
        assert not FlatAdamStep.supports(optimizer)
        assert th.equal(spare, th.ones(2))


@pytest.mark.parametrize("kwargs", [{"amsgrad": True}, {"capturable": False, "differentiable": True}])
def test_other_settings_are_not_supported(kwargs):
    """What the flat step does not implement is left to the optimizer."""
    net = make_net()
    optimizer = th.optim.Adam(net.parameters(), **kwargs)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"step": th.tensor(1.0)}
    assert not FlatAdamStep.supports(optimizer)
    assert not FlatAdamStep.supports(th.optim.SGD(net.parameters(), lr=0.1))
    groups = [{"params": [parameter]} for parameter in net.parameters()]
    assert not FlatAdamStep.supports(th.optim.Adam(groups))
