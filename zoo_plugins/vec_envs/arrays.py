"""What one step of several environments gives, as arrays, and as the bytes in which they travel."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

# Type of a message or reply, and the number of bytes that follow the arrays
HEADER_SIZE = 8
# Bytes after the arrays that are received together with them: actions, most infos
SPARE_SIZE = 1024


class StepArrays:
    """
    Observations, rewards and ends of episodes of several environments.

    Types are those of :class:`~stable_baselines3.common.vec_env.DummyVecEnv`: the observation space's for observations,
    float32 for rewards, bool for ends of episodes.

    :param observation_space: Observation space of one environment
    :param n_envs: Number of environments
    :raises NotImplementedError: if the space is nested, or has no shape
    """

    def __init__(self, observation_space: spaces.Space[Any], n_envs: int):
        self.space = observation_space
        # By key of a Dict space, index of a Tuple space, None for all others. Shape of each: (n_envs, *shape)
        self.observations = {
            key: np.zeros((n_envs, *shape), dtype) for key, shape, dtype in observation_parts(observation_space)
        }
        self.rewards = np.zeros(n_envs, np.float32)
        self.dones = np.zeros(n_envs, bool)
        self.truncated = np.zeros(n_envs, bool)  # by a time limit, and not terminated too

    def __iter__(self) -> Iterator[np.ndarray]:
        yield from self.observations.values()
        yield from (self.rewards, self.dones, self.truncated)

    def set_observation(self, index: int, observation: Any) -> None:
        """
        Copy the observation of one environment.

        :param index: Index of the environment
        :param observation: Its observation, of the observation space
        """
        for key, stacked in self.observations.items():
            stacked[index] = observation if key is None else observation[key]

    def observation(self, index: int) -> Any:
        """
        Copy out the observation of one environment.

        :param index: Index of the environment
        :return: its observation, of the observation space
        """
        return self._packed({key: stacked[index].copy() for key, stacked in self.observations.items()})

    def stacked_observations(self) -> Any:
        """
        Copy out the observations of all environments.

        :return: an array, or a dict or tuple of arrays, of shape ``(n_envs, *shape)``
        """
        return self._packed({key: stacked.copy() for key, stacked in self.observations.items()})

    def copy_from(self, other: "StepArrays", envs: slice) -> None:
        """
        Take over everything about some environments.

        :param other: Where it is, for those environments only
        :param envs: Which environments they are here
        """
        for ours, theirs in zip(self, other, strict=True):
            ours[envs] = theirs

    def _packed(self, parts: dict[Any, np.ndarray]) -> Any:
        if isinstance(self.space, spaces.Dict):
            return parts
        if isinstance(self.space, spaces.Tuple):
            return tuple(parts.values())
        return parts[None]


class Frame:
    """
    A place in memory for the header of a message, and the arrays that follow it.

    :param arrays: The arrays, ``None`` for messages without
    :param envs: Which environments of the arrays
    """

    def __init__(self, arrays: StepArrays | None = None, envs: slice = slice(None)):
        self.header = bytearray(HEADER_SIZE)
        bodies = [] if arrays is None else [as_bytes(array[envs]) for array in arrays]
        self.parts = [memoryview(self.header), *(body for body in bodies if body.nbytes)]
        self.size = sum(part.nbytes for part in self.parts)
        self.spare = bytearray(SPARE_SIZE)
        self.parts_and_spare = [*self.parts, memoryview(self.spare)]


def as_bytes(array: np.ndarray) -> memoryview:
    """
    Look at an array as bytes.

    :param array: A contiguous array
    :return: its memory
    """
    return array.reshape(-1).view(np.uint8).data


def observation_parts(space: spaces.Space[Any]) -> list[tuple[Any, tuple[int, ...], np.dtype[Any]]]:
    """
    List the arrays that an observation consists of.

    :param space: Observation space
    :return: key in a Dict space, index in a Tuple space or ``None``; shape; and type of each
    :raises NotImplementedError: if the space is nested, or has no shape
    """
    if isinstance(space, spaces.Dict):
        subspaces: dict[Any, spaces.Space[Any]] = dict(space.spaces)
    elif isinstance(space, spaces.Tuple):
        subspaces = dict(enumerate(space.spaces))
    else:
        subspaces = {None: space}
    parts = []
    for key, subspace in subspaces.items():
        if subspace.shape is None or subspace.dtype is None:
            raise NotImplementedError(f"observations of {subspace} are not arrays of a fixed shape: flatten the space")
        parts.append((key, tuple(subspace.shape), np.dtype(subspace.dtype)))
    return parts


def concatenate(observations: Sequence[Any]) -> Any:
    """
    Put observations of several groups of environments together.

    :param observations: Of each group an array, or a dict or tuple of arrays, of shape ``(n_envs_of_group, *shape)``
    :return: the same for all environments; that of the only group itself if there is one
    """
    first = observations[0]
    if len(observations) == 1:
        return first
    if isinstance(first, dict):
        return {key: np.concatenate([obs[key] for obs in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(np.concatenate(parts) for parts in zip(*observations, strict=True))
    return np.concatenate(observations)
