"""PPO whose rollouts are tensors, from the environment to the update."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, RolloutBufferSamples, Schedule
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.algos import feedforward
from zoo_plugins.algos.action_distributions import reset_noise
from zoo_plugins.algos.cuda_graphs import Graphed
from zoo_plugins.algos.feedforward import NoValidation, is_plain
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.algos.graphed_update import GraphedUpdate
from zoo_plugins.algos.losses import STATISTICS, LossTerms, ppo_loss, read_statistics
from zoo_plugins.algos.optimizers import FlatAdamStep, GradientStep
from zoo_plugins.algos.rollout_ends import RolloutEnds
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer
from zoo_plugins.vec_envs.numpy_boundary import NumpyBoundary, tensor_face
from zoo_plugins.vec_envs.numpy_face import NumpyFace, steps_tensors
from zoo_plugins.vec_envs.tensor_infos import TensorInfos
from zoo_plugins.vec_envs.tensor_step import StepsTensors, TensorObs, TensorStep
from zoo_plugins.vec_envs.tensor_vec_transpose_image import TensorVecTransposeImage

SelfTensorPPO = TypeVar("SelfTensorPPO", bound="TensorPPO")

COMPILE = ("none", "default", "cudagraph")


class TensorPPO(PPO):
    """
    PPO whose rollouts stay on the device of environments that are stepped together there.

    It is :class:`stable_baselines3.PPO`: same policies, hyperparameters, logs and files, and, given the same rollout and the
    same permutations, the same weights up to floating point error. Environments that take and give tensors
    (:class:`zoo_plugins.vec_envs.tensor_step.StepsTensors`) are asked for those; of any other VecEnv, the arrays are sent to
    the device. Nothing in the loop waits for the device but for two times per rollout: one after its last step, to learn
    which episodes ended, and one after the update, to log it.

    Paper: https://arxiv.org/abs/1707.06347 (PPO)

    :param policy: The policy model to use (MlpPolicy, CnnPolicy, MultiInputPolicy)
    :param env: The environment to learn from (if registered in Gym, can be str). A Box action space may be unbounded:
        actions are not clipped then
    :param learning_rate: The learning rate, it can be a function of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per update
        (i.e. rollout size is n_steps * n_envs)
    :param batch_size: Minibatch size
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
    :param rollout_buffer_class: Rollout buffer class to use: a :class:`TensorRolloutBuffer`, which ``None`` selects
    :param rollout_buffer_kwargs: Keyword arguments to pass to the rollout buffer on creation
    :param target_kl: Stop the update when the KL divergence from the acting policy exceeds 1.5 times this value, which is
        looked at before each gradient step, and waits for the device each time. ``None`` means no limit
    :param stats_window_size: Window size for the rollout logging, in episodes
    :param tensorboard_log: The log location for tensorboard (if None, no logging)
    :param policy_kwargs: Additional arguments for the policy; the dict is copied
    :param verbose: Verbosity level: 0 no output, 1 info, 2 debug
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run. "auto": that of the environment if it has one,
        else a GPU if there is one
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param compile: "none"; "default" to have the loss compiled by :func:`torch.compile`, which takes a minute at the first
        update; "cudagraph" to record steps and minibatches as CUDA graphs, on a GPU
    :raises ValueError: if ``compile`` is unknown, or "cudagraph" with ``target_kl`` or ``use_sde``; if the rollout buffer is
        not a :class:`TensorRolloutBuffer`; or if actions that are squashed have no bounds
    """

    rollout_buffer: TensorRolloutBuffer

    def __init__(
        self,
        policy: str | type[ActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
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
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        compile: str = "none",
    ):
        if compile not in COMPILE:
            raise ValueError(f"compile must be one of {', '.join(COMPILE)}, not {compile!r}")
        if rollout_buffer_class is not None and not issubclass(rollout_buffer_class, TensorRolloutBuffer):
            raise ValueError(f"rollout_buffer_class must be a TensorRolloutBuffer, not {rollout_buffer_class.__name__}")
        if compile == "cudagraph" and (target_kl is not None or use_sde):
            raise ValueError("compile='cudagraph' works neither with target_kl nor with use_sde")
        self.compile = compile
        self._warned = False
        # Loading an agent without an environment passes None
        if env is not None:
            env = self._wrap_env(maybe_make_env(env, verbose), verbose)
            if device == "auto" and steps_tensors(env):
                device = cast(StepsTensors, env).device
        with _finite_bounds(env):
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
                rollout_buffer_class=rollout_buffer_class,
                rollout_buffer_kwargs=rollout_buffer_kwargs,
                target_kl=target_kl,
                stats_window_size=stats_window_size,
                tensorboard_log=tensorboard_log,
                policy_kwargs=deepcopy(policy_kwargs),
                verbose=verbose,
                seed=seed,
                device=device,
                _init_setup_model=False,
            )
        if isinstance(env, VecEnv):
            self.action_space = env.action_space

        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        # The attribute stays as it is, so that a saved agent opens as PPO where this package is not installed. One that PPO
        # has saved names PPO's buffer
        given = self.rollout_buffer_class
        if given in (None, RolloutBuffer, DictRolloutBuffer):
            self.rollout_buffer_class = TensorRolloutBuffer
        super()._setup_model()
        self.rollout_buffer_class = given

        self._action_dtype = th.from_numpy(np.empty(0, self.action_space.dtype)).dtype
        self._action_bounds: tuple[th.Tensor, th.Tensor] | None = None
        if isinstance(self.action_space, spaces.Box):
            low, high = (th.as_tensor(bound, device=self.device) for bound in (self.action_space.low, self.action_space.high))
            self._action_bounds = low, high
            if self.policy.squash_output and not self.action_space.is_bounded():
                raise ValueError("squash_output needs an action space with bounds, which actions are scaled to")
        self._graphs: dict[Any, Any] = {}
        if self.compile == "cudagraph" and self.device.type != "cuda":
            warnings.warn(f"compile='cudagraph' needs a GPU: on {self.device}, it does nothing", stacklevel=2)
        self._compute_loss = th.compile(self._plain_loss) if self.compile == "default" else self._plain_loss

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        wrapped = PPO._wrap_env(env, verbose, monitor_wrapper)
        if isinstance(env, VecEnv) and steps_tensors(env) and wrapped is not env:
            return TensorVecTransposeImage(env)
        return wrapped

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        with _resets_tensors(self.env):
            return super()._setup_learn(*args, **kwargs)

    def _maybe_recommend_cpu(self, mlp_class_name: str = "ActorCriticPolicy") -> None:
        # Where the environment is on the GPU, the policy belongs there
        if self.env is None or not steps_tensors(self.env):
            super()._maybe_recommend_cpu(mlp_class_name)

    def _excluded_save_params(self) -> list[str]:
        # Tensors of a GPU can't be read where there is none
        tensors = ["_last_obs", "_last_episode_starts", "_last_original_obs", "_action_bounds"]
        return [*super()._excluded_save_params(), *tensors, "_action_dtype", "_compute_loss", "_graphs", "_warned"]

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        Collect experiences using the current policy and fill the rollout buffer.

        Written after ``OnPolicyAlgorithm.collect_rollouts`` of SB3 2.9.2, with its order of callbacks and random draws. What
        differs: all arrays are tensors on the device, ``infos`` are made when they are read, and what needs to know which
        episodes have ended comes after the loop.

        :param env: The training environment
        :param callback: Callback that will be called at each step (and at the beginning and end of the rollout)
        :param rollout_buffer: Buffer to fill with rollouts
        :param n_rollout_steps: Number of experiences to collect per environment
        :return: True if it collected all steps, False if the callback terminated the rollout prematurely
        """
        assert isinstance(rollout_buffer, TensorRolloutBuffer)
        assert self._last_obs is not None, "No previous observation was provided"
        self.policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            reset_noise(self.policy, env.num_envs)

        callback.on_rollout_start()

        face = tensor_face(env, self.device)
        # After a reset, they are NumPy arrays
        obs: Any = self._to_tensors(self._last_obs)
        starts = th.as_tensor(self._last_episode_starts, device=self.device)
        ends = RolloutEnds(self._stats_window_size)
        act_and_step = self._graphed_step(face) or partial(self._act_and_step, face)

        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                reset_noise(self.policy, env.num_envs)

            actions, log_probs, values, clipped_actions, step = act_and_step(obs)
            new_obs, rewards, dones = step.obs, step.rewards, step.terminated | step.truncated
            infos = _infos_of(face, step)

            self.num_timesteps += env.num_envs

            callback.update_locals(locals())
            if not callback.on_step():
                return False

            if isinstance(face, NumpyBoundary):
                self._update_info_buffer([face.infos[i] for i in np.flatnonzero(face.dones)], face.dones[face.dones])
            elif step.final_obs is None:
                self._warn_about_final_obs()
            ends.add(step, dones)
            rollout_buffer.add(obs, actions, rewards, starts, values, log_probs, step.valid)
            obs = new_obs
            # Steps that are none stand between two episodes
            starts = dones if step.valid is None else dones | ~step.valid
            self._last_obs, self._last_episode_starts = obs, starts  # type: ignore[assignment]

        episodes = ends.read(self.start_time)
        if not isinstance(face, NumpyBoundary):
            assert self.ep_info_buffer is not None
            self.ep_info_buffer.extend(episodes)
        self._finish_rollout(rollout_buffer, ends, obs, starts)

        callback.update_locals(locals())

        callback.on_rollout_end()

        return True

    def _act_and_step(self, face: StepsTensors, obs: TensorObs) -> tuple[Any, Any, Any, Any, TensorStep]:
        """
        Choose actions, and step the environments.

        :param face: The environments
        :param obs: Their observations. Shape: ``(n_envs, *obs_shape)``
        :return: actions, their log likelihood, values, what the environments were given, and what happened
        """
        actions, log_probs, values = feedforward.act(self.policy, obs)
        clipped_actions = self._scale_actions(actions)
        return actions, log_probs, values, clipped_actions, face.step_tensors(clipped_actions)

    def _graphed_step(self, face: StepsTensors) -> Any:
        """
        Have :meth:`_act_and_step` as a CUDA graph.

        :param face: The environments
        :return: a function of observations, ``None`` without graphs
        """
        if not self._uses_graphs():
            return None
        if face not in self._graphs:
            generator = getattr(getattr(face, "unwrapped", None), "generator", None)
            if generator is None:
                warnings.warn("the environments' steps can't be recorded as a CUDA graph: only minibatches are", stacklevel=2)
            self._graphs[face] = None if generator is None else Graphed(partial(self._act_and_step, face), [generator])
        return self._graphs[face]

    def _uses_graphs(self) -> bool:
        return self.compile == "cudagraph" and self.device.type == "cuda"

    @th.no_grad()
    def _finish_rollout(
        self, rollout_buffer: TensorRolloutBuffer, ends: RolloutEnds, obs: TensorObs, dones: th.Tensor
    ) -> None:
        """
        Compute all that was not needed to act.

        :param rollout_buffer: The buffer with all steps
        :param ends: What ended during the rollout
        :param obs: Observations after the last step. Shape: ``(n_envs, *obs_shape)``
        :param dones: Whether the last step ended an episode. Shape: ``(n_envs,)``
        """
        rollout = rollout_buffer.rollout
        if feedforward.values_can_wait(self.policy):
            flat_obs: Any = rollout.observations
            flat_obs = (
                {k: v.flatten(0, 1) for k, v in flat_obs.items()} if isinstance(flat_obs, dict) else flat_obs.flatten(0, 1)
            )
            feedforward.predict_values(self.policy, flat_obs, out=rollout.values.view(-1))
        # Handle timeout by bootstrapping with value function, see stable-baselines3 issue #633
        truncated = ends.truncated()
        if truncated is not None:
            values = th.empty(len(truncated.positions), device=self.device)
            feedforward.predict_values(self.policy, truncated.final_obs, out=values)
            rollout.rewards.view(-1).index_add_(0, truncated.positions, values, alpha=self.gamma)
        rollout_buffer.compute_returns_and_advantage(last_values=self.policy.predict_values(obs), dones=dones)

    def train(self) -> None:
        """
        Update policy using the currently gathered rollout buffer.

        Written after ``PPO.train`` of SB3 2.9.2. What differs: statistics are fetched once, after the last minibatch.

        :raises ValueError: if training diverged
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]
        terms = LossTerms(clip_range, clip_range_vf, self.ent_coef, self.vf_coef, self.normalize_advantage)
        gradient_step = self._gradient_step(terms)
        statistics: list[th.Tensor] = []
        continue_training = True

        with NoValidation(), gradient_step:
            for epoch in range(self.n_epochs):
                epoch_start = len(statistics)
                for batch in self.rollout_buffer.get(self.batch_size):
                    if isinstance(gradient_step, GraphedUpdate):
                        statistics.append(gradient_step.update(batch))
                        continue
                    loss, batch_statistics = self._loss(batch, terms)
                    statistics.append(batch_statistics)
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

        self._log_update(statistics, epoch_start, terms)

    def _gradient_step(self, terms: LossTerms) -> GradientStep:
        """
        Choose how gradient steps are done.

        :param terms: Coefficients and clipping parameters
        :return: a context for an update
        """
        optimizer = self.policy.optimizer
        if not FlatAdamStep.supports(optimizer):
            # Before the first step, too
            return GradientStep(optimizer, self.max_grad_norm)
        if not self._uses_graphs():
            return FlatAdamStep(optimizer, self.max_grad_norm)
        update: GraphedUpdate = self._graphs.setdefault(
            "update", GraphedUpdate(optimizer, self.max_grad_norm, self._plain_loss)
        )
        update.max_norm = self.max_grad_norm
        update.set_terms(terms)
        return update

    def _log_update(self, statistics: list[th.Tensor], epoch_start: int, terms: LossTerms) -> None:
        """
        Fetch what was computed during an update, and log it.

        :param statistics: Statistics of its minibatches
        :param epoch_start: Where the last epoch starts among them
        :param terms: Coefficients and clipping parameters
        :raises ValueError: if training diverged
        """
        policy, rollout = self.policy, self.rollout_buffer.rollout
        explained_variance = 1 - (rollout.returns - rollout.values).var() / rollout.returns.var()
        sum_of_parameters = th.stack([parameter.detach().sum() for parameter in policy.parameters()]).sum()
        std = [policy.log_std.detach().exp().mean()] if hasattr(policy, "log_std") else []
        logs, further = read_statistics(statistics, epoch_start, sum_of_parameters, explained_variance, *std)
        # Otherwise only the next rollout would tell, by an error of the device
        if not math.isfinite(further[0]):
            raise ValueError("training diverged: the parameters of the policy are not finite")

        for key, value in logs.items():
            self.logger.record(f"train/{key}", value)
        for key, value in zip(("explained_variance", "std"), further[1:], strict=False):
            self.logger.record(f"train/{key}", value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", terms.clip_range)
        if terms.clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", terms.clip_range_vf)

    def _loss(self, batch: RolloutBufferSamples, terms: LossTerms) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the loss of a minibatch.

        :param batch: The minibatch
        :param terms: Coefficients and clipping parameters
        :return: the loss, and its :data:`~zoo_plugins.algos.losses.STATISTICS`
        """
        policy = self.policy
        if self.compile == "none" and is_plain(policy) and FusedPPOLoss.supports(policy):
            return FusedPPOLoss(policy, terms)(*feedforward.latents(policy, batch.observations), batch)
        return self._compute_loss(batch, terms)

    def _plain_loss(self, batch: RolloutBufferSamples, terms: LossTerms) -> tuple[th.Tensor, th.Tensor]:
        return ppo_loss(*feedforward.evaluate_actions(self.policy, batch.observations, batch.actions), batch, terms)

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """
        Choose actions for observations: tensors for tensors, NumPy arrays for NumPy arrays.

        :param observation: Observations. Tensors: on the model's device, of shape ``(n_envs, *obs_shape)``, a dict of them
            for Dict spaces. NumPy arrays: see :meth:`stable_baselines3.PPO.predict`
        :param state: Not used
        :param episode_start: Not used
        :param deterministic: Whether to take the most likely actions
        :return: actions, and ``state``
        """
        first = next(iter(observation.values())) if isinstance(observation, dict) else observation
        if not isinstance(first, th.Tensor):
            return super().predict(observation, state, episode_start, deterministic)
        self.policy.set_training_mode(False)
        with th.no_grad(), NoValidation():
            return self._scale_actions(self.policy._predict(observation, deterministic)), state

    def learn(
        self: SelfTensorPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "TensorPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfTensorPPO:
        """See :meth:`stable_baselines3.PPO.learn`."""
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )

    def _scale_actions(self, actions: th.Tensor) -> th.Tensor:
        """
        Turn actions of the policy into those of the environment.

        :param actions: Actions of the policy. Shape: ``(n_envs, *action_shape)``
        :return: actions within the bounds and of the type of the action space, in memory of their own
        """
        if self._action_bounds is None:
            return actions.to(self._action_dtype, copy=True)
        low, high = self._action_bounds
        if self.policy.squash_output:
            return low + 0.5 * (actions + 1.0) * (high - low)
        return th.clamp(actions, low, high)

    def _to_tensors(self, obs: Any) -> TensorObs:
        if isinstance(obs, dict):
            return {key: th.as_tensor(part, device=self.device) for key, part in obs.items()}
        return th.as_tensor(obs, device=self.device)

    def _warn_about_final_obs(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "the environments do not tell the last observations of truncated episodes: these count as terminated, since "
                "the value of what would have followed can't be predicted",
                stacklevel=2,
            )


def _infos_of(face: StepsTensors, step: TensorStep) -> Any:
    if isinstance(face, NumpyBoundary):
        return face.infos
    return face.infos_of(step) if isinstance(face, NumpyFace) else TensorInfos(step)


@contextmanager
def _finite_bounds(env: Any) -> Iterator[None]:
    """
    Context in which an unbounded action space has bounds.

    SB3 refuses one, in the constructor of all algorithms. PPO has no use for bounds, except to clip actions.

    :param env: The environment, ``None`` for none
    """
    space = getattr(env, "action_space", None)
    if not isinstance(space, spaces.Box) or space.is_bounded():
        yield
        return
    env.action_space = spaces.Box(-1, 1, space.shape)
    try:
        yield
    finally:
        env.action_space = space


@contextmanager
def _resets_tensors(env: Any) -> Iterator[None]:
    """
    Context in which ``reset`` of a VecEnv that steps tensors returns them.

    :param env: The VecEnv
    """
    if not steps_tensors(env):
        yield
        return
    env.reset = env.reset_tensors
    try:
        yield
    finally:
        del env.reset
