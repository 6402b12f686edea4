"""Where an algorithm on tensors meets its environments: spaces, resets, observations, actions and infos."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from zoo_plugins.vec_envs.numpy_boundary import NumpyBoundary
from zoo_plugins.vec_envs.numpy_face import NumpyFace, steps_tensors
from zoo_plugins.vec_envs.tensor_infos import TensorInfos
from zoo_plugins.vec_envs.tensor_step import StepsTensors, TensorObs, TensorStep


class ActionsForEnv:
    """
    Turns actions of a policy into those of the environments, by a call.

    :param action_space: The action space of an environment. A Box may be unbounded, in whole or in part
    :param squash_output: Whether the policy's actions are within [-1, 1], to be scaled to the bounds
    :param device: Where the actions are
    :raises ValueError: if actions are squashed, and have no bounds to be scaled to
    """

    def __init__(self, action_space: spaces.Space[Any], squash_output: bool, device: th.device):
        self.dtype = th.from_numpy(np.empty(0, action_space.dtype)).dtype
        self.squash_output = squash_output
        self.bounds: tuple[th.Tensor, th.Tensor] | None = None
        if isinstance(action_space, spaces.Box):
            low, high = (th.as_tensor(bound, device=device) for bound in (action_space.low, action_space.high))
            self.bounds = low, high
            if squash_output and not action_space.is_bounded():
                raise ValueError("squash_output needs an action space with bounds, which actions are scaled to")

    def __call__(self, actions: th.Tensor) -> th.Tensor:
        """
        Scale or clip actions.

        :param actions: Actions of the policy. Shape: ``(n_envs, *action_shape)``
        :return: actions within the bounds and of the type of the action space, in memory of their own
        """
        if self.bounds is None:
            return actions.to(self.dtype, copy=True)
        low, high = self.bounds
        if self.squash_output:
            return low + 0.5 * (actions + 1.0) * (high - low)
        return th.clamp(actions, low, high)


def to_tensors(obs: Any, device: th.device) -> TensorObs:
    """
    Have observations as tensors.

    :param obs: Tensors or NumPy arrays, which they are after a reset of a VecEnv in NumPy. Shape: ``(n_envs, *obs_shape)``
    :param device: Where the tensors are to be
    :return: the same as tensors
    """
    if isinstance(obs, dict):
        return {key: th.as_tensor(part, device=device) for key, part in obs.items()}
    return th.as_tensor(obs, device=device)


def infos_of(face: StepsTensors, step: TensorStep) -> Any:
    """
    Get what callbacks find as ``infos``.

    :param face: The environments
    :param step: Their last step
    :return: a sequence of dicts, which for environments in tensors do not exist before they are read
    """
    if isinstance(face, NumpyBoundary):
        return face.infos
    return face.infos_of(step) if isinstance(face, NumpyFace) else TensorInfos(step)


@contextmanager
def finite_bounds(env: Any) -> Iterator[None]:
    """
    Context in which an unbounded action space has bounds.

    SB3 refuses one, in the constructor of all algorithms. PPO has no use for bounds, except to clip actions.

    :param env: The environment, ``None`` for none
    """
    space = getattr(env, "action_space", None)
    if not isinstance(space, spaces.Box) or space.is_bounded():
        yield
        return
    env.action_space = spaces.Box(-1, 1, space.shape)
    try:
        yield
    finally:
        env.action_space = space


@contextmanager
def resets_tensors(env: Any) -> Iterator[None]:
    """
    Context in which ``reset`` of a VecEnv that steps tensors returns them.

    :param env: The VecEnv
    """
    if not steps_tensors(env):
        yield
        return
    env.reset = env.reset_tensors
    try:
        yield
    finally:
        del env.reset
