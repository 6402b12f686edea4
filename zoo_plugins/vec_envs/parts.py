"""Environments of some workers, all of which are stepped together."""

import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from zoo_plugins.vec_envs.arrays import Frame, StepArrays
from zoo_plugins.vec_envs.ray_workers import Worker
from zoo_plugins.vec_envs.supervision import SupervisedWorkers
from zoo_plugins.vec_envs.worker import Request


class Part:
    """
    Environments of some workers, all of which are stepped together.

    :param workers: Consecutive workers
    :param supervisor: Who asks them, and replaces those that are lost
    """

    def __init__(self, workers: Sequence[Worker], supervisor: SupervisedWorkers):
        self.envs = slice(workers[0].envs.start, workers[-1].envs.stop)
        self.n_envs = self.envs.stop - self.envs.start
        self.waiting = False  # for the answers to a step
        self._supervisor = supervisor
        hello = workers[0].hello
        # Steps alternate between two places in memory, so that one always has the last observations, complete
        self._arrays = [StepArrays(hello.observation_space, self.n_envs) for _ in range(2)]
        self._current = 0
        first = self.envs.start
        self._places = {worker: slice(worker.envs.start - first, worker.envs.stop - first) for worker in workers}
        for worker, place in self._places.items():
            worker.frames = [Frame(arrays, place) for arrays in self._arrays]
        self._action_format = (self.n_envs, *(hello.action_space.shape or ())), hello.action_space.dtype

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]], infos: list[dict[str, Any]]) -> VecEnvObs:
        """
        Reset the environments, whether they are being stepped or not.

        :param seeds: Their seeds
        :param options: Their options
        :param infos: Where infos go
        :return: observations. Shape of each array: ``(n_envs, *shape)``
        """
        self.give_up()
        self._current ^= 1

        def body(worker: Worker) -> bytes:
            return cloudpickle.dumps((seeds[self._places[worker]], options[self._places[worker]]))

        answers = self._supervisor.ask(list(self._places), Request.RESET, body, lambda worker: worker.frames[self._current])
        for worker, answer in answers.items():
            worker.fresh = None  # that it was replaced is not of interest to new episodes
            self._take_infos(worker, answer, [], infos)
        return self._arrays[self._current].stacked_observations()

    def send(self, actions: Any) -> None:
        """
        Start to step the environments.

        :param actions: Their actions. Shape: ``(n_envs, *shape)``
        """
        kind, bodies = self._pack(actions)
        self._current ^= 1
        self.waiting = True
        for worker, body in zip(self._places, bodies, strict=True):
            if worker.fresh is None:  # else the action belongs to an episode that has been lost
                self._supervisor.send(worker, kind, body, worker.frames[self._current])

    def receive(self, reset_infos: list[dict[str, Any]]) -> VecEnvStepReturn:
        """
        Wait until the environments have been stepped.

        :param reset_infos: Infos of resets, of which those change whose episode ended
        :return: observations, rewards, ends of episodes, and infos, all of them the caller's to change
        :raises EnvError: if an environment raised an exception
        :raises RayVecEnvError: if a worker was lost once too often
        """
        answers = self._supervisor.receive([worker for worker in self._places if worker.fresh is None])
        self._supervisor.replace_lost()
        self.waiting = False
        arrays = self._arrays[self._current]
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        for worker in self._places:
            if worker.fresh is not None:
                answers[worker] = self._end_lost_episodes(worker, infos)
        for env in arrays.dones.nonzero()[0].tolist():
            reset_infos[env] = {}
        for worker, answer in answers.items():
            self._take_infos(worker, answer, infos, reset_infos)
        for info, truncated in zip(infos, arrays.truncated.tolist(), strict=True):
            info["TimeLimit.truncated"] = truncated
        return arrays.stacked_observations(), arrays.rewards.copy(), arrays.dones.copy(), infos

    def give_up(self) -> None:
        """Do not wait any more for the answers to a step, the observations of which nobody sees."""
        if self.waiting:
            self.waiting = False
            self._current ^= 1

    def _pack(self, actions: Any) -> tuple[Request, list[bytes]]:
        places = self._places.values()
        if isinstance(actions, np.ndarray) and (actions.shape, actions.dtype) == self._action_format and actions.size:
            return Request.STEP, [actions[place].tobytes() for place in places]
        # Actions of other types than the space's, which environments get as they are, and those of Dict and Tuple spaces
        return Request.STEP_LIST, [cloudpickle.dumps(list(actions[place])) for place in places]

    def _take_infos(
        self, worker: Worker, answer: bytearray, infos: list[dict[str, Any]], reset_infos: list[dict[str, Any]]
    ) -> None:
        if answer:
            of_envs, of_resets = pickle.loads(answer)
            first = self._places[worker].start
            for env, info in of_envs.items():
                infos[first + env].update(info)
            for env, info in of_resets.items():
                reset_infos[first + env] = info

    def _end_lost_episodes(self, worker: Worker, infos: list[dict[str, Any]]) -> bytearray:
        arrays, seen = self._arrays[self._current], self._arrays[self._current ^ 1]
        assert worker.fresh is not None
        place = self._places[worker]
        arrays.copy_from(worker.fresh, place)
        for env in range(place.start, place.stop):
            arrays.dones[env] = arrays.truncated[env] = True
            infos[env] = {"worker_restarted": True, "terminal_observation": seen.observation(env)}
        worker.fresh = None
        return worker.fresh_answer
