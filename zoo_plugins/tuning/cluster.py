"""The Ray cluster that workers run on: have one, and make workers."""

import argparse
import math
import os
import socket
from typing import Any

import ray

from zoo_plugins.registry import PluginError
from zoo_plugins.tuning.storages import Storage
from zoo_plugins.tuning.trial_worker import TrialWorker
from zoo_plugins.vec_envs import ray_cluster


def have_ray(address: str | None, show_output: bool) -> bool:
    """
    Join a cluster, or start one on this machine.

    :param address: The cluster, None: that of ``RAY_ADDRESS``, or else a new one
    :param show_output: Print what workers print
    :return: whether this process has to leave it at the end
    :raises PluginError: if there is none
    """
    if address and address.startswith("ray://"):
        raise PluginError("--ray-address: run tune on a node of the cluster, with the address 'auto'; ray:// is for clients")
    _knock(address or os.environ.get("RAY_ADDRESS", ""))
    try:
        return ray_cluster.start(address, log_to_driver=show_output)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise PluginError(f"--ray-address: can't join the cluster at {address or 'RAY_ADDRESS'}: {error}") from error


def _knock(address: str) -> None:
    # Ray itself waits for two minutes
    host, _, port = address.rpartition(":")
    if ray.is_initialized() or not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        raise PluginError(f"--ray-address: can't join the cluster at {address}: {error}") from error


def check_room(workers: int | None, cpus: float, gpus: float) -> int:
    """
    Compare what workers take with what the nodes have.

    :param workers: Number of workers, None: as many as there is room for
    :param cpus: CPUs of each
    :param gpus: GPUs of each
    :return: number of workers
    :raises PluginError: if there is no room for so many, whatever else runs
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # Ray counts in ten thousandths
    places = sum(
        math.floor(min(node.get(name, 0) / amount + 1e-9 for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount))
        for node in nodes
    )
    if places < (workers or 1):
        total = ", ".join(f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in ("CPU", "GPU"))
        each = f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        raise PluginError(
            f"--workers: {workers or 1}: each takes {each}, and there is room for {places} on {len(nodes)} "
            f"node{'s' if len(nodes) > 1 else ''} with {total}: take fewer, or another --cpus-per-worker"
        )
    return workers or places


def driver_host() -> str:
    """
    Tell where workers find this process.

    :return: the loopback address if all nodes are on this machine, else the address that Ray knows
    """
    address = str(ray.util.get_node_ip_address())
    return "127.0.0.1" if all(node["NodeManagerAddress"] == address for node in ray.nodes() if node["Alive"]) else address


def make_worker(options: argparse.Namespace, storage: Storage, study_name: str) -> Any:
    """
    Let Ray start a worker, where there is room.

    :param options: The options of the command line
    :param storage: Where the study is kept
    :param study_name: Its name
    :return: handle of the actor, a :class:`~zoo_plugins.tuning.trial_worker.TrialWorker`
    """
    actor = ray.remote(TrialWorker).options(
        num_cpus=options.cpus_per_worker,
        num_gpus=options.gpus_per_worker,
        max_concurrency=2,  # a trial, and the question how far it is
        max_restarts=0,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
    )
    return actor.remote(options, storage, study_name, max(1, int(options.cpus_per_worker)))
