"""Rollouts of recurrent policies on environments in tensors."""

from typing import Any

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.algos import acting
from zoo_plugins.algos.action_distributions import reset_noise
from zoo_plugins.algos.env_side import infos_of, to_tensors
from zoo_plugins.algos.feedforward import sample_actions
from zoo_plugins.algos.mlps import forward_actor, forward_critic
from zoo_plugins.algos.on_tensor_envs import OnTensorEnvs
from zoo_plugins.algos.rollout_ends import RolloutEnds
from zoo_plugins.buffers.tensor_sequence_rollout_buffer import TensorSequenceRolloutBuffer
from zoo_plugins.vec_envs.numpy_boundary import tensor_face
from zoo_plugins.vec_envs.tensor_step import TensorObs


class RecurrentTensorRollouts(OnTensorEnvs):
    """A recurrent on-policy algorithm that collects rollouts on the device. To be mixed in, in front of the algorithm."""

    policy: RecurrentActorCriticPolicy
    _last_lstm_states: Any

    def _collect_tensors(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: TensorSequenceRolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        Collect experiences of environments that step tensors, as ``collect_rollouts`` does of others.

        Nothing in the loop waits for the device, and ``infos`` are made when they are read.

        :param env: The training environment
        :param callback: Callback that will be called at each step (and at the beginning and end of the rollout)
        :param rollout_buffer: Buffer to fill with rollouts
        :param n_rollout_steps: Number of experiences to collect per environment
        :return: True if it collected all steps, False if the callback terminated the rollout prematurely
        """
        assert self._last_obs is not None, "No previous observation was provided"
        policy = self.policy
        policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            reset_noise(policy, env.num_envs)

        callback.on_rollout_start()

        face = tensor_face(env, self.device)
        obs = to_tensors(self._last_obs, self.device)
        starts = th.as_tensor(self._last_episode_starts, device=self.device)
        pi_states, vf_states = (
            tuple(th.as_tensor(state, device=self.device) for state in states) for states in self._last_lstm_states
        )
        lstm_states = RNNStates(pi_states, pi_states if policy.lstm_critic is None else vf_states)
        rollout_buffer.start(lstm_states)
        ends = RolloutEnds(self._stats_window_size)

        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                reset_noise(policy, env.num_envs)

            actions, log_probs, values, lstm_states = act(policy, obs, lstm_states, starts)
            clipped_actions = self._for_env(actions)
            step = face.step_tensors(clipped_actions)
            new_obs, rewards, dones = step.obs, step.rewards, step.terminated | step.truncated
            infos = infos_of(face, step)

            self.num_timesteps += env.num_envs

            callback.update_locals(locals())
            if not callback.on_step():
                return False

            self._warn_about_final_obs(step)
            ends.add(step, dones)
            rollout_buffer.add_step(obs, actions, rewards, starts, lstm_states, log_probs, values, step.valid)
            obs = new_obs
            # Steps that are none stand between two episodes
            starts = dones if step.valid is None else dones | ~step.valid
            self._last_obs, self._last_episode_starts = obs, starts
            self._last_lstm_states = lstm_states

        episodes = ends.read(self.start_time)
        self._update_info_buffer(episodes, np.ones(len(episodes), dtype=bool))
        self._finish_tensors(rollout_buffer, ends, obs, starts)

        callback.update_locals(locals())

        callback.on_rollout_end()

        return True

    @th.no_grad()
    def _finish_tensors(
        self, rollout_buffer: TensorSequenceRolloutBuffer, ends: RolloutEnds, obs: TensorObs, dones: th.Tensor
    ) -> None:
        """
        Compute all that was not needed to act: values, rewards of truncated episodes, advantages.

        :param rollout_buffer: The buffer with all steps
        :param ends: What ended during the rollout
        :param obs: Observations after the last step. Shape: ``(n_envs, *obs_shape)``
        :param dones: Whether the last step ended an episode. Shape: ``(n_envs,)``
        """
        policy, rollout = self.policy, rollout_buffer.steps.rollout
        if values_can_wait(policy):
            for step, latent_vf in enumerate(rollout_buffer.vf_latents()):
                rollout.values[step].copy_(policy.value_net(forward_critic(policy.mlp_extractor, latent_vf)).squeeze(-1))
        # Handle timeout by bootstrapping with value function, see stable-baselines3 issue #633
        truncated = ends.truncated()
        if truncated is not None:
            states = rollout_buffer.vf_states_after(truncated.positions)
            values = acting.predict_values(policy, truncated.final_obs, states).squeeze(-1)
            rollout.rewards.view(-1).index_add_(0, truncated.positions, values, alpha=self.gamma)
        vf_states = acting.keep_states(self._last_lstm_states, 1.0 - dones.float()).vf
        rollout_buffer.finish(acting.predict_values(policy, obs, vf_states), dones)


def values_can_wait(policy: RecurrentActorCriticPolicy) -> bool:
    """
    Find out whether values can be predicted after a rollout, from LSTM states alone.

    :param policy: The policy
    :return: whether the critic has an LSTM, or that of the actor
    """
    return policy.lstm_critic is not None or policy.shared_lstm


@th.no_grad()
def act(
    policy: RecurrentActorCriticPolicy, obs: TensorObs, lstm_states: RNNStates, episode_starts: th.Tensor
) -> tuple[th.Tensor, th.Tensor, th.Tensor | None, RNNStates]:
    """
    Choose actions.

    :param policy: The policy
    :param obs: Observations. Shape: ``(n_envs, *obs_shape)``
    :param lstm_states: LSTM states before the step. Shape of each: ``(n_layers, n_envs, hidden_size)``
    :param episode_starts: Where to reset them first. Shape: ``(n_envs,)``
    :return: actions, shape ``(n_envs, *action_shape)``; their log likelihood, shape ``(n_envs,)``; values, shape
        ``(n_envs, 1)``, ``None`` if :func:`values_can_wait`; LSTM states after the step
    """
    lstm_states = acting.keep_states(lstm_states, 1.0 - episode_starts.float())
    latent_pi, latent_vf, lstm_states = acting.step_lstms(policy, obs, lstm_states)
    actions, log_probs = sample_actions(policy, forward_actor(policy.mlp_extractor, latent_pi))
    values = None if values_can_wait(policy) else policy.value_net(forward_critic(policy.mlp_extractor, latent_vf))
    return actions.reshape(-1, *policy.action_space.shape), log_probs, values, lstm_states  # type: ignore[misc]
