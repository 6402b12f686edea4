"""Recurrent PPO that trains on whole sequences."""

import functools
from contextlib import nullcontext
from copy import deepcopy
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.algos.acting import NumpyActor, TorchActor
from zoo_plugins.algos.action_distributions import log_prob_and_entropy, reset_noise
from zoo_plugins.algos.env_side import ActionsForEnv, finite_bounds
from zoo_plugins.algos.evaluation import as_taken, evaluate_actions, read_sequences
from zoo_plugins.algos.feedforward import NoValidation
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.algos.gru import replace_lstms
from zoo_plugins.algos.losses import STATISTICS, LossTerms, ppo_loss
from zoo_plugins.algos.optimizers import FlatAdamStep, GradientStep
from zoo_plugins.algos.pipeline import Acted, Pipeline, can_pipeline
from zoo_plugins.algos.recurrent_tensor_rollouts import RecurrentTensorRollouts
from zoo_plugins.algos.update_logs import log_update
from zoo_plugins.buffers.sequence_rollout_buffer import (
    SequenceDictRolloutBuffer,
    SequenceRolloutBuffer,
    stack,
)
from zoo_plugins.buffers.tensor_sequence_rollout_buffer import TensorSequenceRolloutBuffer
from zoo_plugins.vec_envs.numpy_boundary import shows_tensors
from zoo_plugins.vec_envs.numpy_face import steps_tensors

SelfSeqRecurrentPPO = TypeVar("SelfSeqRecurrentPPO", bound="SeqRecurrentPPO")

# Kinds of rollout buffers: a subclass before its base
BUFFERS = (TensorSequenceRolloutBuffer, SequenceDictRolloutBuffer, SequenceRolloutBuffer)


