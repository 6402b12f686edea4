"""VecEnvs that step tensors, and tell in each observation where it comes from; tensors that can't leave their device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from zoo_plugins.vec_envs.numpy_face import NumpyFace
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class TensorLenEnv(NumpyFace):
    """
    tests.envs.LenEnv, many of them: observation [env, episode, t], reward: t of the observation acted on.

    Episode ``e`` of environment ``i`` has the length ``lengths[(e + i) % len(lengths)]``.

    :param n_envs: Number of environments
    :param lengths: Lengths of episodes
    :param end: "truncated" or "terminated"
    :param tells_final_obs: Whether there are last observations
    :param resets_by_step: Whether a step is spent on each reset
    :param as_dict: Whether observations are a dict of the two halves {"env": [env, episode], "t": [t]}
    :param tensor_class: Class of all tensors
    """

    render_mode = None

    def __init__(
        self,
        n_envs: int,
        lengths: Sequence[int] = (5,),
        action_space: spaces.Space | None = None,
        end: str = "truncated",
        tells_final_obs: bool = True,
        resets_by_step: bool = False,
        as_dict: bool = False,
        tensor_class: type[th.Tensor] = th.Tensor,
    ):
        self.device = th.device("cpu")
        self.lengths = th.tensor(lengths)
        self.end, self.tells_final_obs, self.resets_by_step, self.as_dict = end, tells_final_obs, resets_by_step, as_dict
        self.tensor_class = tensor_class
        self.envs = th.arange(n_envs)
        self.episode, self.t = th.full((n_envs,), -1), th.zeros(n_envs, dtype=th.long)
        self.total, self.resetting = th.zeros(n_envs), th.zeros(n_envs, dtype=th.bool)
        self.actions: list[th.Tensor] = []
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        parts = {"env": spaces.Box(-np.inf, np.inf, (2,), np.float32), "t": spaces.Box(-np.inf, np.inf, (1,), np.float32)}
        super().__init__(n_envs, spaces.Dict(parts) if as_dict else box, action_space or spaces.Discrete(2))

    def _observe(self) -> TensorObs:
        obs = self._wrap(th.stack([self.envs, self.episode, self.t], dim=1).float())
        return {"env": obs[:, :2].clone(), "t": obs[:, 2:].clone()} if self.as_dict else obs

    def _wrap(self, tensor: th.Tensor) -> th.Tensor:
        return tensor.as_subclass(self.tensor_class)

    def reset_tensors(self) -> TensorObs:
        self.episode += 1
        self.t.zero_()
        self.total.zero_()
        self.resetting.zero_()
        return self._observe()

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        actions = actions.as_subclass(th.Tensor)
        self.actions.append(actions.clone())
        # Whoever handed them out must have kept a copy
        actions.zero_()
        valid = ~self.resetting
        rewards = th.where(valid, self.t.float(), 0.0)
        self.t += valid
        self.total += rewards
        done = (self.t >= self.lengths[(self.episode + self.envs) % len(self.lengths)]) & valid
        final_obs, returns, lengths = self._observe(), self.total.clone(), self.t.int()
        over = self.resetting if self.resets_by_step else done
        self.episode += over
        self.t.masked_fill_(over, 0)
        self.total.masked_fill_(over, 0)
        if self.resets_by_step:
            self.resetting = done.clone()
        truncated = done if self.end == "truncated" else th.zeros_like(done)
        return TensorStep(
            self._observe(),
            self._wrap(rewards),
            self._wrap(done & ~truncated),
            self._wrap(truncated),
            final_obs if self.tells_final_obs else None,
            self._wrap(returns),
            self._wrap(lengths),
            self._wrap(valid) if self.resets_by_step else None,
        )

    def check_numpy_face(self) -> None:
        pass

    def note_resets(self, envs: Any) -> None:
        pass

    def seconds(self) -> float:
        return 0.0

    def extras(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


class DeviceTensor(th.Tensor):
    """A tensor that refuses what a tensor on a GPU refuses: to become a NumPy array without being copied to the CPU."""

    def numpy(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("can't convert a tensor of the device to NumPy")

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("can't convert a tensor of the device to NumPy")

    def cpu(self, *args: Any, **kwargs: Any) -> th.Tensor:
        return super().cpu(*args, **kwargs).as_subclass(th.Tensor)
