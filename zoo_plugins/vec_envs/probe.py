"""Try an environment in a worker, to know how many of them a worker should have."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import ray

from zoo_plugins.vec_envs import ray_cluster
from zoo_plugins.vec_envs.grouping import StepTime, choose_envs_per_worker
from zoo_plugins.vec_envs.ray_workers import own_specs
from zoo_plugins.vec_envs.worker import EnvWorker, Setup


def measured_envs_per_worker(
    env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
    resources: Mapping[str, float] | None,
    runtime_env: Mapping[str, Any] | None,
    timeout: float,
) -> int:
    """
    Choose the number of environments of each worker by how long a step of the first environment takes.

    :param env_fns: Functions that return an environment each
    :param resources: What is reserved for a worker, by Ray's names
    :param runtime_env: Ray's runtime environment for workers
    :param timeout: How long measuring may take, in seconds
    :return: the number; as many workers as CPUs if the time can't be measured
    """
    n_envs, n_cpus = len(env_fns), ray_cluster.n_cpus()
    if n_envs == 1:
        return 1
    step = measure_step(env_fns[0], ray_cluster.options_of_one(resources, runtime_env), timeout)
    if step is None:
        return math.ceil(n_envs / max(1, int(n_cpus)))
    return choose_envs_per_worker(n_envs, n_cpus, step)


def measure_step(env_fn: Callable[[], gym.Env[Any, Any]], options: Mapping[str, Any], timeout: float) -> StepTime | None:
    """
    Make an environment in a worker of its own, and measure how long a step takes there.

    :param env_fn: Function that returns the environment
    :param options: Options of the actor
    :param timeout: How long it may take, in seconds
    :return: how long a step takes; ``None`` if that can't be told, for whatever reason
    """
    actor_class: Any = ray.remote(EnvWorker)
    actor = actor_class.options(**options).remote()
    try:
        return ray.get(actor.measure.remote(Setup([cloudpickle.dumps(env_fn)], own_specs(), tuple(sys.path))), timeout=timeout)
    except Exception:  # an environment that can't be made is told about when it has to be
        return None
    finally:
        ray.kill(actor)
