"""What algorithms have in common that train on environments in tensors."""

import warnings
from typing import Any, cast

import torch as th
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.algos.env_side import ActionsForEnv, resets_tensors
from zoo_plugins.vec_envs.numpy_face import steps_tensors
from zoo_plugins.vec_envs.tensor_step import StepsTensors, TensorStep
from zoo_plugins.vec_envs.tensor_vec_transpose_image import TensorVecTransposeImage


class OnTensorEnvs(OnPolicyAlgorithm):
    """An on-policy algorithm whose environments may step tensors. To be mixed in, in front of the algorithm."""

    # Of the last step: tensors, or NumPy arrays
    _last_obs: Any
    _last_episode_starts: Any
    # Whether there was a warning about final observations
    _warned = False
    _for_env: ActionsForEnv

    @classmethod
    def _open(cls, env: GymEnv | str | None, device: th.device | str, verbose: int) -> tuple[Any, th.device | str]:
        """
        Wrap the environment, and choose the device.

        :param env: What the constructor was given: ``None`` for an agent that is loaded without an environment
        :param device: Of these, "auto" is that of the environment if it has one
        :param verbose: Verbosity level
        :return: the VecEnv, ``None`` for none, and the device
        """
        if env is None:
            return None, device
        venv = cls._wrap_env(maybe_make_env(env, verbose), verbose)
        if device == "auto" and steps_tensors(venv):
            device = cast(StepsTensors, venv).device
        return venv, device

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)
        if isinstance(env, VecEnv) and steps_tensors(env) and wrapped is not env:
            return TensorVecTransposeImage(env)
        return wrapped

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        with resets_tensors(self.env):
            return super()._setup_learn(*args, **kwargs)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        # Where the environment is on the GPU, the policy belongs there
        if self.env is None or not steps_tensors(self.env):
            super()._maybe_recommend_cpu(mlp_class_name)

    def _excluded_save_params(self) -> list[str]:
        excluded = [*super()._excluded_save_params(), "_for_env", "_warned"]
        if self.env is not None and steps_tensors(self.env):
            # Tensors of a GPU can't be read where there is none
            excluded += ["_last_obs", "_last_episode_starts", "_last_original_obs", "_last_lstm_states"]
        return excluded

    def _warn_about_final_obs(self, step: TensorStep) -> None:
        """
        Warn, once, if last observations are not told.

        :param step: A step of the environments
        """
        if step.final_obs is None and not self._warned:
            self._warned = True
            warnings.warn(
                "the environments do not tell the last observations of truncated episodes: these count as terminated, since "
                "the value of what would have followed can't be predicted",
                stacklevel=2,
            )
