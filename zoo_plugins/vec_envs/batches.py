"""Registered environments that step many copies."""

from difflib import get_close_matches
from typing import Any

import gymnasium as gym
import torch as th

import zoo_plugins.envs  # noqa: F401, registers ours
from zoo_plugins.envs.tensor_env import TensorEnv


def make_batch(env_id: str, num_envs: int, device: th.device, kwargs: dict[str, Any]) -> Any:
    """
    Make a registered environment by its ``vector_entry_point``.

    :param env_id: Its id
    :param num_envs: Number of copies
    :param device: The device, for those that take one
    :param kwargs: Its keyword arguments
    :return: the batch
    :raises ValueError: if there is no such environment
    """
    batched = [known for known, spec in gym.registry.items() if spec.vector_entry_point is not None]
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        raise ValueError(f"{error}{_close(env_id, batched)}") from error
    entry_point: Any = spec.vector_entry_point
    if entry_point is None:
        raise ValueError(f"{env_id} has no batched form (vector_entry_point){_close(env_id, batched)}")
    if isinstance(entry_point, str):
        entry_point = gym.envs.registration.load_env_creator(entry_point)
    if isinstance(entry_point, type) and issubclass(entry_point, TensorEnv):
        kwargs = {"device": device, **kwargs}
    return gym.make_vec(spec, num_envs, "vector_entry_point", **kwargs)


def _close(env_id: str, known: list[str]) -> str:
    close = get_close_matches(env_id, known, n=1) or [name for name in known if name == f"Tensor{env_id}"]
    return f". Did you mean {close[0]}?" if close else ""
