"""Stacked observations on a device."""

from collections.abc import Mapping
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import StackedObservations, VecEnv, VecEnvWrapper, VecFrameStack

from zoo_plugins.vec_envs.numpy_face import NumpyFace, tensor_venv
from zoo_plugins.vec_envs.tensor_arrays import wide
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


class TensorVecFrameStack(NumpyFace, VecFrameStack):
    """
    SB3's ``VecFrameStack`` for VecEnvs that step tensors.

    :param venv: The VecEnv
    :param n_stack: Number of observations in a stack
    :param channels_order: "first" or "last": the dimension along which they are stacked, also for each key of a Dict space;
        ``None``: where channels of images are, and last for other observations
    :raises TypeError: if the VecEnv does not step tensors
    """

    def __init__(self, venv: VecEnv, n_stack: int, channels_order: str | Mapping[str, str] | None = None):
        self.device = tensor_venv(venv, type(self)).device
        space = venv.observation_space
        # SB3's, for one environment: it checks spaces, and says how they are stacked
        plan = StackedObservations(1, n_stack, space, channels_order)  # type: ignore[arg-type]
        VecEnvWrapper.__init__(self, venv, observation_space=plan.stacked_observation_space)
        plans: dict[Any, Any] = {None: plan}
        if isinstance(space, spaces.Dict):
            plans = dict(plan.sub_stacked_observations)
        self._stacks = {key: _Stack(part, self.num_envs, self.device) for key, part in plans.items()}

    def reset_tensors(self) -> TensorObs:
        """
        Reset all environments.

        :return: stacks of first observations, with zeros before them
        """
        obs: TensorObs = self.venv.reset_tensors()  # type: ignore[attr-defined]
        if isinstance(obs, dict):
            return {key: self._stacks[key].reset(part) for key, part in obs.items()}
        return self._stacks[None].reset(obs)

    def step_tensors(self, actions: th.Tensor) -> TensorStep:
        """
        Step all environments.

        :param actions: Their actions, on the device. Shape: ``(n_envs, *action_shape)``
        :return: what happened, with stacks as observations
        """
        step: TensorStep = self.venv.step_tensors(actions)  # type: ignore[attr-defined]
        done = step.terminated | step.truncated
        obs, final_obs = step.obs, step.final_obs
        # Of final observations first: they continue stacks that then start anew
        if isinstance(obs, dict):
            assert final_obs is None or isinstance(final_obs, dict)
            finals = None if final_obs is None else {key: self._stacks[key].last(part) for key, part in final_obs.items()}
            stacked: TensorObs = {key: self._stacks[key].add(part, done) for key, part in obs.items()}
            return step._replace(obs=stacked, final_obs=finals)
        assert not isinstance(final_obs, dict)
        final = None if final_obs is None else self._stacks[None].last(final_obs)
        return step._replace(obs=self._stacks[None].add(obs, done), final_obs=final)


class _Stack:
    """
    The last observations of each environment, in one place in memory.

    :param plan: How SB3 stacks them
    :param num_envs: Number of environments
    :param device: Where they are
    """

    def __init__(self, plan: StackedObservations[Any], num_envs: int, device: th.device):
        self._dim = plan.stack_dimension
        self._stack = th.from_numpy(plan.stacked_obs[:0]).new_zeros((num_envs, *plan.stacked_shape), device=device)
        size = self._stack.shape[self._dim] // plan.n_stack
        self._kept = self._stack.narrow(self._dim, size, self._stack.shape[self._dim] - size)

    def reset(self, obs: th.Tensor) -> th.Tensor:
        self._stack.zero_()
        return self._push(self._kept, obs)

    def last(self, final_obs: th.Tensor) -> th.Tensor:
        return th.cat((self._kept, final_obs), self._dim)

    def add(self, obs: th.Tensor, done: th.Tensor) -> th.Tensor:
        return self._push(self._kept.masked_fill(wide(done, obs), 0), obs)

    def _push(self, kept: th.Tensor, obs: th.Tensor) -> th.Tensor:
        stacked = th.cat((kept, obs), self._dim)
        self._stack.copy_(stacked)
        return stacked
