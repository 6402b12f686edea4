"""Gradient steps for networks so small that the overhead of each operation counts."""

from types import TracebackType
from typing import Any

import torch as th
from torch import nn
from torch.optim.adam import adam


class GradientStep:
    """
    Gradient steps with clipping, for any optimizer.

    :param optimizer: The optimizer of a policy
    :param max_norm: Maximum norm of all gradients together
    """

    def __init__(self, optimizer: th.optim.Optimizer, max_norm: float):
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def __enter__(self) -> "GradientStep":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is left to do."""

    def __call__(self, loss: th.Tensor) -> None:
        """
        Do one step.

        :param loss: The loss
        """
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.optimizer.step()


class FlatAdamStep(GradientStep):
    """
    The same steps for Adam and AdamW, on one vector instead of a dozen operations for each parameter.

    Between entry and exit, the parameters are views of the vector. The state of the optimizer is read at entry and written
    at exit, so it is saved, loaded and used as ever.

    :param optimizer: An optimizer that :meth:`supports`
    :param max_norm: Maximum norm of all gradients together
    """

    @staticmethod
    def supports(optimizer: th.optim.Optimizer) -> bool:
        """
        Find out whether an optimizer's steps can be done on one vector.

        :param optimizer: The optimizer
        :return: whether it is Adam or AdamW with one plain group of parameters, of which all have been updated equally
            often. That is not the case before the first step, and for parameters that never get a gradient
        """
        if type(optimizer) not in (th.optim.Adam, th.optim.AdamW) or len(optimizer.param_groups) != 1:
            return False
        group = optimizer.param_groups[0]
        parameters, states = group["params"], optimizer.state
        return (
            not (group["amsgrad"] or group["capturable"] or group["differentiable"])
            and len({(parameter.dtype, parameter.device) for parameter in parameters}) == 1
            and all(parameter.requires_grad and parameter in states for parameter in parameters)
            and len({float(states[parameter]["step"]) for parameter in parameters}) == 1
        )

    # In the place of the optimizer's own learning rate, which is a number, and as such becomes a constant in CUDA graphs
    learning_rate: th.Tensor | None = None

    def __enter__(self) -> "FlatAdamStep":
        self.tensors = [parameter.data for parameter in self.parameters]
        self.states = [self.optimizer.state[parameter] for parameter in self.parameters]
        read = [
            _flatten(self.tensors),
            *(_flatten([state[key] for state in self.states]) for key in ("exp_avg", "exp_avg_sq")),
        ]
        # The fused kernel wants it beside the parameters
        read.append(self.states[0]["step"].to(read[0].device, copy=True))
        if not hasattr(self, "vector"):
            self.vector, self.exp_avg, self.exp_avg_sq, self.n_steps = read
        # Entered again, it takes the same memory, where CUDA graphs look for it
        for kept, new in zip((self.vector, self.exp_avg, self.exp_avg_sq, self.n_steps), read, strict=True):
            kept.copy_(new)
        for parameter, part in zip(self.parameters, self._split(self.vector), strict=True):
            parameter.data = part
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for parameter, tensor, part in zip(self.parameters, self.tensors, self._split(self.vector), strict=True):
            parameter.data = tensor.copy_(part)
        for key, vector in (("exp_avg", self.exp_avg), ("exp_avg_sq", self.exp_avg_sq)):
            for state, part in zip(self.states, self._split(vector), strict=True):
                state[key].copy_(part)
        for state in self.states:
            state["step"].copy_(self.n_steps)

    def __call__(self, loss: th.Tensor) -> None:
        """
        Do one step.

        :param loss: The loss
        """
        grad = _flatten(th.autograd.grad(loss, self.parameters, materialize_grads=True))
        grad.mul_(th.clamp(self.max_norm / (th.linalg.vector_norm(grad) + 1e-6), max=1.0))
        group: dict[str, Any] = self.optimizer.param_groups[0]
        adam(
            [self.vector],
            [grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.n_steps],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"] if self.learning_rate is None else self.learning_rate,
            weight_decay=group["weight_decay"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _split(self, vector: th.Tensor) -> list[th.Tensor]:
        parts = vector.split([tensor.numel() for tensor in self.tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]


def _flatten(tensors: list[th.Tensor] | tuple[th.Tensor, ...]) -> th.Tensor:
    return th.cat([tensor.reshape(-1) for tensor in tensors])
