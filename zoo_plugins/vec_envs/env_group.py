"""Several environments, stepped one after the other."""

import copy
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym

from zoo_plugins.vec_envs.arrays import Frame, StepArrays


class EnvGroup:
    """
    Several environments.

    :param envs: The environments; all have the same spaces
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]):
        self.envs = envs
        self.current: int | None = None  # the environment that is being asked, to blame it
        self.action_space = envs[0].action_space
        self.observation_space = envs[0].observation_space
        self.arrays = StepArrays(self.observation_space, len(envs))
        self.frame = Frame(self.arrays)
        self.reply_without_arrays = Frame()

    def step(self, actions: Iterable[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        """
        Step all environments, and reset those whose episode ends.

        :param actions: One action for each
        :return: infos, and infos of resets, by index, of those that have any
        """
        arrays, infos, reset_infos = self.arrays, {}, {}
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            self.current = index
            observation, reward, terminated, truncated, info = env.step(action)
            done = bool(terminated or truncated)
            arrays.rewards[index] = reward
            arrays.dones[index] = done
            arrays.truncated[index] = bool(truncated and not terminated)
            if done:
                # A copy, as an environment may use one array for all of its observations, and one dict for its infos
                info = {**info, "terminal_observation": copy.deepcopy(observation)}
                observation, reset_info = env.reset()
                if reset_info:
                    reset_infos[index] = reset_info
            if info:
                infos[index] = info
            arrays.set_observation(index, observation)
        self.current = None
        return infos, reset_infos

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> tuple[dict[int, Any], dict[int, Any]]:
        """
        Reset all environments.

        :param seeds: Their seeds
        :param options: Their options
        :return: no infos, and infos of resets by index, of those that have any
        """
        arrays, reset_infos = self.arrays, {}
        for index, (env, seed, of_env) in enumerate(zip(self.envs, seeds, options, strict=True)):
            self.current = index
            observation, reset_info = env.reset(seed=seed, **({"options": copy.deepcopy(of_env)} if of_env else {}))
            arrays.set_observation(index, observation)
            if reset_info:
                reset_infos[index] = reset_info
        arrays.rewards[:], arrays.dones[:], arrays.truncated[:] = 0.0, False, False
        self.current = None
        return {}, reset_infos

    def call(self, name: str, indices: Sequence[int], args: bytes) -> list[Any]:
        """
        Ask some environments the same.

        :param name: What, one of ``LOOKUPS``
        :param indices: Which environments
        :param args: What else it takes, pickled, so that no two environments share it
        :return: their answers
        """
        lookup, answers = LOOKUPS[name], []
        for index in indices:
            self.current = index
            answers.append(lookup(self.envs[index], *pickle.loads(args)))
        self.current = None
        return answers

    def close(self) -> None:
        """Close all environments, even if one of them can't be."""
        errors = []
        for env in self.envs:
            try:
                env.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _has_attr(env: gym.Env[Any, Any], name: str) -> bool:
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def _is_wrapped(env: gym.Env[Any, Any], wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]]) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, wrapper_class):
            return True
        env = env.env
    return False


def _env_method(env: gym.Env[Any, Any], name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return env.get_wrapper_attr(name)(*args, **kwargs)


LOOKUPS: dict[str, Callable[..., Any]] = {
    "env_method": _env_method,
    "get_attr": lambda env, name: env.get_wrapper_attr(name),
    "has_attr": _has_attr,
    "is_wrapped": _is_wrapped,
    "render": lambda env: env.render(),
    "set_attr": setattr,
}
