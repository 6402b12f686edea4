"""All that an algorithm has recorded as CUDA graphs."""

import warnings
from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from zoo_plugins.algos.cuda_graphs import Graphed
from zoo_plugins.algos.graphed_update import GraphedUpdate
from zoo_plugins.algos.losses import LossTerms
from zoo_plugins.vec_envs.tensor_step import StepsTensors


class Recordings:
    """CUDA graphs of an algorithm, made when they are first asked for: of steps by environments, and of its minibatches."""

    def __init__(self) -> None:
        self.steps: dict[StepsTensors, Callable[..., Any]] = {}
        self.update: GraphedUpdate | None = None

    def of_steps(self, face: StepsTensors, act_and_step: Callable[..., Any]) -> Callable[..., Any]:
        """
        Have a step of policy and environments as a CUDA graph.

        :param face: The environments
        :param act_and_step: Chooses actions for observations, and steps the environments
        :return: the same as a graph; as it is, if the environments can't be recorded
        """
        if face not in self.steps:
            generator = getattr(getattr(face, "unwrapped", None), "generator", None)
            if generator is None:
                warnings.warn("the environments' steps can't be recorded as a CUDA graph: only minibatches are", stacklevel=3)
            self.steps[face] = act_and_step if generator is None else Graphed(act_and_step, [generator])
        return self.steps[face]

    def of_update(
        self,
        optimizer: th.optim.Optimizer,
        max_norm: float,
        compute_loss: Callable[[RolloutBufferSamples, LossTerms], tuple[th.Tensor, th.Tensor]],
        terms: LossTerms,
    ) -> GraphedUpdate:
        """
        Have gradient steps as CUDA graphs.

        :param optimizer: The optimizer, always the same one
        :param max_norm: Maximum norm of all gradients together
        :param compute_loss: Computes the loss of a minibatch, and its statistics
        :param terms: Coefficients and clipping parameters of this update
        :return: a context for this update
        """
        if self.update is None:
            self.update = GraphedUpdate(optimizer, max_norm, compute_loss)
        self.update.max_norm = max_norm
        self.update.set_terms(terms)
        return self.update
