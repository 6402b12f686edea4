"""Gradient steps on minibatches as CUDA graphs."""

from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from zoo_plugins.algos.cuda_graphs import Graphed
from zoo_plugins.algos.losses import LossTerms
from zoo_plugins.algos.optimizers import FlatAdamStep


class GraphedUpdate(FlatAdamStep):
    """
    Loss, gradient and step of a minibatch as one CUDA graph, for each size of minibatch.

    Made once, and entered for each update.

    :param optimizer: An optimizer that :meth:`supports`
    :param max_norm: Maximum norm of all gradients together
    :param compute_loss: Computes the loss of a minibatch, and its statistics
    """

    def __init__(
        self,
        optimizer: th.optim.Optimizer,
        max_norm: float,
        compute_loss: Callable[[RolloutBufferSamples, LossTerms], tuple[th.Tensor, th.Tensor]],
    ):
        super().__init__(optimizer, max_norm)
        self.compute_loss = compute_loss
        self.graphs: dict[int, Graphed] = {}
        device = self.parameters[0].device
        self.learning_rate: th.Tensor = th.zeros((), device=device)
        # As exact as the numbers that they stand for
        self._clip_ranges = [th.zeros((), dtype=th.float64, device=device) for _ in range(2)]
        self._constants: Any = None

    def set_terms(self, terms: LossTerms) -> None:
        """
        Set what may be different in each update.

        :param terms: Coefficients and clipping parameters; graphs are recorded again if others than the latter have changed
        """
        self.learning_rate.fill_(self.optimizer.param_groups[0]["lr"])
        changing: dict[str, Any] = {}
        for name, kept in zip(("clip_range", "clip_range_vf"), self._clip_ranges, strict=True):
            value = getattr(terms, name)
            if value is not None:
                changing[name] = kept.fill_(value)
        self.terms = terms._replace(**changing)
        constants = (self.max_norm, terms.clip_range_vf is None, terms.ent_coef, terms.vf_coef, terms.normalize_advantage)
        if constants != self._constants:
            self.graphs.clear()
        self._constants = constants

    def update(self, batch: RolloutBufferSamples) -> th.Tensor:
        """
        Do one step.

        :param batch: The minibatch
        :return: its statistics
        """
        size = len(batch.actions)
        if size not in self.graphs:
            self.graphs[size] = Graphed(self._step)
        statistics: th.Tensor = self.graphs[size](*batch)
        return statistics

    def _step(self, *batch: Any) -> th.Tensor:
        loss, statistics = self.compute_loss(RolloutBufferSamples(*batch), self.terms)
        self(loss)
        return statistics
