"""Environments on every machine of a Ray cluster."""

import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from zoo_plugins.vec_envs import ray_cluster
from zoo_plugins.vec_envs.arrays import Frame, StepArrays, observation_parts
from zoo_plugins.vec_envs.env_calls import EnvCalls
from zoo_plugins.vec_envs.probe import measured_envs_per_worker
from zoo_plugins.vec_envs.ray_workers import Worker
from zoo_plugins.vec_envs.supervision import SupervisedWorkers
from zoo_plugins.vec_envs.worker import Hello, Request


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
    ):
        self.waiting = False
        self.closed = False
        if placement not in ray_cluster.STRATEGIES:
            raise ValueError(f"placement: {placement!r} is none of {', '.join(ray_cluster.STRATEGIES)}")
        if envs_per_worker != "auto" and not (isinstance(envs_per_worker, int) and envs_per_worker >= 1):
            raise ValueError(f'envs_per_worker: {envs_per_worker!r} is neither a positive integer nor "auto"')
        if not env_fns:
            raise ValueError("env_fns: at least one environment is needed")

        ray_cluster.join_or_start()
        if envs_per_worker == "auto":
            envs_per_worker = measured_envs_per_worker(env_fns, resources_per_worker, runtime_env, start_timeout / 2)

        def find_places(n_workers: int) -> ray_cluster.Places:
            return ray_cluster.Places(n_workers, placement, resources_per_worker, runtime_env, start_timeout)

        self._workers = SupervisedWorkers(
            env_fns, int(envs_per_worker), find_places, start_timeout, step_timeout, max_restarts
        )
        # Who forgets to close it, or replaces it in a notebook, gets the CPUs back
        self._finalizer = weakref.finalize(self, self._workers.close)
        try:
            self._prepare(len(env_fns))
        except BaseException:
            self.close()
            raise

    def _prepare(self, n_envs: int) -> None:
        first = next(iter(self._workers)).hello
        for worker in self._workers:
            if _formats(worker.hello) != _formats(first):
                raise ValueError(f"{worker} has other spaces than the first: {worker.hello}, not {first}")
        # Steps alternate between two places in memory, so that one always has the last observations, complete
        self._arrays = [StepArrays(first.observation_space, n_envs) for _ in range(2)]
        for worker in self._workers:
            worker.frames = [Frame(arrays, worker.slice) for arrays in self._arrays]
        self._current = 0
        self._action_format = (n_envs, *(first.action_space.shape or ())), first.action_space.dtype
        super().__init__(n_envs, first.observation_space, first.action_space)

    def reset(self) -> VecEnvObs:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: their observations. Shape of each array: ``(n_envs, *shape)``
        """
        self._refuse_if(closed=True)
        self.waiting = False
        self._current ^= 1

        def body(worker: Worker) -> bytes:
            return cloudpickle.dumps((self._seeds[worker.slice], self._options[worker.slice]))

        workers = list(self._workers)
        answers = self._workers.ask(workers, Request.RESET, body, lambda worker: worker.frames[self._current])
        self.reset_infos = [{} for _ in range(self.num_envs)]
        for worker, answer in answers.items():
            worker.fresh = None  # that it was replaced is not of interest to new episodes
            self._take_infos(worker, answer, [])
        # Seeds and options are only used once
        self._reset_seeds()
        self._reset_options()
        return self._arrays[self._current].stacked_observations()

    def step_async(self, actions: np.ndarray) -> None:
        """
        Start to step all environments.

        :param actions: Their actions. Shape: ``(n_envs, *shape)``
        """
        self._refuse_if(closed=True, waiting=True)
        kind, bodies = self._pack(actions)
        self._current ^= 1
        self.waiting = True
        for worker, body in zip(self._workers, bodies, strict=True):
            if worker.fresh is None:  # else the action belongs to an episode that has been lost
                self._workers.send(worker, kind, body, worker.frames[self._current])

    def step_wait(self) -> VecEnvStepReturn:
        """
        Wait until all environments have been stepped.

        :return: observations, rewards, ends of episodes, and infos, all of them the caller's to change
        :raises EnvError: if an environment raised an exception
        :raises RayVecEnvError: if a worker was lost once too often
        """
        if not self.waiting:
            raise RuntimeError("step_wait() was called without step_async()")
        self.waiting = False
        try:
            answers = self._workers.receive([worker for worker in self._workers if worker.fresh is None])
            self._workers.replace_lost()
        except BaseException:
            self._current ^= 1  # nobody sees these observations
            raise
        arrays = self._arrays[self._current]
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for worker in self._workers:
            if worker.fresh is not None:
                answers[worker] = self._end_lost_episodes(worker, infos)
        for env in arrays.dones.nonzero()[0].tolist():
            self.reset_infos[env] = {}
        for worker, answer in answers.items():
            self._take_infos(worker, answer, infos)
        for info, truncated in zip(infos, arrays.truncated.tolist(), strict=True):
            info["TimeLimit.truncated"] = truncated
        return arrays.stacked_observations(), arrays.rewards.copy(), arrays.dones.copy(), infos

    def close(self) -> None:
        """End all workers. Environments have some seconds to close; it may be called again, and at any time."""
        if not self.closed:
            self.closed, self.waiting = True, False
            self._finalizer()

    def _pack(self, actions: Any) -> tuple[Request, list[bytes]]:
        if isinstance(actions, np.ndarray) and (actions.shape, actions.dtype) == self._action_format and actions.size:
            return Request.STEP, [actions[worker.slice].tobytes() for worker in self._workers]
        # Actions of other types than the space's, which environments get as they are, and those of Dict and Tuple spaces
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        return Request.STEP_LIST, [cloudpickle.dumps(list(actions[worker.slice])) for worker in self._workers]

    def _take_infos(self, worker: Worker, answer: bytearray, infos: list[dict[str, Any]]) -> None:
        if answer:
            of_envs, of_resets = pickle.loads(answer)
            for env, info in of_envs.items():
                infos[worker.envs[env]].update(info)
            for env, info in of_resets.items():
                self.reset_infos[worker.envs[env]] = info

    def _end_lost_episodes(self, worker: Worker, infos: list[dict[str, Any]]) -> bytearray:
        arrays, seen = self._arrays[self._current], self._arrays[self._current ^ 1]
        assert worker.fresh is not None
        arrays.copy_from(worker.fresh, worker.slice)
        for env in worker.envs:
            arrays.dones[env] = arrays.truncated[env] = True
            infos[env] = {"worker_restarted": True, "terminal_observation": seen.observation(env)}
        worker.fresh = None
        return worker.fresh_answer


def _formats(hello: Hello) -> tuple[Any, ...]:
    return observation_parts(hello.observation_space), hello.action_space.shape, hello.action_space.dtype
