"""Normalization of observations and rewards on a device."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from zoo_plugins.vec_envs.numpy_face import NumpyFace, tensor_venv
from zoo_plugins.vec_envs.running_statistics import TensorRunningMeanStd
from zoo_plugins.vec_envs.tensor_arrays import obs_to_numpy
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class TensorVecNormalize(NumpyFace, VecNormalize):
    """
    SB3's ``VecNormalize`` for VecEnvs that step tensors: same arguments, statistics and files.

    What it saves is a ``VecNormalize``, which SB3 loads without this package; it loads what SB3 has saved.

    :param venv: The VecEnv
    :param kwargs: Arguments of ``VecNormalize``
    :raises TypeError: if the VecEnv does not step tensors
    """

    # Tensors, where SB3 has arrays
    obs_rms: Any
    ret_rms: Any
    returns: Any
    old_obs: Any
    old_reward: Any

    def __init__(self, venv: VecEnv, *args: Any, **kwargs: Any):
        self.device = tensor_venv(venv, type(self)).device
        super().__init__(venv, *args, **kwargs)
        self._start_returns()

    def __setattr__(self, name: str, value: Any) -> None:
        # SB3 sets statistics from outside, too: sync_envs_normalization
        if name in ("obs_rms", "ret_rms") and "device" in vars(self):
            value = self._on_device(value)
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__()
        for name in ("device", "old_obs", "_actions"):
            state.pop(name, None)
        # As if SB3 had made it
        return object.__new__, (VecNormalize,), {**state, "old_reward": np.array([])}

    @staticmethod
    def load(load_path: str, venv: VecEnv) -> "TensorVecNormalize":
        """
        Load statistics and settings that this or SB3's class has saved.

        :param load_path: Path of the file
        :param venv: The VecEnv to wrap
        :return: the wrapped VecEnv
        """
        with Path(load_path).open("rb") as file:
            plain: VecNormalize = pickle.load(file)
        normalized = TensorVecNormalize.__new__(TensorVecNormalize)
        normalized.__setstate__({name: value for name, value in vars(plain).items() if name != "venv"})
        normalized.set_venv(venv)
        return normalized

    def set_venv(self, venv: VecEnv) -> None:
        """
        Wrap a VecEnv, after loading.

        :param venv: The VecEnv
        :raises TypeError: if it does not step tensors
        """
        self.device = tensor_venv(venv, type(self)).device
        super().set_venv(venv)
        for name in ("obs_rms", "ret_rms"):
            if name in vars(self):
                setattr(self, name, vars(self)[name])
        self._start_returns()

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments.

        :return: normalized first observations. Shape: ``(n_envs, *obs_shape)``
        """
        obs: TensorObs = self.venv.reset_tensors()  # type: ignore[attr-defined]
        self.old_obs = obs
        self.returns.zero_()
        self._update_obs(obs)
        return self._normalized(obs)

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device. Shape: ``(n_envs, *action_shape)``
        :return: what happened, normalized
        """
        step: TensorStep = self.venv.step_tensors(actions)  # type: ignore[attr-defined]
        self.old_obs, self.old_reward = step.obs, step.rewards
        self._update_obs(step.obs)
        if self.training:
            self.returns.mul_(self.gamma).add_(step.rewards)
            self.ret_rms.update(self.returns)
        self.returns.masked_fill_(step.terminated | step.truncated, 0)
        return step._replace(
            obs=self._normalized(step.obs),
            rewards=self._normalized_rewards(step.rewards),
            final_obs=None if step.final_obs is None else self._normalized(step.final_obs),
        )

    def get_original_obs(self) -> Any:
        """
        Return the last observations before normalization.

        :return: arrays. Shape of each: ``(n_envs, *obs_shape)``
        """
        return _copied_to_numpy(self.old_obs)

    def get_original_reward(self) -> np.ndarray:
        """
        Return the last rewards before normalization.

        :return: an array. Shape: ``(n_envs,)``
        """
        return _copied_to_numpy(self.old_reward)

    def _start_returns(self) -> None:
        self.returns = th.zeros(self.num_envs, dtype=th.float64, device=self.device)

    def _on_device(self, statistics: Any) -> Any:
        if isinstance(statistics, dict):
            return {key: self._on_device(part) for key, part in statistics.items()}
        if isinstance(statistics, RunningMeanStd) and not isinstance(statistics, TensorRunningMeanStd):
            return TensorRunningMeanStd(statistics, self.device)
        return statistics

    def _update_obs(self, obs: TensorObs) -> None:
        if not (self.training and self.norm_obs):
            return
        if isinstance(obs, dict):
            for key, statistics in self.obs_rms.items():
                statistics.update(obs[key])
        else:
            self.obs_rms.update(obs)

    def _normalized(self, obs: TensorObs) -> TensorObs:
        """
        Normalize observations, into memory of their own.

        :param obs: Observations
        :return: those that are to be normalized, normalized; copies of the others
        """
        if isinstance(obs, dict):
            keys = self.obs_rms if self.norm_obs else ()
            return {
                key: self._standardized(part, self.obs_rms[key]) if key in keys else part.clone() for key, part in obs.items()
            }
        return self._standardized(obs, self.obs_rms) if self.norm_obs else obs.clone()

    def _standardized(self, obs: th.Tensor, statistics: TensorRunningMeanStd) -> th.Tensor:
        std = (statistics.var_tensor + self.epsilon).sqrt_()
        return (obs - statistics.mean_tensor).div_(std).clamp_(-self.clip_obs, self.clip_obs).float()

    def _normalized_rewards(self, rewards: th.Tensor) -> th.Tensor:
        if not self.norm_reward:
            return rewards.clone()
        std = (self.ret_rms.var_tensor + self.epsilon).sqrt_()
        return (rewards.double() / std).clamp_(-self.clip_reward, self.clip_reward).float()


def _copied_to_numpy(values: Any) -> Any:
    arrays = obs_to_numpy(values)
    return {key: part.copy() for key, part in arrays.items()} if isinstance(arrays, dict) else arrays.copy()
