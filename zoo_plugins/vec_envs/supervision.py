"""Ask workers, and replace those that are lost."""

import pickle
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from zoo_plugins.vec_envs.arrays import Frame, StepArrays
from zoo_plugins.vec_envs.connections import LostConnection
from zoo_plugins.vec_envs.errors import EnvError, RayVecEnvError
from zoo_plugins.vec_envs.ray_cluster import Places
from zoo_plugins.vec_envs.ray_workers import Worker, WorkerDied, Workers
from zoo_plugins.vec_envs.worker import OK, Request


class SupervisedWorkers(Workers):
    """
    Workers that are replaced when they are lost.

    :param env_fns: Functions that return an environment each
    :param envs_per_worker: Number of environments of each worker; the last one may have fewer
    :param places: Where they may run, by their number
    :param start_timeout: How long starting may take, in seconds
    :param step_timeout: How long a worker may take to answer, in seconds. ``None``: as long as it lives
    :param max_restarts: How often each may be replaced, -1 for without limit
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        envs_per_worker: int,
        places: Callable[[int], Places],
        start_timeout: float,
        step_timeout: float | None,
        max_restarts: int,
    ):
        self._max_restarts = max_restarts
        super().__init__(env_fns, envs_per_worker, places, start_timeout, step_timeout)

    def ask(
        self, workers: Sequence[Worker], kind: int, body: Callable[[Worker], bytes], frame: Callable[[Worker], Frame]
    ) -> dict[Worker, bytearray]:
        """
        Send a request to workers, and wait for their answers. Those that are lost are replaced and asked again.

        :param workers: The workers
        :param kind: Kind of request
        :param body: What follows its header, for each
        :param frame: Where the header and arrays of the answer go, for each
        :return: what follows the arrays
        :raises EnvError: if an environment raised an exception, after all have answered
        :raises RayVecEnvError: if a worker was lost once too often
        """
        answers: dict[Worker, bytearray] = {}
        while len(answers) < len(workers):
            asked = [worker for worker in workers if worker not in answers]
            for worker in asked:
                self.send(worker, kind, body(worker), frame(worker))
            answers.update(self.receive(asked))
            self.replace_lost()
        return answers

    def send(self, worker: Worker, kind: int, body: bytes, frame: Frame) -> None:
        """
        Send a request to a worker, which may turn out to be lost.

        :param worker: The worker
        :param kind: Kind of request
        :param body: What follows its header
        :param frame: Where the header and arrays of the answer go
        """
        if worker.lost is None:
            try:
                worker.channel.request(kind, body, frame)
            except LostConnection as error:
                worker.lost = str(error)

    def receive(self, workers: Iterable[Worker]) -> dict[Worker, bytearray]:
        """
        Wait for the answers of workers, some of which may turn out to be lost.

        :param workers: The workers, to which a request was sent
        :return: what follows the arrays, of those that are not lost
        :raises EnvError: if an environment raised an exception, after all have answered
        """
        answers: dict[Worker, bytearray] = {}
        errors: list[EnvError] = []
        for worker in workers:
            if worker.lost is None:
                try:
                    status, body = worker.channel.reply()
                except LostConnection as error:
                    worker.lost = str(error)
                    continue
                if status == OK:
                    answers[worker] = body
                else:
                    errors.append(pickle.loads(body).error(worker.envs.start, worker.where))
        if errors:
            raise errors[0]
        return answers

    def replace_lost(self) -> None:
        """
        Replace workers that are lost, and reset the environments of those that take their place.

        :raises EnvError: if an environment can't be made or reset again
        :raises RayVecEnvError: if a worker was lost once too often, or can't be started in time
        """
        while lost := [worker for worker in self if worker.lost is not None]:
            for worker in lost:
                self._count_restart(worker)
            for worker in lost:
                worker.end()
            try:
                self.start(lost)
            except WorkerDied as error:
                for worker in lost:
                    worker.lost = worker.lost and str(error)
            for worker in lost:
                if worker.lost is None:
                    self._reset_fresh(worker)

    def _count_restart(self, worker: Worker) -> None:
        why = worker.cause_of_end(timeout=0.2) or worker.lost
        worker.restarts += 1
        if 0 <= self._max_restarts < worker.restarts:
            raise RayVecEnvError(f"{worker} was lost, which max_restarts={self._max_restarts} does not allow: {why}")
        allowed = "" if self._max_restarts < 0 else f" of at most {self._max_restarts}"
        warnings.warn(
            f"RayVecEnv lost {worker}: {why}. It is replaced (restart {worker.restarts}{allowed}); "
            "the current episodes of its environments are lost, and end as truncated.",
            stacklevel=2,
        )

    def _reset_fresh(self, worker: Worker) -> None:
        n_envs = len(worker.envs)
        arrays = StepArrays(worker.hello.observation_space, n_envs)
        # Not from NumPy's global generator, whose numbers belong to the program
        seeds = np.random.SeedSequence().generate_state(n_envs).tolist()
        requests: list[tuple[Request, tuple[Any, ...], Frame]] = [
            (Request.CALL, ("set_attr", [env], cloudpickle.dumps((name, value))), worker.no_arrays)
            for (env, name), value in worker.attributes.items()
        ]
        requests.append((Request.RESET, (seeds, [{}] * n_envs), Frame(arrays)))
        for kind, body, frame in requests:
            self.send(worker, kind, cloudpickle.dumps(body), frame)
            try:
                answers = self.receive([worker])
            except EnvError:
                worker.lost = "its environments could not be reset"
                raise
        if worker.lost is None:
            worker.fresh, worker.fresh_answer = arrays, answers[worker]
