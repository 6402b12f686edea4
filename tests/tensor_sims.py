"""Simulators of many environments whose observations tell which step it is."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch.utils._python_dispatch import TorchDispatchMode

from zoo_plugins import TensorVecEnv
from zoo_plugins.vec_envs import TensorStep


class CountingSim:
    """
    Observation: [env, t]; reward: t + 10 * env. Its observations are always in the same memory, and it writes into actions.

    :param lengths: Length of the episodes of each environment
    :param end: "terminated", "truncated" or "both"
    :param mode: When environments are reset
    :param final_obs: Whether last observations are told
    :param arrays: "torch", "numpy", or "dlpack" for arrays that are neither
    """

    single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    single_action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(
        self,
        lengths: tuple[int, ...] = (5, 5),
        end: str = "terminated",
        mode: AutoresetMode = AutoresetMode.SAME_STEP,
        final_obs: str = "exact",
        arrays: str = "torch",
    ):
        self.num_envs = len(lengths)
        self.lengths = th.tensor(lengths)
        self.end, self.autoreset_mode, self.final_obs, self.arrays = end, mode, final_obs, arrays
        self.obs = th.zeros(self.num_envs, 2)
        self.obs[:, 0] = th.arange(self.num_envs)
        self.over = th.zeros(self.num_envs, dtype=th.bool)
        self.seeds: list[Any] = []
        self.options: list[Any] = []
        self.rewards_as = self.flags_as = lambda values: values

    @property
    def t(self) -> th.Tensor:
        return self.obs[:, 1]

    def reset(self, *, seed=None, options=None):
        options = options or {}
        mask = options.get("reset_mask")
        if mask is None:
            self.seeds.append(seed)
            self.options.append(options)
            self.obs[:, 1] = 0
        else:
            assert self.autoreset_mode is AutoresetMode.DISABLED
            self.t.masked_fill_(th.as_tensor(mask), 0)
        self.over.zero_()
        return self.give(self.obs), {}

    def step(self, actions):
        if self.arrays == "numpy":
            assert isinstance(actions, np.ndarray)
        actions *= 0
        resetting = self.over.clone()
        self.t.add_(1)
        done = (self.t >= self.lengths) & ~resetting
        rewards = (self.t + 10 * self.obs[:, 0]).masked_fill(resetting, 123.0)
        info = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            if self.final_obs == "exact":
                info["final_obs"] = self.give(self.obs.clone())
            self.t.masked_fill_(done, 0)
        elif self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self.t.masked_fill_(resetting, 0)
            self.over = done
        none = th.zeros_like(done)
        terminated, truncated = (done if self.end in (name, "both") else none for name in ("terminated", "truncated"))
        flags = (self.give(self.flags_as(terminated)), self.give(self.flags_as(truncated)))
        return self.give(self.obs), self.give(self.rewards_as(rewards)), *flags, info

    def give(self, tensor: Any) -> Any:
        if self.arrays == "torch" or not isinstance(tensor, th.Tensor):
            return tensor
        return tensor.numpy() if self.arrays == "numpy" else OnlyDLPack(tensor)


class ImageSim(CountingSim):
    """Images of which each pixel tells environment, step and place; alone, or in a dict with numbers."""

    def __init__(self, *args, as_dict=False, **kwargs):
        super().__init__(*args, **kwargs)
        image = spaces.Box(0, 255, (37, 36, 3), np.uint8)
        numbers = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_observation_space = spaces.Dict(image=image, numbers=numbers) if as_dict else image

    def give(self, tensor):
        if not isinstance(tensor, th.Tensor) or tensor.dim() != 2:
            return tensor
        places = th.arange(37 * 36 * 3).view(1, 37, 36, 3) % 50
        image = (places + 60 * tensor[:, 0].view(-1, 1, 1, 1) + tensor[:, 1].view(-1, 1, 1, 1)).to(th.uint8)
        return {"image": image, "numbers": tensor} if isinstance(self.single_observation_space, spaces.Dict) else image


class OnlyDLPack:
    """An array of some other library."""

    def __init__(self, tensor: th.Tensor):
        self._tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class Syncs(TorchDispatchMode):
    """Counts operations, and those that wait for a device."""

    # The last one brings a number to the device
    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def waiting(self) -> list[str]:
        return [name for name in self.names if name.partition(".")[0] in self.WAITING]


class NoNumpy(th.Tensor):
    """A tensor that can't be an array, as one on a GPU."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("numpy", "__array__", "tolist", "item", "__bool__"):
            raise TypeError(f"{func.__name__} of a tensor that is on a device")
        return super().__torch_function__(func, types, args, kwargs or {})


def on_device(tensor: th.Tensor) -> th.Tensor:
    """Make a tensor refuse NumPy."""
    return tensor.as_subclass(NoNumpy)


def run(vec_env: TensorVecEnv, n_steps: int, actions: th.Tensor | None = None) -> list[TensorStep]:
    """Reset, and make steps."""
    if actions is None:
        actions = th.zeros((vec_env.num_envs, *vec_env.action_space.shape))
    vec_env.reset_tensors()
    return [vec_env.step_tensors(actions.clone()) for _ in range(n_steps)]