class SeqRecurrentPPO(RecurrentTensorRollouts, RecurrentPPO):
    """
    Recurrent PPO (LSTM or GRU) that reads each minibatch with one LSTM call over padded sequences.

    It is :class:`sb3_contrib.RecurrentPPO`, several times faster: same policies, hyperparameters, logs and files, and with
    the same seed the same minibatches and, up to floating point error, the same weights. ``RecurrentPPO`` cuts its
    minibatches into sequences wherever an episode starts, and then still calls the LSTM timestep by timestep in case an
    episode starts in the middle of a sequence. None ever does, so that loop can go.
    See https://github.com/Stable-Baselines-Team/stable-baselines3-contrib/issues/113 for the cost of the loop.

    Paper: https://arxiv.org/abs/1707.06347 (PPO)

    :param policy: The policy model to use (MlpLstmPolicy, CnnLstmPolicy, MultiInputLstmPolicy), or a subclass of
        sb3_contrib's ``RecurrentActorCriticPolicy`` that keeps its ``forward`` and ``evaluate_actions``
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate, it can be a function of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per update
        (i.e. rollout size is n_steps * n_envs)
    :param batch_size: Minibatch size, in timesteps; ``None``, or a value above the rollout size, means the whole rollout.
        A minibatch (or remainder of one) of a single timestep is trained on without normalising its advantage
    :param n_epochs: Number of epochs when optimizing the surrogate loss
    :param gamma: Discount factor
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param clip_range: Clipping parameter, it can be a function of the current progress remaining (from 1 to 0)
    :param clip_range_vf: Clipping parameter for the value function, it can be a function of the current progress
        remaining (from 1 to 0). ``None`` means no clipping. It depends on the reward scaling
    :param normalize_advantage: Whether to normalize the advantages of each minibatch
    :param ent_coef: Entropy coefficient for the loss calculation
    :param vf_coef: Value function coefficient for the loss calculation
    :param max_grad_norm: The maximum value for the gradient clipping
    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE) instead of action noise exploration
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE; -1: only at the start of a rollout
    :param target_kl: Stop the update when the KL divergence from the acting policy exceeds 1.5 times this value.
        ``None`` means no limit
    :param stats_window_size: Window size for the rollout logging, in episodes
    :param tensorboard_log: The log location for tensorboard (if None, no logging)
    :param policy_kwargs: Additional arguments for the policy; the dict is copied. Besides those of the policy's class:
        ``rnn_type``, "lstm" (the default) or "gru", which has three quarters of an LSTM's weights; the arguments that are
        named after the LSTM (``lstm_hidden_size`` and so on) are those of the GRU then
    :param verbose: Verbosity level: 0 no output, 1 info, 2 debug
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param rollout_buffer_class: Rollout buffer class to use: a :class:`SequenceRolloutBuffer` or
        :class:`SequenceDictRolloutBuffer`. ``None`` selects one by the observation space
    :param rollout_buffer_kwargs: Keyword arguments to pass to the rollout buffer on creation
    :param sampling: What a minibatch is made of. "contiguous": consecutive timesteps, the minibatches of ``RecurrentPPO``.
        "sequences": whole sequences, shuffled, with ``batch_size`` timesteps in all (see :class:`SequenceRolloutBuffer`)
    :param max_seq_length: Cut sequences, and with them back-propagation through time, after this number of timesteps.
        ``None`` means no limit
    :raises ValueError: if ``batch_size`` or ``max_seq_length`` is below 1, ``sampling`` or ``rnn_type`` is unknown, or the
        policy or the buffer is not of the kind described above
    """

    # Keys of policy_kwargs that are not the policy's, and their values; the first is the default
    own_policy_kwargs: ClassVar[dict[str, tuple[str, ...]]] = {"rnn_type": ("lstm", "gru")}

    policy: RecurrentActorCriticPolicy
    rollout_buffer: SequenceRolloutBuffer

    def __init__(
        self,
        policy: str | type[RecurrentActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        batch_size: int | None = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        sampling: str = "contiguous",
        max_seq_length: int | None = None,
    ):
        env, device = self._open(env, device, verbose)
        with finite_bounds(env):
            super().__init__(
                policy,
                env,
                learning_rate=learning_rate,
                n_steps=n_steps,
                batch_size=batch_size,
                n_epochs=n_epochs,
                gamma=gamma,
                gae_lambda=gae_lambda,
                clip_range=clip_range,
                clip_range_vf=clip_range_vf,
                normalize_advantage=normalize_advantage,
                ent_coef=ent_coef,
                vf_coef=vf_coef,
                max_grad_norm=max_grad_norm,
                use_sde=use_sde,
                sde_sample_freq=sde_sample_freq,
                target_kl=target_kl,
                stats_window_size=stats_window_size,
                tensorboard_log=tensorboard_log,
                # SB3 policies write into it (see stable-baselines3 issue #1895)
                policy_kwargs=deepcopy(policy_kwargs),
                verbose=verbose,
                seed=seed,
                device=device,
                _init_setup_model=False,
            )
        if isinstance(env, VecEnv):
            self.action_space = env.action_space
        self.rollout_buffer_class = rollout_buffer_class
        self.rollout_buffer_kwargs = dict(rollout_buffer_kwargs or {})
        self.sampling = sampling
        self.max_seq_length = max_seq_length
        if self.policy_kwargs.get("rnn_type") == "lstm":
            # RecurrentPPO, which opens the saved model, does not know the key
            del self.policy_kwargs["rnn_type"]

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 timestep, or None for the whole rollout, not {self.batch_size}")
        policy_kwargs = self.policy_kwargs
        rnn_type, valid = policy_kwargs.get("rnn_type", "lstm"), self.own_policy_kwargs["rnn_type"]
        if rnn_type not in valid:
            raise ValueError(f"rnn_type in policy_kwargs must be one of {', '.join(valid)}, not {rnn_type!r}")
        self.policy_kwargs = {key: value for key, value in policy_kwargs.items() if key != "rnn_type"}
        super()._setup_model()
        self.policy_kwargs = policy_kwargs
        _check_policy(self.policy)
        if rnn_type == "gru":
            replace_lstms(self.policy, self.lr_schedule)

        self._set_up_rollouts()

    def _set_up_rollouts(self) -> None:
        """
        Create what depends on the kind of the environments.

        :raises ValueError: if ``rollout_buffer_class`` is not for it
        """
        is_dict = isinstance(self.observation_space, spaces.Dict)
        kind: type[SequenceRolloutBuffer] = SequenceDictRolloutBuffer if is_dict else SequenceRolloutBuffer
        if self.env is not None and shows_tensors(self.env):
            kind = TensorSequenceRolloutBuffer
            self._for_env = ActionsForEnv(self.action_space, self.policy.squash_output, self.device)
        # The attribute stays None by default, so that a saved model opens where this package is not installed
        buffer_class: Any = self.rollout_buffer_class or kind
        found = next((cls for cls in BUFFERS if issubclass(buffer_class, cls)), None)
        # Without environments, it is never filled
        if found is not kind and not (self.env is None and found is TensorSequenceRolloutBuffer):
            raise ValueError(
                f"rollout_buffer_class must be a {kind.__name__} for these environments, not {buffer_class.__name__}"
            )
        self.rollout_buffer = buffer_class(
            self.n_steps,
            self.observation_space,
            self.action_space,
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            sampling=self.sampling,
            max_seq_length=self.max_seq_length,
            **self.rollout_buffer_kwargs,
        )

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """See :meth:`stable_baselines3.PPO.set_env`. Environments in tensors may take the place of others."""
        super().set_env(env, force_reset)
        assert self.env is not None
        if steps_tensors(self.env) != isinstance(self.rollout_buffer, TensorSequenceRolloutBuffer):
            self._set_up_rollouts()

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        Collect experiences using the current policy and fill the rollout buffer.

        Written after ``RecurrentPPO.collect_rollouts`` of sb3_contrib 2.9.2, with its order of callbacks and random draws.
        What differs: the loop only acts. Values, log probabilities and the values of truncated episodes' last
        observations come in one pass after it, from the latents that were recorded while acting.

        :param env: The training environment
        :param callback: Callback that will be called at each step (and at the beginning and end of the rollout)
        :param rollout_buffer: Buffer to fill with rollouts
        :param n_rollout_steps: Number of experiences to collect per environment
        :return: True if it collected all steps, False if the callback terminated the rollout prematurely
        """
        assert isinstance(rollout_buffer, SequenceRolloutBuffer)
        if isinstance(rollout_buffer, TensorSequenceRolloutBuffer):
            return self._collect_tensors(env, callback, rollout_buffer, n_rollout_steps)
        assert self._last_obs is not None, "No previous observation was provided"
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            reset_noise(self.policy, env.num_envs)

        callback.on_rollout_start()

        in_numpy = NumpyActor.supports(self.policy)
        actor = NumpyActor(self.policy) if in_numpy else TorchActor(self.policy)
        convert: Any = np.asarray if in_numpy else th.as_tensor
        self._last_lstm_states = RNNStates(*(tuple(map(convert, states)) for states in self._last_lstm_states))
        act = functools.partial(self._act, actor)
        pipeline = None
        if can_pipeline(env):
            if self.use_sde or self._action_masks(env) is not None:
                raise ValueError("pipeline=True goes neither with use_sde=True nor with action masks: both are of whole steps")
            pipeline = Pipeline(env, act, self._last_obs, self._last_lstm_states, self._last_episode_starts)
        latents: list[tuple[Any, Any]] = []
        truncated: list[tuple[int, int, tuple[Any, ...], Any]] = []

        for step in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and step % self.sde_sample_freq == 0:
                reset_noise(self.policy, env.num_envs)

            action_masks: np.ndarray | None = None
            if pipeline is None:
                action_masks = self._action_masks(env)
                acted = act(self._last_obs, self._last_lstm_states, self._last_episode_starts, action_masks)
                new_obs, rewards, dones, infos = env.step(acted.clipped_actions)
            else:
                acted, (new_obs, rewards, dones, infos) = pipeline.step(last=step == n_rollout_steps - 1)
            actions, clipped_actions, latent, lstm_states = acted

            self.num_timesteps += env.num_envs

            callback.update_locals(locals())
            if not callback.on_step():
                if pipeline is not None:
                    pipeline.stop()
                return False

            self._update_info_buffer(infos, dones)
            latents.append(latent)
            for idx in np.flatnonzero(dones).tolist():
                info = infos[idx]
                if info.get("TimeLimit.truncated", False) and info.get("terminal_observation") is not None:
                    truncated.append((step, idx, lstm_states.vf, info["terminal_observation"]))

            rollout_buffer.add_step(
                self._last_obs, actions, rewards, self._last_episode_starts, self._last_lstm_states, action_masks
            )
            self._last_obs = new_obs
            self._last_episode_starts = dones
            self._last_lstm_states = lstm_states

        self._last_lstm_states = RNNStates(*(tuple(map(th.as_tensor, states)) for states in self._last_lstm_states))
        self._finish_rollout(rollout_buffer, latents, truncated)

        callback.on_rollout_end()

        return True

    def _act(
        self,
        actor: Any,
        obs: np.ndarray | dict[str, np.ndarray],
        lstm_states: Any,
        episode_starts: np.ndarray,
        action_masks: np.ndarray | None = None,
    ) -> Acted:
        flat_actions, latent, lstm_states = actor.act(obs, lstm_states, episode_starts, action_masks)
        actions = flat_actions.reshape(-1, *self.action_space.shape)  # type: ignore[misc]
        clipped_actions = actions
        if isinstance(self.action_space, spaces.Box):
            clipped_actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return Acted(actions, clipped_actions, latent, lstm_states)

    def _action_masks(self, env: VecEnv) -> np.ndarray | None:
        """
        Find out which actions are valid.

        :param env: The training environment
        :return: masks, None for all. Shape: (n_envs, n_choices)
        """
        return None

    @th.no_grad()
    def _finish_rollout(
        self,
        rollout_buffer: SequenceRolloutBuffer,
        latents: list[tuple[Any, Any]],
        truncated: list[tuple[int, int, tuple[Any, ...], Any]],
    ) -> None:
        """
        Compute all that was not needed to act.

        :param rollout_buffer: The buffer with all steps
        :param latents: Latents of actor and critic of each step. Shape of each: (n_envs, hidden_size)
        :param truncated: For each truncated episode: step, environment, the critic's LSTM states after the step, last
            observation
        """
        policy = self.policy
        shape = (rollout_buffer.buffer_size, rollout_buffer.n_envs)
        latent_pi, latent_vf = (stack(steps).flatten(0, 1) for steps in zip(*latents, strict=True))
        actions = th.as_tensor(rollout_buffer.actions.reshape(-1, rollout_buffer.action_dim), device=self.device)
        masks = rollout_buffer.action_masks
        log_probs, _ = log_prob_and_entropy(
            policy,
            policy.mlp_extractor.forward_actor(latent_pi),
            as_taken(actions, self.action_space),
            None if masks is None else th.as_tensor(masks.reshape(len(actions), -1), device=self.device),
        )
        values = policy.value_net(policy.mlp_extractor.forward_critic(latent_vf))

        # Handle timeout by bootstrapping with value function, see stable-baselines3 issue #633
        if truncated:
            steps, envs, states, terminal_obs = zip(*truncated, strict=True)
            hidden, cell = (stack([state[i][:, idx] for state, idx in zip(states, envs, strict=True)], dim=1) for i in (0, 1))
            terminal_values = policy.predict_values(
                _concatenate([policy.obs_to_tensor(obs)[0] for obs in terminal_obs]),
                (hidden, cell),
                th.zeros(len(steps), device=self.device),
            )
            rollout_buffer.rewards[steps, envs] += self.gamma * terminal_values.flatten().cpu().numpy()

        last_obs: Any = obs_as_tensor(self._last_obs, self.device)
        last_values = policy.predict_values(
            last_obs,
            self._last_lstm_states.vf,
            th.as_tensor(self._last_episode_starts, dtype=th.float32, device=self.device),
        )
        rollout_buffer.finish(values.reshape(shape), log_probs.reshape(shape), last_values, self._last_episode_starts)

    def train(self) -> None:
        """Update policy using the currently gathered rollout buffer."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]

        terms = LossTerms(clip_range, clip_range_vf, self.ent_coef, self.vf_coef, self.normalize_advantage)
        policy, optimizer = self.policy, self.policy.optimizer
        fused_loss = FusedPPOLoss(policy, terms) if FusedPPOLoss.supports(policy) else None
        step_class = FlatAdamStep if FlatAdamStep.supports(optimizer) else GradientStep
        # Read back once, after the last minibatch: every .item() in the loop would wait for the device
        statistics: list[th.Tensor] = []
        n_timesteps, n_padded, n_sequences = 0, 0, 0
        continue_training = True

        on_tensors = isinstance(self.rollout_buffer, TensorSequenceRolloutBuffer)
        with NoValidation() if on_tensors else nullcontext(), step_class(optimizer, self.max_grad_norm) as gradient_step:
            for epoch in range(self.n_epochs):
                epoch_start = len(statistics)
                for batch in self.rollout_buffer.get(self.batch_size):
                    if fused_loss is None:
                        loss, batch_statistics = ppo_loss(*evaluate_actions(policy, batch), batch, terms)
                    else:
                        loss, batch_statistics = fused_loss(*read_sequences(policy, batch), batch, batch.action_masks)
                    statistics.append(batch_statistics)
                    n_timesteps += len(batch.actions)
                    n_padded += batch.n_seq * batch.n_rows
                    n_sequences += batch.n_seq

                    if self.target_kl is not None:
                        approx_kl = batch_statistics[STATISTICS.index("approx_kl")]
                        if approx_kl > 1.5 * self.target_kl:
                            continue_training = False
                            if self.verbose >= 1:
                                print(f"Early stopping at step {epoch} due to reaching max kl: {approx_kl:.2f}")
                            break
                    gradient_step(loss)

                self._n_updates += 1
                if not continue_training:
                    break

        rollout = self.rollout_buffer.rollout
        log_update(self, statistics, epoch_start, terms, rollout["old_values"], rollout["returns"])
        self.logger.record("train/n_sequences", n_sequences / len(statistics))
        self.logger.record("train/padding", 1 - n_timesteps / n_padded)

    def learn(
        self: SelfSeqRecurrentPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "SeqRecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfSeqRecurrentPPO:
        """See :meth:`sb3_contrib.RecurrentPPO.learn`."""
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )


def _concatenate(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: th.cat([obs[key] for obs in observations]) for key in observations[0]}
    return th.cat(observations)


def _check_policy(policy: RecurrentActorCriticPolicy) -> None:
    """
    Refuse a policy whose forward pass would be bypassed.

    :param policy: The policy
    :raises ValueError: if it has its own ``forward``, ``evaluate_actions`` or ``_process_sequence``
    """
    for name in ("forward", "evaluate_actions", "_process_sequence"):
        if getattr(type(policy), name) is not getattr(RecurrentActorCriticPolicy, name):
            raise ValueError(
                f"policy {type(policy).__name__} overrides {name}(), which SeqRecurrentPPO does not call: "
                "use RecurrentPPO (ppo_lstm) with it"
            )
