"""Infos of a step of many environments, made when they are read."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
import torch as th

from zoo_plugins.vec_envs.tensor_arrays import obs_to_numpy
from zoo_plugins.vec_envs.tensor_step import TensorStep

# By gymnasium's convention: what a simulator tells of the last step of an episode, besides the first of the next one
OF_FINAL_STEP = ("final_obs", "_final_obs", "final_info", "_final_info")


class TensorInfos(Sequence[dict[str, Any]]):
    """
    What a VecEnv returns as infos: a dict for each environment, which does not exist before it is read.

    Dicts are those of a ``DummyVecEnv`` with SB3's ``Monitor``: ``TimeLimit.truncated``, and, if the episode has ended,
    ``terminal_observation`` and ``episode``. They stay the same objects, so that wrappers may change them. The first one that
    is read waits for the device.

    :param step: The step
    :param seconds: Time since the environments were made
    :param extras: What else the simulator told. Shape of each value: ``(n_envs, ...)``. By gymnasium's convention, a mask
        ``_name`` says for which environments there is a ``name``
    """

    def __init__(self, step: TensorStep, seconds: float = 0.0, extras: Mapping[str, Any] | None = None):
        self._step = step
        self._seconds = seconds
        self._extras = extras or {}
        self._dicts: dict[int, dict[str, Any]] = {}
        self._arrays: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._step.rewards)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[env] for env in range(len(self))[index]]
        env = range(len(self))[index]
        if env not in self._dicts:
            self._dicts[env] = self._make(env)
        return self._dicts[env]

    def __setitem__(self, index: int, info: dict[str, Any]) -> None:
        self._dicts[range(len(self))[index]] = info

    def __eq__(self, other: object) -> bool:
        return list(self) == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def _make(self, env: int) -> dict[str, Any]:
        truncated = self._array("truncated")[env]
        done = truncated or self._array("terminated")[env]
        # Simulators that reset in the same step tell of the next episode already
        extras = self._extras.get("final_info", self._extras) if done else self._extras
        info = extras_of(extras, env)
        if done:
            episode_return, length = self._array("episode_returns")[env], self._array("episode_lengths")[env]
            info["episode"] = {"r": round(episode_return, 6), "l": length, "t": round(self._seconds, 6)}
            if self._step.final_obs is None:
                # SB3 would take the value of the next episode's first observation instead
                truncated = False
            else:
                info["terminal_observation"] = self._final_obs(env)
        info["TimeLimit.truncated"] = truncated
        return info

    def _array(self, name: str) -> list[Any]:
        if name not in self._arrays:
            self._arrays[name] = getattr(self._step, name).tolist()
        return self._arrays[name]

    def _final_obs(self, env: int) -> Any:
        if "final_obs" not in self._arrays:
            self._arrays["final_obs"] = obs_to_numpy(self._step.final_obs)
        obs = self._arrays["final_obs"]
        return {key: part[env] for key, part in obs.items()} if isinstance(obs, dict) else obs[env]


def extras_of(extras: Mapping[str, Any], env: int) -> dict[str, Any]:
    """
    Take what a simulator told about one environment.

    :param extras: What it told about all of them. Shape of each value: ``(n_envs, ...)``, with masks ``_name``
    :param env: Index of the environment
    :return: its part. Dicts of arrays are searched too; what has no first dimension, or belongs to an episode that has ended,
        is left out
    """
    found: dict[str, Any] = {}
    for name, values in extras.items():
        mask = extras.get(f"_{name}")
        if name in OF_FINAL_STEP or (name.startswith("_") and name[1:] in extras):
            continue
        if mask is not None and not bool(mask[env]):
            continue
        if isinstance(values, Mapping):
            found[name] = extras_of(values, env)
        elif isinstance(values, th.Tensor | np.ndarray) and values.ndim > 0:
            value = values[env]
            found[name] = value.item() if getattr(value, "ndim", 1) == 0 and hasattr(value, "item") else value
    return found
