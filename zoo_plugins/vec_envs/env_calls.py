"""What environments in workers can be asked between steps."""

import pickle
import warnings
from collections.abc import Sequence
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvIndices

from zoo_plugins.vec_envs.parts import Part
from zoo_plugins.vec_envs.ray_workers import Worker
from zoo_plugins.vec_envs.supervision import SupervisedWorkers
from zoo_plugins.vec_envs.worker import Request


class EnvCalls(VecEnv):
    """The part of a VecEnv of workers that asks environments for attributes, results of methods and images."""

    closed: bool
    _workers: SupervisedWorkers
    _parts: list[Part]

    @property
    def waiting(self) -> bool:
        """Whether a step was started that was not waited for."""
        return any(part.waiting for part in self._parts)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """
        Let all environments render.

        :return: an image of each, ``None`` instead if the render mode is not "rgb_array"
        """
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"The render mode is {self.render_mode}, but this method assumes it is `rgb_array` to obtain images.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return self._call("render", None)

    def has_attr(self, attr_name: str) -> bool:
        """
        Check if all environments have an attribute (see base class).

        :param attr_name: Name of the attribute, of the environment or of one of its wrappers
        :return: whether all have it
        """
        return all(self._call("has_attr", None, attr_name))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Return an attribute of environments, or of their wrappers (see base class).

        :param attr_name: Name of the attribute
        :param indices: Indices of environments, ``None`` for all
        :return: its value in each
        """
        return self._call("get_attr", indices, attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        Set an attribute of the outermost wrapper of environments (see base class), also in those that replace them later.

        :param attr_name: Name of the attribute
        :param value: Its value, of which each environment gets a copy
        :param indices: Indices of environments, ``None`` for all
        """
        self._call("set_attr", indices, attr_name, value)
        for env in self._envs(indices):
            worker = self._workers.of_env(env)
            worker.attributes[env - worker.envs.start, attr_name] = value

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """
        Call a method of environments, or of their wrappers (see base class).

        :param method_name: Name of the method
        :param method_args: Positional arguments
        :param indices: Indices of environments, ``None`` for all
        :param method_kwargs: Keyword arguments
        :return: what each call returned
        """
        return self._call("env_method", indices, method_name, method_args, method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """
        Check if environments are wrapped with a given wrapper (see base class).

        :param wrapper_class: The wrapper
        :param indices: Indices of environments, ``None`` for all
        :return: whether each is
        """
        return self._call("is_wrapped", indices, wrapper_class)

    def _call(self, name: str, indices: VecEnvIndices, *args: Any) -> list[Any]:
        self._refuse_if(closed=True, waiting=True)
        envs = self._envs(indices)
        of_workers: dict[Worker, list[int]] = {}  # positions among the results
        for position, env in enumerate(envs):
            of_workers.setdefault(self._workers.of_env(env), []).append(position)

        pickled = cloudpickle.dumps(args)

        def body(worker: Worker) -> bytes:
            return pickle.dumps((name, [envs[position] - worker.envs.start for position in of_workers[worker]], pickled))

        answers = self._workers.ask(list(of_workers), Request.CALL, body, lambda worker: worker.no_arrays)
        results: list[Any] = [None] * len(envs)
        for worker, answer in answers.items():
            for position, result in zip(of_workers[worker], pickle.loads(answer), strict=True):
                results[position] = result
        return results

    def _envs(self, indices: VecEnvIndices) -> list[int]:
        return [range(self.num_envs)[index] for index in self._get_indices(indices)]

    def _refuse_if(self, closed: bool = False, waiting: bool = False) -> None:
        if closed and self.closed:
            raise RuntimeError("this RayVecEnv is closed")
        if waiting and self.waiting:
            raise RuntimeError("step_async() was called: step_wait() has to be called first")
