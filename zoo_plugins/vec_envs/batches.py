"""Registered environments that step many copies."""

from difflib import get_close_matches
from typing import Any

import gymnasium as gym
import torch as th

import zoo_plugins.envs  # noqa: F401, registers ours
from zoo_plugins.envs.tensor_env import TensorEnv
from zoo_plugins.vec_envs.batch_sim import maybe_attribute


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


def make_sim(env_id: str, num_envs: int, device: th.device, kwargs: dict[str, Any]) -> Any:
    """
    Make a registered environment that is a :class:`~zoo_plugins.vec_envs.batch_sim.BatchSim`.

    :param env_id: Its id
    :param num_envs: Number of copies
    :param device: The device, for those that take one
    :param kwargs: Its keyword arguments
    :return: the batch
    :raises ValueError: if there is no such environment
    """
    batch = make_batch(env_id, num_envs, device, kwargs)
    if maybe_attribute(batch, "final_obs") is None:
        batch.close()
        raise ValueError(
            f"the batched form of {env_id} does not say what it tells of last observations (final_obs): GymVectorVecEnv "
            f"(vec_env_class: gym_vector) steps gymnasium's own{_close(f'Tensor{env_id}', list(gym.registry))}"
        )
    return batch


def _close(env_id: str, known: list[str]) -> str:
    close = get_close_matches(env_id, known, n=1)
    return f". Did you mean {close[0]}?" if close else ""
