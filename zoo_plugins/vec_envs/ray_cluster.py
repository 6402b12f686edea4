"""The Ray cluster: join the one that runs or start one, and reserve a place for workers."""

import logging
import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from zoo_plugins.vec_envs.errors import RayVecEnvError

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ImportError("RayVecEnv needs Ray: pip install 'zoo-plugins[ray]'") from error

STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
# What Ray calls in placement groups what it calls otherwise in options of actors
IN_BUNDLES = {"num_cpus": "CPU", "num_gpus": "GPU"}
# Observations do not pass through Ray's object store: it need not be a third of the machine's memory
OBJECT_STORE_BYTES = 256 * 2**20
# Where it starts, Ray makes its workers nice, at 15: they go behind everything else that runs on the machine
NICENESS = "RAY_worker_niceness"
_starting = threading.Lock()


def join_or_start() -> None:
    """
    Have Ray: the one that the program uses already, the cluster of ``RAY_ADDRESS``, or else a new one on this machine.

    A new one has no dashboard, and ends with this process, or with ``ray.shutdown()``. It is not stopped earlier, since the
    next VecEnv would wait for it again, and each start leaves descriptors behind in this process.

    :raises RayVecEnvError: if this process is not on a node of the cluster (``ray://``)
    """
    with _starting:
        if not ray.is_initialized():
            local: dict[str, Any] = {}
            if not os.environ.get("RAY_ADDRESS"):
                local = dict(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
            with _environment(NICENESS, "0"):
                ray.init(logging_level=logging.ERROR, **local)
    if ray.util.client.ray.is_connected():
        raise RayVecEnvError(
            "RayVecEnv exchanges data with its workers directly, which Ray Client (ray://) does not allow: "
            "run the program on a node of the cluster, for example with `ray job submit`"
        )


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


def n_free_cpus() -> float:
    """
    Count the CPUs that nobody has reserved.

    :return: their number, on all nodes together
    """
    return float(ray.available_resources().get("CPU", 0.0))


class Places:
    """
    Places for workers on the nodes of the cluster: a placement group with a bundle for each.

    :param n_workers: Number of workers
    :param strategy: Ray's strategy, one of ``STRATEGIES``
    :param resources: What each worker takes, by Ray's names. ``None``: one CPU, or less if there are fewer
    :param runtime_env: Ray's runtime environment for the workers
    :param timeout: How long to wait for places, in seconds
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
        self._reserved = resources is not None
        self._runtime_env = None if runtime_env is None else dict(runtime_env)
        wanted = {"num_cpus": _share_of_cpus(n_workers)} if resources is None else resources
        self._bundle = {IN_BUNDLES.get(name, name): float(amount) for name, amount in wanted.items() if amount}
        if not self._bundle:
            raise ValueError("resources_per_worker: a worker must take something of a node, for example num_cpus=0.1")
        self._group: PlacementGroup | None = placement_group([dict(self._bundle)] * n_workers, strategy=strategy)
        try:
            placed = self._group.wait(timeout)
        except BaseException:
            self.remove()
            raise
        if not placed:
            self.remove()
            raise RayVecEnvError(f"no place for {n_workers} workers after {timeout:g} s: {self.shortage()}")

    def host(self) -> str:
        """
        Tell where the driver has to listen.

        :return: this machine's loopback address if all places are on it, else its address as Ray knows it
        """
        assert self._group is not None
        nodes = set(placement_group_table(self._group)["bundles_to_node_id"].values())
        if nodes == {ray.get_runtime_context().get_node_id()}:
            return "127.0.0.1"
        return str(ray.util.get_node_ip_address())

    def options(self, number: int, again: bool) -> dict[str, Any]:
        """
        Tell Ray where to start a worker.

        :param number: Number of the worker
        :param again: Whether it was lost, and its place possibly with it
        :return: options of an actor
        """
        assert self._group is not None
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0}
        if self._runtime_env is not None:
            options["runtime_env"] = self._runtime_env
        if again and not self._reserved:
            # Wherever a node lives: nobody asked for a CPU, and there may be fewer of them now
            return {**options, "num_cpus": 0, "scheduling_strategy": "SPREAD"}
        amounts = dict(self._bundle)
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        return {
            **options,
            "num_cpus": amounts.pop("CPU", 0),
            "num_gpus": amounts.pop("GPU", 0),
            "memory": int(amounts.pop("memory", 0)) or None,
            "resources": amounts,
            "scheduling_strategy": place,
        }

    def shortage(self) -> str:
        """
        Compare what a worker takes with what there is.

        :return: part of a message
        """
        total, free = ray.cluster_resources(), ray.available_resources()
        there = [f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in self._bundle]
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
        nodes = sum(node["Alive"] for node in ray.nodes())
        return f"each takes {wanted}, and {', '.join(there)} are free on {nodes} node{'s' if nodes > 1 else ''}"

    def remove(self) -> None:
        """Give the places back."""
        if self._group is not None and ray.is_initialized():
            remove_placement_group(self._group)
        self._group = None


def _share_of_cpus(n_workers: int) -> float:
    # Few enough that all fit, however the CPUs are distributed over the nodes; Ray counts in ten thousandths
    nodes = sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())
    cpus = n_free_cpus()
    if cpus < 0.01 * n_workers:  # all reserved by others: wait for them
        cpus = float(ray.cluster_resources().get("CPU", 0.0))
    return min(1.0, math.floor(1e4 * cpus / (n_workers + max(nodes, 1) - 1)) / 1e4)
