"""Values of a rollout, predicted after its last step."""

from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy

from zoo_plugins.algos import feedforward
from zoo_plugins.algos.rollout_ends import RolloutEnds
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer
from zoo_plugins.vec_envs.tensor_step import TensorObs


@th.no_grad()
def finish_rollout(
    policy: ActorCriticPolicy,
    rollout_buffer: TensorRolloutBuffer,
    ends: RolloutEnds,
    obs: TensorObs,
    dones: th.Tensor,
    gamma: float,
) -> None:
    """
    Compute all that was not needed to act: values, rewards of truncated episodes, advantages.

    :param policy: The policy that acted
    :param rollout_buffer: The buffer with all steps
    :param ends: What ended during the rollout
    :param obs: Observations after the last step. Shape: ``(n_envs, *obs_shape)``
    :param dones: Whether the last step ended an episode. Shape: ``(n_envs,)``
    :param gamma: Discount factor
    """
    rollout = rollout_buffer.rollout
    if feedforward.values_can_wait(policy):
        flat_obs: Any = rollout.observations
        flat_obs = {k: v.flatten(0, 1) for k, v in flat_obs.items()} if isinstance(flat_obs, dict) else flat_obs.flatten(0, 1)
        feedforward.predict_values(policy, flat_obs, out=rollout.values.view(-1))
    # Handle timeout by bootstrapping with value function, see stable-baselines3 issue #633
    truncated = ends.truncated()
    if truncated is not None:
        values = th.empty(len(truncated.positions), device=rollout.rewards.device)
        feedforward.predict_values(policy, truncated.final_obs, out=values)
        rollout.rewards.view(-1).index_add_(0, truncated.positions, values, alpha=gamma)
    rollout_buffer.compute_returns_and_advantage(last_values=policy.predict_values(obs), dones=dones)
