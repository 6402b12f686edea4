"""The Ray cluster: join the one that runs or start one, and reserve a place for workers."""

import logging
import math
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from zoo_plugins.vec_envs.errors import RayVecEnvError

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("RayVecEnv needs Ray: pip install 'zoo-plugins[ray]'") from error

STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
# What Ray calls in placement groups what it calls otherwise in options of actors
IN_BUNDLES = {"num_cpus": "CPU", "num_gpus": "GPU"}
# Observations do not pass through Ray's object store: it need not be a third of the machine's memory
OBJECT_STORE_BYTES = 256 * 2**20
# Where it starts, Ray makes its workers nice, at 15: they go behind everything else that runs on the machine
NICENESS = "RAY_worker_niceness"
# A byte, as Ray has actors that need nothing at all started by any node, even one that is gone, which costs some 14 seconds
NEXT_TO_NOTHING = {"num_cpus": 0, "memory": 1}
PATIENCE = 5.0  # seconds to wait for places that are not a must
_starting = threading.Lock()


def join_or_start() -> None:
    """
    Have Ray, by :func:`start`, and be on a node of its cluster.

    :raises RayVecEnvError: if this process is not (``ray://``)
    """
    start()
    if ray.util.client.ray.is_connected():
        raise RayVecEnvError(
            "RayVecEnv exchanges data with its workers directly, which Ray Client (ray://) does not allow: "
            "run the program on a node of the cluster, for example with `ray job submit`"
        )


