"""NaN and infinity from simulators."""

import torch as th

from zoo_plugins.vec_envs.tensor_arrays import copied, obs_where
from zoo_plugins.vec_envs.tensor_step import TensorObs, TensorStep


def finite_envs(obs: TensorObs) -> th.Tensor:
    """
    Tell where observations are finite.

    :param obs: Observations. Shape of each tensor: ``(n_envs, *obs_shape)``
    :return: whether all numbers of an environment are finite. Shape: ``(n_envs,)``
    """
    parts = list(obs.values()) if isinstance(obs, dict) else [obs]
    finite = [part.isfinite().view(len(part), -1).all(1) for part in parts]
    return th.stack(finite).all(0)


def refuse_non_finite(step: TensorStep, n_steps: int) -> None:
    """
    Stop when a step is not finite. This waits for the device.

    :param step: The step
    :param n_steps: Which step it is, for the message
    :raises FloatingPointError: naming environments and step
    """
    finite = finite_envs(step.obs) & step.rewards.isfinite()
    if step.final_obs is not None:
        finite &= finite_envs(step.final_obs) | ~(step.terminated | step.truncated)
    if not finite.all():
        envs = ", ".join(map(str, (~finite).nonzero().flatten().tolist()))
        raise FloatingPointError(f"observation or reward of environment {envs} is not finite in step {n_steps}")


class NonFiniteEnds:
    """
    Ends episodes that are not finite any more: truncated, with reward 0 and the last observation that was finite.

    :param first_obs: First observations
    """

    def __init__(self, first_obs: TensorObs):
        self._last_obs = copied(first_obs)

    def end(
        self, obs: TensorObs, rewards: th.Tensor, terminated: th.Tensor, truncated: th.Tensor
    ) -> tuple[TensorObs, th.Tensor, th.Tensor, th.Tensor]:
        """
        End what has to end in a step.

        :param obs: Observations, before resets. Shape of each tensor: ``(n_envs, *obs_shape)``
        :param rewards: Rewards. Shape: ``(n_envs,)``
        :param terminated: Which episodes have ended in a terminal state. Shape: ``(n_envs,)``
        :param truncated: Which have ended otherwise. Shape: ``(n_envs,)``
        :return: the same, finite
        """
        bad = ~(finite_envs(obs) & rewards.isfinite())
        return obs_where(bad, self._last_obs, obs), rewards.masked_fill(bad, 0), terminated & ~bad, truncated | bad

    def go_on(self, obs: TensorObs) -> None:
        """
        Remember observations.

        :param obs: Observations, after resets
        """
        self._last_obs = copied(obs)
