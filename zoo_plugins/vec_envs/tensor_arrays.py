"""Arrays of simulators, and tensors."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from torch.utils.dlpack import from_dlpack

from zoo_plugins.vec_envs.arrays import observation_parts
from zoo_plugins.vec_envs.tensor_step import TensorObs


def to_tensor(values: Any, device: th.device, dtype: th.dtype) -> th.Tensor:
    """
    Copy an array into a tensor, which shares no memory with it.

    :param values: A tensor, a NumPy array, or any array with DLPack
    :param device: Where the tensor is to be
    :param dtype: Its type
    :return: the tensor
    """
    if isinstance(values, th.Tensor):
        return values.detach().to(device, dtype, copy=True, memory_format=th.contiguous_format)
    if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray):
        return from_dlpack(values).to(device, dtype, copy=True)
    # A copy in any case: tensors can't have negative strides, and read-only arrays are warned of
    return th.from_numpy(np.array(values, order="C")).to(device, dtype)


class ObsTensors:
    """
    Copies observations of a simulator into tensors, and checks their shapes.

    :param space: Observation space of one environment
    :param num_envs: Number of environments
    :param device: Where the tensors are to be
    :raises NotImplementedError: if the space is neither an array nor a Dict of arrays
    """

    def __init__(self, space: spaces.Space[Any], num_envs: int, device: th.device):
        if isinstance(space, spaces.Tuple):
            raise NotImplementedError(f"observations of {space} are tuples: use a Dict")
        self._device = device
        self._formats = {key: ((num_envs, *shape), _torch_type(dtype)) for key, shape, dtype in observation_parts(space)}

    def __call__(self, obs: Any) -> TensorObs:
        """
        Copy observations.

        :param obs: An array, or a dict of arrays. Shape of each: ``(num_envs, *obs_shape)``
        :return: tensors of the space's types
        """
        if None in self._formats:
            return self._copy(None, obs)
        return {key: self._copy(key, obs[key]) for key in self._formats}

    def _copy(self, key: str | None, obs: Any) -> th.Tensor:
        shape, dtype = self._formats[key]
        tensor = to_tensor(obs, self._device, dtype)
        if tensor.shape != shape:
            where = "observations" if key is None else f"observations[{key!r}]"
            raise ValueError(f"{where} have shape {tuple(tensor.shape)}, and not {shape}")
        return tensor


def per_env(name: str, values: Any, num_envs: int, device: th.device, dtype: th.dtype) -> th.Tensor:
    """
    Copy one number for each environment.

    :param name: What it is, for the message
    :param values: Shape: ``(num_envs,)`` or ``(num_envs, 1)``
    :param num_envs: Number of environments
    :param device: Where the tensor is to be
    :param dtype: Its type
    :return: a tensor of shape ``(num_envs,)``
    :raises ValueError: if there is another number of values: they are never repeated
    """
    tensor = to_tensor(values, device, dtype)
    if tensor.shape not in ((num_envs,), (num_envs, 1)):
        raise ValueError(f"{name} have shape {tuple(tensor.shape)}, and not ({num_envs},): one for each environment")
    return tensor.view(num_envs)


def obs_where(mask: th.Tensor, obs: TensorObs, others: TensorObs) -> TensorObs:
    """
    Choose between observations.

    :param mask: For which environments to take the first. Shape: ``(n_envs,)``
    :param obs: The first. Shape of each tensor: ``(n_envs, *obs_shape)``
    :param others: The others, of the same shapes
    :return: the choice, in memory of its own
    """
    if isinstance(obs, dict):
        assert isinstance(others, dict)
        return {key: th.where(wide(mask, part), part, others[key]) for key, part in obs.items()}
    assert isinstance(others, th.Tensor)
    return th.where(wide(mask, obs), obs, others)


def wide(mask: th.Tensor, tensor: th.Tensor) -> th.Tensor:
    """
    Give a mask as many dimensions as a tensor has.

    :param mask: Shape: ``(n_envs,)``
    :param tensor: Shape: ``(n_envs, ...)``
    :return: a view of the mask. Shape: ``(n_envs, 1, ...)``
    """
    return mask.view(-1, *[1] * (tensor.dim() - 1))


def copied(obs: TensorObs) -> TensorObs:
    """
    Copy observations.

    :param obs: A tensor, or a dict of tensors
    :return: the same in memory of its own
    """
    return {key: part.clone() for key, part in obs.items()} if isinstance(obs, dict) else obs.clone()


def obs_to_numpy(obs: Any) -> Any:
    """
    Bring observations to NumPy.

    :param obs: A tensor, or a dict of tensors. Shape of each: ``(n_envs, *obs_shape)``
    :return: arrays of the same shape, which share memory with tensors that are on the CPU
    """
    if isinstance(obs, dict):
        return {key: part.cpu().numpy() for key, part in obs.items()}
    return obs.cpu().numpy()


def _torch_type(dtype: np.dtype[Any]) -> th.dtype:
    return th.from_numpy(np.empty(0, dtype)).dtype
