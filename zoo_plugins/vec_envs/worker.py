"""What runs in a worker: several environments, stepped one after the other for a driver on the other side of a connection."""

import copy
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from zoo_plugins.vec_envs.connections import MAX_BYTES, Channel, LostConnection, connect
from zoo_plugins.vec_envs.env_group import EnvGroup
from zoo_plugins.vec_envs.errors import report
from zoo_plugins.vec_envs.grouping import StepTime, measure

OK, RAISED = 0, 1  # kinds of replies


class Request(IntEnum):
    """Kinds of requests, and what follows the header."""

    STEP = 1  # the bytes of an array of actions
    STEP_LIST = 2  # a pickled list of actions
    RESET = 3  # pickled seeds and options
    CALL = 4  # pickled: name of a lookup, indices of environments, and its other arguments, which are pickled themselves


@dataclass(frozen=True)
class Setup:
    """
    What a worker needs to make its environments.

    :param env_fns: Pickled functions that return an environment each
    :param specs: Pickled specifications of environments by id, for those that are registered in the driver
    :param path: Where the driver looks for modules
    """

    env_fns: Sequence[bytes]
    specs: dict[str, bytes]
    path: Sequence[str] = ()


@dataclass(frozen=True)
class Hello:
    """
    What a worker tells about its environments, once they are made.

    :param observation_space: Observation space of each
    :param action_space: Action space of each
    :param where: Process and node
    :param node: Ray's id of the node
    :param pid: Process id
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    where: str
    node: str
    pid: int


class EnvWorker:
    """The Ray actor. Ray starts and watches it; what environments are asked and answer takes another way."""

    def measure(self, setup: Setup) -> StepTime:
        """
        Make one environment, step it for a moment, and close it.

        :param setup: How to make it
        :return: how long a step takes
        """
        (env,) = _make(setup)
        try:
            return measure(env)
        finally:
            env.close()

    def serve(self, address: tuple[str, int], key: bytes, number: int, setup: Setup) -> None:
        """
        Make environments, and step them until the driver closes the connection.

        :param address: Where the driver listens
        :param key: What proves to either side that the other is the right one
        :param number: Number of the worker
        :param setup: How to make the environments
        :raises ConnectionError: if the driver can't be reached
        """
        try:
            connected = connect(address, key, number)
        except OSError as error:
            raise ConnectionError(
                f"{_where()} can't connect to the driver at {address[0]}:{address[1]} ({error}): "
                "does a firewall stand between the nodes?"
            ) from None
        channel = Channel(connected)
        envs: EnvGroup | None = None
        with suppress(LostConnection):  # the driver closed it, or ended
            try:
                envs = _make_envs(channel, setup)
                while envs is not None:
                    _answer(channel, envs)
            finally:
                channel.close()
                if envs is not None:
                    envs.close()


def _make_envs(channel: Channel, setup: Setup) -> EnvGroup | None:
    envs: list[gym.Env[Any, Any]] = []
    try:
        for env in _make(setup):
            envs.append(env)
        if len({id(env.unwrapped) for env in envs}) < len(envs):
            raise ValueError("two of the functions that make environments return the same environment")
        group = EnvGroup(envs)
        hello = Hello(group.observation_space, group.action_space, _where(), _node(), os.getpid())
        channel.send(OK, cloudpickle.dumps(hello))
        return group
    except (Exception, SystemExit) as error:
        for env in envs:
            with suppress(Exception):
                env.close()
        channel.send(RAISED, pickle.dumps((_where(), report(error, len(envs)))))
        return None


def _make(setup: Setup) -> Iterator[gym.Env[Any, Any]]:
    # Last, as a worker's own modules come first; a folder that is not here does no harm
    sys.path += [folder for folder in setup.path if folder not in sys.path]
    for env_id, spec in setup.specs.items():
        if env_id not in gym.registry:
            gym.registry[env_id] = _load_spec(env_id, spec)
    for pickled in setup.env_fns:
        yield _as_gymnasium(pickle.loads(pickled)())


def _load_spec(env_id: str, pickled: bytes) -> EnvSpec:
    try:
        return pickle.loads(pickled)
    except Exception as error:  # of a module that is missing here, which matters to those who make this environment
        problem = error

    def fail(**kwargs: Any) -> gym.Env[Any, Any]:
        raise problem

    return EnvSpec(id=env_id, entry_point=fail)


def _as_gymnasium(env: Any) -> gym.Env[Any, Any]:
    if isinstance(env, gym.Env):
        return env
    # Not above: it imports PyTorch, which environments may do without
    from stable_baselines3.common.vec_env.patch_gym import _patch_env

    return _patch_env(env)


def _answer(channel: Channel, envs: EnvGroup) -> None:
    kind, body = channel.receive(envs.reply_without_arrays)
    arrays = None if kind == Request.CALL else envs.frame
    try:
        pickled = _do(envs, kind, body)
        status = OK
    except (Exception, SystemExit) as error:
        pickled, status = pickle.dumps(report(error, envs.current)), RAISED
        envs.current = None
    channel.send(status, pickled, arrays)


def _do(envs: EnvGroup, kind: int, body: bytearray) -> bytes:
    if kind == Request.CALL:
        pickled = cloudpickle.dumps(envs.call(*pickle.loads(body)))
    elif kind == Request.STEP:
        space = envs.action_space
        # The memory of this message is new: environments may write into it, and keep it
        actions = np.frombuffer(body, space.dtype).reshape(len(envs.envs), *(space.shape or ()))
        pickled = _dumps(*envs.step(actions))
    elif kind == Request.STEP_LIST:
        pickled = _dumps(*envs.step(map(copy.deepcopy, pickle.loads(body))))
    elif kind == Request.RESET:
        pickled = _dumps(*envs.reset(*pickle.loads(body)))
    else:
        raise ValueError(f"unknown request {kind}")
    if len(pickled) > MAX_BYTES:
        raise ValueError(f"what environments answered takes {len(pickled)} bytes, more than {MAX_BYTES}")
    return pickled


def _dumps(infos: dict[int, Any], reset_infos: dict[int, Any]) -> bytes:
    if not infos and not reset_infos:
        return b""
    try:
        return pickle.dumps((infos, reset_infos), pickle.HIGHEST_PROTOCOL)
    except Exception:  # an object of a class of the driver's script
        return cloudpickle.dumps((infos, reset_infos))


def _where() -> str:
    from ray.util import get_node_ip_address

    return f"process {os.getpid()} on node {get_node_ip_address()}"


def _node() -> str:
    import ray

    # Without Ray in tests of this module only
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""
