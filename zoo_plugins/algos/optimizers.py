"""Steps of an optimizer for networks so small that the overhead of each operation counts."""

import torch as th
from torch import nn


def fuse(optimizer: th.optim.Optimizer) -> None:
    """
    Let Adam update all parameters in one kernel instead of a dozen for each of them; the update is the same.

    :param optimizer: The optimizer of the policy
    """
    if type(optimizer) in (th.optim.Adam, th.optim.AdamW):
        for group in optimizer.param_groups:
            if not (group["foreach"] or group["capturable"] or group["differentiable"]) and group["fused"] is None:
                group["fused"] = True


def clip_grad_norm(parameters: list[nn.Parameter], max_norm: float) -> None:
    """
    Clip gradients as ``nn.utils.clip_grad_norm_`` does, without its grouping of tensors by device and type.

    :param parameters: Parameters, all on one device
    :param max_norm: Maximum norm of all gradients together
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total_norm = th.linalg.vector_norm(th.stack(th._foreach_norm(grads)))
    th._foreach_mul_(grads, th.clamp(max_norm / (total_norm + 1e-6), max=1.0))
