"""Start, watch, replace and end the workers of a RayVecEnv."""

import pickle
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import cloudpickle
import gymnasium as gym
import ray
from ray.actor import ActorHandle

from zoo_plugins.vec_envs.arrays import Frame, StepArrays
from zoo_plugins.vec_envs.connections import Channel, Listener, LostConnection
from zoo_plugins.vec_envs.errors import RayVecEnvError, Report
from zoo_plugins.vec_envs.ray_cluster import Places, living_nodes
from zoo_plugins.vec_envs.worker import OK, EnvWorker, Hello, Setup

CLOSE_TIMEOUT = 5.0  # seconds that environments have to close


class WorkerDied(RayVecEnvError):
    """A worker ended before it had made its environments."""


class Worker:
    """
    A worker, seen from the driver.

    :param number: Its number
    :param envs: Indices of its environments
    :param setup: How it makes them
    """

    def __init__(self, number: int, envs: range, setup: Setup):
        self.number = number
        self.envs = envs
        self.setup = setup
        self.where = f"worker {number}"
        self.lost: str | None = None  # why, until it is replaced
        self.restarts = 0
        self.fresh: StepArrays | None = None  # first observations of environments whose loss was not yet told
        self.fresh_answer = bytearray()  # with the infos of these
        self.attributes: dict[tuple[int, str], Any] = {}  # what set_attr did to the environments
        self.no_arrays = Frame()
        self.frames: list[Frame] = []
        self.channel: Channel
        self.hello: Hello
        self._actor: ActorHandle[Any] | None = None
        self.ended: Any = None

    def launch(self, actor_class: Any, options: Mapping[str, Any], address: tuple[str, int], key: bytes) -> None:
        """
        Let Ray start the process.

        :param actor_class: The actor
        :param options: Where, and with which resources
        :param address: Where the driver listens
        :param key: What the worker has to know
        """
        self._actor = actor_class.options(**options).remote()
        self.ended = self._actor.serve.remote(address, key, self.number, self.setup)

    def is_alive(self) -> bool:
        """
        Ask Ray.

        :return: whether the worker still serves
        """
        return not ray.wait([self.ended], timeout=0)[0]

    def cause_of_end(self, timeout: float = 0.0) -> str:
        """
        Ask Ray why the worker ended.

        :param timeout: How long to wait for an answer, in seconds
        :return: what Ray says, an empty text if it says nothing
        """
        try:
            ray.get(self.ended, timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            return ""
        except Exception as error:  # Ray's own, or what the worker raised
            text = " ".join(str(getattr(error, "cause", None) or error).split())
            # Of a dead actor, Ray first tells all of its ids, and at last what might have happened
            text = text.rpartition("The actor is dead because ")[2].partition(". Some common causes include")[0]
            return text.partition(" class_name: ")[0].rstrip(".")
        return ""

    def greet(self) -> None:
        """
        Wait until the worker has made its environments.

        :raises EnvError: if it could not
        :raises LostConnection: if it ended, or takes too long
        """
        status, body = self.channel.receive(self.no_arrays)
        if status != OK:
            self.where, problem = pickle.loads(body)
            assert isinstance(problem, Report)
            raise problem.error(self.envs.start, self.where)
        self.hello = pickle.loads(body)
        self.where = self.hello.where

    def end(self) -> None:
        """End the process, whatever it does."""
        if hasattr(self, "channel"):
            self.channel.close()
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # it may be gone already, or its node
                ray.kill(self._actor)
        self._actor = None

    def __str__(self) -> str:
        first, last = self.envs.start, self.envs.stop - 1
        envs = f"environment {first}" if first == last else f"environments {first} to {last}"
        return f"worker {self.number} ({envs}, {self.where})"


class Workers:
    """
    The workers of a VecEnv.

    :param env_fns: Functions that return an environment each
    :param envs_per_worker: Number of environments of each worker; the last one may have fewer
    :param places: Where they may run, by their number
    :param start_timeout: How long starting may take, in seconds
    :param step_timeout: How long a worker may take to answer, in seconds. ``None``: as long as it lives
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        envs_per_worker: int,
        places: Callable[[int], Places],
        start_timeout: float,
        step_timeout: float | None,
    ):
        specs = own_specs()
        pickled = [cloudpickle.dumps(env_fn) for env_fn in env_fns]
        starts = range(0, len(env_fns), envs_per_worker)
        ranges = [range(start, min(start + envs_per_worker, len(env_fns))) for start in starts]
        self._workers = []
        for number, envs in enumerate(ranges):
            setup = Setup([pickled[index] for index in envs], specs, tuple(sys.path))
            self._workers.append(Worker(number, envs, setup))
        self._start_timeout = start_timeout
        self._step_timeout = step_timeout
        self._actor_class = ray.remote(EnvWorker)
        self._places = places(len(ranges))
        try:
            self.start(self._workers)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def of_env(self, index: int) -> Worker:
        """
        Find the worker of an environment.

        :param index: Index of the environment
        :return: its worker
        """
        return self._workers[index // len(self._workers[0].envs)]

    def start(self, workers: Sequence[Worker]) -> None:
        """
        Start workers, and wait until they have made their environments.

        :param workers: Those that are to be started
        :raises EnvError: if an environment can't be made
        :raises RayVecEnvError: if a worker can't be started in time
        """
        deadline = time.monotonic() + self._start_timeout
        key = secrets.token_bytes(32)
        again = any(worker.restarts for worker in workers)
        nodes = self._choose_nodes(workers) if again else [None] * len(workers)
        with Listener(self._places.host(again), key, backlog=len(workers)) as listener:
            for worker, node in zip(workers, nodes, strict=True):
                worker.launch(self._actor_class, self._places.options(worker.number, node), listener.address, key)
            self._accept(listener, {worker.number: worker for worker in workers}, deadline)
        for worker in workers:
            worker.channel.set_timeout(max(1.0, deadline - time.monotonic()))
            try:
                worker.greet()
            except LostConnection as error:
                cause = worker.cause_of_end(timeout=1.0)
                raise WorkerDied(f"{worker} did not make its environments: {cause or error}") from error
            worker.channel.set_timeout(self._step_timeout)
            worker.lost = None

    def _choose_nodes(self, lost: Sequence[Worker]) -> Sequence[str | None]:
        """
        Choose nodes for workers that take the place of others.

        :param lost: The workers
        :return: for each the node where it was, or else the one with the fewest workers
        """
        living = living_nodes()
        load = Counter(worker.hello.node for worker in self._workers if worker not in lost)
        nodes = []
        for worker in lost:
            before = worker.hello.node
            nodes.append(before if before in living else min(living, key=lambda node: load[node]))
            load[nodes[-1]] += 1
        return nodes

    def _accept(self, listener: Listener, missing: dict[int, Worker], deadline: float) -> None:
        while missing:
            accepted = listener.accept(timeout=0.2)
            if accepted is not None and accepted[0] in missing:
                worker = missing.pop(accepted[0])
                worker.channel = Channel(accepted[1], is_alive=worker.is_alive, polls=True)
                continue
            for worker in missing.values():
                if not worker.is_alive():
                    raise WorkerDied(f"{worker} could not be started: {worker.cause_of_end(timeout=1.0)}")
            if time.monotonic() > deadline:
                raise RayVecEnvError(
                    f"{len(missing)} of {len(self)} workers did not start within {self._start_timeout:g} s: "
                    f"{self._places.shortage()}"
                )

    def close(self) -> None:
        """End all workers, and give their places back. Environments have some seconds to close."""
        for worker in self._workers:
            if hasattr(worker, "channel"):
                worker.channel.close()  # which is what ends its service
        if ray.is_initialized():
            ended = [worker.ended for worker in self._workers if worker.ended is not None]
            if ended:
                ray.wait(ended, num_returns=len(ended), timeout=CLOSE_TIMEOUT)
        for worker in self._workers:
            worker.end()
        self._places.remove()


def own_specs() -> dict[str, bytes]:
    """
    Find environments that workers may not know, as they were registered in this process.

    :return: their pickled specifications by id
    """
    specs = {}
    for env_id, spec in gym.registry.items():
        if not str(spec.entry_point).startswith("gymnasium.envs."):
            with suppress(Exception):  # what can't be sent can't be made by a worker, and may not be meant to be
                specs[env_id] = cloudpickle.dumps(spec)
    return specs