def start(address: str | None = None, **options: Any) -> bool:
    """
    Have Ray: the one that the program uses already, a cluster that runs, or else a new one on this machine.

    A new one has no dashboard, and ends with this process, or with ``ray.shutdown()``. It is not stopped earlier, since the
    next VecEnv would wait for it again, and each start leaves descriptors behind in this process.

    :param address: The cluster. None: that of ``RAY_ADDRESS``, or else a new one
    :param options: Other arguments of ``ray.init``
    :return: whether the program did not use any before
    """
    with _starting:
        if ray.is_initialized():
            return False
        if not (address or os.environ.get("RAY_ADDRESS")):
            local = dict(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
            options = {**local, **options}
        elif address:
            options["address"] = address
        with _environment(NICENESS, "0"):
            ray.init(logging_level=logging.ERROR, **options)
        return True


@contextmanager
def _environment(variable: str, default: str) -> Iterator[None]:
    # Ray also sets PYTHONBREAKPOINT, and leaves it: breakpoint() of the program would open Ray's debugger
    before = {name: os.environ.get(name) for name in (variable, "PYTHONBREAKPOINT")}
    os.environ.setdefault(variable, default)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def n_cpus() -> float:
    """
    Count the CPUs that nobody has reserved; all of them if none is left.

    :return: their number, on all nodes together
    """
    return float(ray.available_resources().get("CPU", 0.0)) or float(ray.cluster_resources().get("CPU", 0.0))


class Places:
    """
    Places for workers on the nodes of the cluster.

    :param n_workers: Number of workers
    :param strategy: Ray's strategy, one of ``STRATEGIES``
    :param resources: What is reserved for each worker, by Ray's names. ``None``: one CPU, or less if there are fewer, or
        nothing if all are taken: such workers start all the same
    :param runtime_env: Ray's runtime environment for the workers
    :param timeout: How long starting may take, in seconds; half of it is spent on waiting for places
    :raises RayVecEnvError: if there are none until then, with what was wanted, and what is free
    """

    def __init__(
        self,
        n_workers: int,
        strategy: str,
        resources: Mapping[str, float] | None,
        runtime_env: Mapping[str, Any] | None,
        timeout: float,
    ):
        self._optional = resources is None
        self._runtime_env = None if runtime_env is None else dict(runtime_env)
        wanted = {"num_cpus": _share_of_cpus(n_workers)} if resources is None else resources
        self._bundle = {IN_BUNDLES.get(name, name): float(amount) for name, amount in wanted.items() if amount}
        self._group: PlacementGroup | None = None
        if self._bundle:
            self._group = placement_group([dict(self._bundle)] * n_workers, strategy=strategy)
        elif not self._optional:
            raise ValueError("resources_per_worker: a worker must take something of a node, for example num_cpus=0.1")
        patience = min(timeout / 2, PATIENCE) if self._optional else timeout / 2
        if not self._is_placed(patience):
            self.remove()
            if not self._optional:
                raise RayVecEnvError(f"no place for {n_workers} workers after {patience:g} s: {self.shortage()}")

    def _is_placed(self, timeout: float) -> bool:
        try:
            return self._group is None or self._group.wait(timeout)
        except BaseException:
            self.remove()
            raise

    def host(self, again: bool) -> str:
        """
        Tell where the driver has to listen.

        :param again: Whether workers have to find other places than they had
        :return: this machine's loopback address if all places are on it, else its address as Ray knows it
        """
        nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if self._group is not None and not (again and self._optional):
            nodes &= set(placement_group_table(self._group)["bundles_to_node_id"].values())
        if nodes == {ray.get_runtime_context().get_node_id()}:
            return "127.0.0.1"
        return str(ray.util.get_node_ip_address())

    def options(self, number: int, node: str | None = None) -> dict[str, Any]:
        """
        Tell Ray where to start a worker.

        :param number: Number of the worker
        :param node: Node to take if nothing has to be reserved, ``None`` for a worker that was not lost
        :return: options of an actor
        """
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}
        if self._runtime_env is not None:
            options["runtime_env"] = self._runtime_env
        if self._optional and node is not None:
            # Not in the group, part of which may have been on a node that is gone
            return {**options, **NEXT_TO_NOTHING, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
        if self._group is None:
            return {**options, **NEXT_TO_NOTHING, "scheduling_strategy": "SPREAD"}
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        return {**options, **_amounts(self._bundle), "scheduling_strategy": place}

    def shortage(self) -> str:
        """
        Compare what a worker takes with what there is.

        :return: part of a message
        """
        total, free = ray.cluster_resources(), ray.available_resources()
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
        there = ", ".join(
            f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in dict.fromkeys((*self._bundle, "CPU"))
        )
        nodes = sum(node["Alive"] for node in ray.nodes())
        return f"each takes {wanted or 'no CPU'}; free are {there}, on {nodes} node{'s' if nodes > 1 else ''}"

    def remove(self) -> None:
        """Give the places back."""
        if self._group is not None and ray.is_initialized():
            remove_placement_group(self._group)
        self._group = None


def options_of_one(resources: Mapping[str, float] | None, runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """
    Tell Ray where to start an actor for a moment.

    :param resources: What is reserved for it, by Ray's names. ``None``: nothing
    :param runtime_env: Ray's runtime environment for it
    :return: options of an actor
    """
    options = _amounts({IN_BUNDLES.get(name, name): float(amount) for name, amount in (resources or {}).items()})
    return options if runtime_env is None else {**options, "runtime_env": dict(runtime_env)}


def _amounts(bundle: Mapping[str, float]) -> dict[str, Any]:
    others = dict(bundle)
    return {
        "num_cpus": others.pop("CPU", 0),
        "num_gpus": others.pop("GPU", 0),
        "memory": int(others.pop("memory", 0)) or None,
        "resources": others,
    }


def living_nodes() -> list[str]:
    """
    Find the nodes that can be reached now. Ray itself takes some time to notice that one can't.

    :return: their ids, this one first
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"] and (node["NodeID"] == here or _is_reachable(node))]
    return sorted((node["NodeID"] for node in nodes), key=lambda node: node != here)


def _is_reachable(node: Mapping[str, Any]) -> bool:
    try:
        with socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout=1.0):
            return True
    except OSError:
        return False


def _share_of_cpus(n_workers: int) -> float:
    # So little that all fit, however the CPUs are distributed over the nodes; Ray counts in ten thousandths
    nodes = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())
    cpus = float(ray.available_resources().get("CPU", 0.0))
    return min(1.0, math.floor(1e4 * cpus / (n_workers + max(nodes, 1) - 1)) / 1e4)
