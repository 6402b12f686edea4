"""Running mean and variance on a device."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd


class TensorRunningMeanStd(RunningMeanStd):
    """
    SB3's ``RunningMeanStd``, as tensors that stay in one place.

    ``mean``, ``var`` and ``count`` are the same as SB3's, which waits for the device. Copies and pickles are SB3's own class.

    :param statistics: The statistics to start from
    :param device: Where the tensors are
    """

    def __init__(self, statistics: RunningMeanStd, device: th.device):
        # float64, as SB3's
        self.mean_tensor = th.tensor(statistics.mean, dtype=th.float64, device=device)
        self.var_tensor = th.tensor(statistics.var, dtype=th.float64, device=device)
        self.count_tensor = th.tensor(statistics.count, dtype=th.float64, device=device)

    mean = property(lambda self: self.mean_tensor.cpu().numpy().copy(), doc="Mean, as an array.")
    var = property(lambda self: self.var_tensor.cpu().numpy().copy(), doc="Variance, as an array.")
    count = property(lambda self: self.count_tensor.item(), doc="Number of values.")

    def __reduce__(self) -> tuple[Any, ...]:
        return RunningMeanStd, (), vars(self.copy())

    def copy(self) -> RunningMeanStd:
        """
        Copy to the CPU.

        :return: SB3's statistics
        """
        plain = RunningMeanStd(shape=tuple(self.mean_tensor.shape))
        plain.mean, plain.var, plain.count = self.mean, self.var, self.count
        return plain

    def update(self, arr: np.ndarray | th.Tensor) -> None:
        """
        Take values into account.

        :param arr: The values. Shape: ``(n_values, *shape)``
        """
        values = th.as_tensor(arr, device=self.mean_tensor.device).double()
        var, mean = th.var_mean(values, dim=0, correction=0)
        self.update_from_moments(mean, var, len(values))

    def update_from_moments(self, batch_mean: Any, batch_var: Any, batch_count: float) -> None:
        """
        Take values into account whose mean and variance are known.

        :param batch_mean: Their mean. Shape: ``shape``
        :param batch_var: Their variance. Shape: ``shape``
        :param batch_count: How many they are
        """
        device = self.mean_tensor.device
        batch_mean, batch_var = (th.as_tensor(moment, device=device) for moment in (batch_mean, batch_var))
        weight = batch_count / self.count_tensor.add_(batch_count)
        delta = batch_mean - self.mean_tensor
        self.mean_tensor.addcmul_(delta, weight)
        self.var_tensor.lerp_(batch_var, weight).addcmul_(delta.square_(), weight * (1 - weight))
