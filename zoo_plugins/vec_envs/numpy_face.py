"""The ordinary face of VecEnvs that step tensors: NumPy arrays, as SB3 expects them."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from zoo_plugins.vec_envs.tensor_arrays import obs_to_numpy
from zoo_plugins.vec_envs.tensor_infos import TensorInfos
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class NumpyFace(VecEnv):
    """
    What SB3 calls, by means of ``reset_tensors`` and ``step_tensors``.

    To be mixed into a VecEnv, or a wrapper of one, in front of its other base class. What it returns is the caller's.
    """

    device: th.device

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: first observations. Shape: ``(n_envs, *obs_shape)``
        """
        raise NotImplementedError

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device. Shape: ``(n_envs, *action_shape)``
        :return: what happened
        """
        raise NotImplementedError

    def reset(self) -> Any:
        """
        Reset all environments, with the seeds and options that were set for this reset.

        :return: their first observations. Shape of each array: ``(n_envs, *obs_shape)``
        :raises ValueError: if the simulator spends steps on resets
        """
        base: Any = self.unwrapped
        base.check_numpy_face()
        obs = obs_to_numpy(self.reset_tensors())
        base.note_resets(range(self.num_envs))
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """
        Take actions for the next step.

        :param actions: Their actions. Shape: ``(n_envs, *action_shape)``
        """
        # A copy, which environments may change
        self._actions = np.array(actions, self.action_space.dtype)

    def step_wait(self) -> Any:
        """
        Step all environments.

        :return: observations, rewards, ends of episodes, and infos
        """
        step = self.step_tensors(th.from_numpy(self._actions).to(self.device))
        base: Any = self.unwrapped
        infos = self.infos_of(step)
        dones = (step.terminated | step.truncated).cpu().numpy()
        base.note_resets(dones.nonzero()[0])
        return obs_to_numpy(step.obs), step.rewards.cpu().numpy(), dones, infos

    def infos_of(self, step: TensorStep) -> TensorInfos:
        """
        Tell what SB3 calls infos.

        :param step: The last step
        :return: its infos
        """
        base: Any = self.unwrapped
        return TensorInfos(step, base.seconds(), base.extras())


def steps_tensors(venv: VecEnv) -> bool:
    """
    Tell whether a VecEnv steps tensors itself.

    SB3's wrappers hand out methods of the VecEnv inside, which would go past what they do. ``isinstance`` with a protocol can
    be deceived by that.

    :param venv: The VecEnv
    :return: whether it is a :class:`~zoo_plugins.vec_envs.tensor_step.StepsTensors`
    """
    return hasattr(type(venv), "step_tensors")


def tensor_venv(venv: VecEnv, wrapper: type) -> Any:
    """
    Refuse a VecEnv that a wrapper of tensors can't wrap.

    :param venv: The VecEnv
    :param wrapper: Class of the wrapper
    :return: the VecEnv
    :raises TypeError: if it does not step tensors
    """
    if not steps_tensors(venv):
        raise TypeError(
            f"{wrapper.__name__} needs a VecEnv that steps tensors, such as TensorVecEnv, and {type(venv).__name__} does not; "
            f"SB3's {wrapper.__name__.removeprefix('Tensor')} wraps it"
        )
    return venv
