"""Environments on every machine of a Ray cluster."""

import itertools
import math
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from zoo_plugins.vec_envs import ray_cluster
from zoo_plugins.vec_envs.arrays import concatenate, observation_parts
from zoo_plugins.vec_envs.env_calls import EnvCalls
from zoo_plugins.vec_envs.parts import Part
from zoo_plugins.vec_envs.probe import measured_envs_per_worker
from zoo_plugins.vec_envs.supervision import SupervisedWorkers
from zoo_plugins.vec_envs.worker import Hello


class RayVecEnv(EnvCalls):
    """
    Steps environments in workers on all nodes of a Ray cluster, or in processes of this machine.

    A worker owns several environments, and exchanges one message each way with the driver per step. Ray places the workers,
    starts them and watches them; observations and actions do not pass through Ray, but through a TCP connection for each
    worker, which both sides open with a secret key. Ray's cluster has to be a trusted network all the same: nothing is
    encrypted.

    A program that uses Ray already shares its cluster, which is otherwise that of ``RAY_ADDRESS``, or a new one on this
    machine, without a dashboard, which ends with the program.

    Environments of one worker share a process, as those of a ``DummyVecEnv`` do: its modules, and NumPy's global generator.
    Rewards are float32 and observations have the types of their space, as with ``DummyVecEnv``.

    **Faults.** An exception inside an environment is raised here, as the type it has there (see
    :class:`~zoo_plugins.vec_envs.EnvError`); afterwards the VecEnv can be reset or closed. A worker that ends, or does not
    answer, is replaced on a living node, with a warning: its environments are made and reset again, with new random seeds
    and the attributes that ``set_attr`` had set. For each of them the current episode ends with the next step, as truncated:
    reward 0, done, and an info of ``{"worker_restarted": True, "TimeLimit.truncated": True, "terminal_observation": ...}``,
    the last one being the last observation that was seen.

    :param env_fns: Functions that return an environment each. They may be lambdas, and make environments that are registered
        in this process only; modules that they import have to be importable on each node
    :param envs_per_worker: Environments of each worker. "auto": measured. One environment more is made, stepped
        for 0.2 seconds and closed; those that compute little share a worker, those that wait have one each, and those that
        compute much are distributed over the free CPUs
    :param placement: How Ray distributes workers over nodes: "SPREAD" evenly, "PACK" on few, or "STRICT_SPREAD" and
        "STRICT_PACK" for nothing else than one node each, and one node for all
    :param resources_per_worker: What Ray reserves for each worker: ``num_cpus``, ``num_gpus``, ``memory`` in bytes, and
        resources that the cluster was given. ``None``: one CPU, a part of one if there are more workers than free CPUs, or
        nothing if there are none
    :param max_restarts: How often each worker may be replaced, -1 for without limit
    :param start_timeout: How long it may take to start workers and to make their environments, in seconds
    :param step_timeout: How long a worker may take to answer, for a step with its resets, in seconds, before it is replaced.
        ``None``: as long as Ray says that it lives
    :param runtime_env: Ray's runtime environment for workers, e.g. ``{"working_dir": "."}``
    :param pipeline: Let algorithms that can (:class:`~zoo_plugins.SeqRecurrentPPO`) step half of the environments while
        they choose actions for the other half. All others step them all at once, as without it
    :raises RayVecEnvError: if workers can't be started in time, saying which resources were wanted, and which are free
    :raises EnvError: if an environment can't be made
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        envs_per_worker: int | str = "auto",
        placement: str = "SPREAD",
        resources_per_worker: Mapping[str, float] | None = None,
        max_restarts: int = 5,
        start_timeout: float = 60.0,
        step_timeout: float | None = 300.0,
        runtime_env: Mapping[str, Any] | None = None,
        pipeline: bool = False,
    ):
        self.closed = False
        self._parts: list[Part] = []
        if placement not in ray_cluster.STRATEGIES:
            raise ValueError(f"placement: {placement!r} is none of {', '.join(ray_cluster.STRATEGIES)}")
        if envs_per_worker != "auto" and not (isinstance(envs_per_worker, int) and envs_per_worker >= 1):
            raise ValueError(f'envs_per_worker: {envs_per_worker!r} is neither a positive integer nor "auto"')
        if not env_fns:
            raise ValueError("env_fns: at least one environment is needed")
        if pipeline and (len(env_fns) == 1 or (envs_per_worker != "auto" and int(envs_per_worker) >= len(env_fns))):
            raise ValueError(
                f"pipeline: two workers are needed, but envs_per_worker={envs_per_worker!r} makes one of {len(env_fns)} "
                "environments"
            )

        ray_cluster.join_or_start()
        if envs_per_worker == "auto":
            envs_per_worker = measured_envs_per_worker(env_fns, resources_per_worker, runtime_env, start_timeout / 2)
            envs_per_worker = min(envs_per_worker, math.ceil(len(env_fns) / 2)) if pipeline else envs_per_worker

        def find_places(n_workers: int) -> ray_cluster.Places:
            return ray_cluster.Places(n_workers, placement, resources_per_worker, runtime_env, start_timeout)

        self._workers = SupervisedWorkers(
            env_fns, int(envs_per_worker), find_places, start_timeout, step_timeout, max_restarts
        )
        # Who forgets to close it, or replaces it in a notebook, gets the CPUs back
        self._finalizer = weakref.finalize(self, self._workers.close)
        try:
            self._prepare(len(env_fns), pipeline)
        except BaseException:
            self.close()
            raise

    def _prepare(self, n_envs: int, pipeline: bool) -> None:
        workers = list(self._workers)
        first = workers[0].hello
        for worker in workers:
            if _formats(worker.hello) != _formats(first):
                raise ValueError(f"{worker} has other spaces than the first: {worker.hello}, not {first}")
        half = math.ceil(len(workers) / 2) if pipeline else len(workers)
        self._parts = [Part(part, self._workers) for part in (workers[:half], workers[half:]) if part]
        self._tell_that_whole_steps_gain_nothing = pipeline
        super().__init__(n_envs, first.observation_space, first.action_space)

    def reset(self) -> VecEnvObs:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: their observations. Shape of each array: ``(n_envs, *shape)``
        """
        self._refuse_if(closed=True)
        self._give_up()
        self.reset_infos = [{} for _ in range(self.num_envs)]
        observations = []
        for part in self._parts:
            infos = self.reset_infos[part.envs]
            observations.append(part.reset(self._seeds[part.envs], self._options[part.envs], infos))
            self.reset_infos[part.envs] = infos
        # Seeds and options are only used once
        self._reset_seeds()
        self._reset_options()
        return concatenate(observations)

    def step_async(self, actions: np.ndarray) -> None:
        """
        Start to step all environments.

        :param actions: Their actions. Shape: ``(n_envs, *shape)``
        """
        self._refuse_if(closed=True, waiting=True)
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        if self._tell_that_whole_steps_gain_nothing:
            self._tell_that_whole_steps_gain_nothing = False
            warnings.warn(
                "pipeline=True gains nothing here: all environments are stepped at once. SeqRecurrentPPO (ppo_lstm_seq) "
                "steps them in halves.",
                stacklevel=2,
            )
        for part in self._parts:
            part.send(actions[part.envs])

    def step_wait(self) -> VecEnvStepReturn:
        """
        Wait until all environments have been stepped.

        :return: observations, rewards, ends of episodes, and infos, all of them the caller's to change
        :raises EnvError: if an environment raised an exception
        :raises RayVecEnvError: if a worker was lost once too often
        """
        if not self.waiting:
            raise RuntimeError("step_wait() was called without step_async()")
        results = [self.step_part_wait(index) for index in range(len(self._parts))]
        if len(results) == 1:
            return results[0]
        observations, rewards, dones, infos = zip(*results, strict=True)
        return concatenate(observations), np.concatenate(rewards), np.concatenate(dones), list(itertools.chain(*infos))

    @property
    def parts(self) -> list[slice]:
        """Environments that can be stepped apart from others: two halves with ``pipeline=True``, otherwise all of them."""
        return [part.envs for part in self._parts]

    def step_part_async(self, index: int, actions: np.ndarray) -> None:
        """
        Start to step one part of the environments, whatever the others do.

        :param index: Which of :attr:`parts`
        :param actions: Actions of its environments. Shape: ``(n_envs_of_part, *shape)``
        """
        self._refuse_if(closed=True)
        if self._parts[index].waiting:
            raise RuntimeError("step_part_async() was called twice: step_part_wait() has to be called first")
        self._parts[index].send(actions)

    def step_part_wait(self, index: int) -> VecEnvStepReturn:
        """
        Wait until one part of the environments has been stepped.

        :param index: Which of :attr:`parts`
        :return: see :meth:`step_wait`, of the environments of this part
        :raises EnvError: if an environment raised an exception, after which no part is waited for
        :raises RayVecEnvError: if a worker was lost once too often
        """
        part = self._parts[index]
        if not part.waiting:
            raise RuntimeError("step_part_wait() was called without step_part_async()")
        infos = self.reset_infos[part.envs]
        try:
            return part.receive(infos)
        except BaseException:
            self._give_up()
            raise
        finally:
            self.reset_infos[part.envs] = infos

    def close(self) -> None:
        """End all workers. Environments have some seconds to close; it may be called again, and at any time."""
        if not self.closed:
            self.closed = True
            self._give_up()
            self._finalizer()

    def _give_up(self) -> None:
        for part in self._parts:
            part.give_up()


def _formats(hello: Hello) -> tuple[Any, ...]:
    return observation_parts(hello.observation_space), hello.action_space.shape, hello.action_space.dtype
