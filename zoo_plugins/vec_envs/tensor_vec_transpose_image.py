"""Images with channels first, on a device."""

import torch as th
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from zoo_plugins.vec_envs.numpy_face import NumpyFace, tensor_venv
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class TensorVecTransposeImage(NumpyFace, VecTransposeImage):
    """
    SB3's ``VecTransposeImage`` for VecEnvs that step tensors. Images stay where they are in memory: they are read differently.

    :param venv: The VecEnv
    :param skip: Whether to do nothing
    :raises TypeError: if the VecEnv does not step tensors
    """

    def __init__(self, venv: VecEnv, skip: bool = False):
        self.device = tensor_venv(venv, type(self)).device
        super().__init__(venv, skip)

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments.

        :return: first observations, with channels first
        """
        return self._transposed(self.venv.reset_tensors())  # type: ignore[attr-defined]

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device. Shape: ``(n_envs, *action_shape)``
        :return: what happened, with channels first
        """
        step: TensorStep = self.venv.step_tensors(actions)  # type: ignore[attr-defined]
        final_obs = None if step.final_obs is None else self._transposed(step.final_obs)
        return step._replace(obs=self._transposed(step.obs), final_obs=final_obs)

    def _transposed(self, obs: TensorObs) -> TensorObs:
        if self.skip:
            return obs
        if isinstance(obs, dict):
            return {key: part.permute(0, 3, 1, 2) if key in self.image_space_keys else part for key, part in obs.items()}
        return obs.permute(0, 3, 1, 2)
