"""PPO whose rollouts are tensors, from the environment to the update."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins.algos import feedforward
from zoo_plugins.algos.action_distributions import reset_noise
from zoo_plugins.algos.env_side import ActionsForEnv, finite_bounds, infos_of, to_tensors
from zoo_plugins.algos.feedforward import NoValidation
from zoo_plugins.algos.graphed_update import GraphedUpdate
from zoo_plugins.algos.losses import STATISTICS, LossTerms
from zoo_plugins.algos.minibatch_loss import fast_loss, plain_loss
from zoo_plugins.algos.on_tensor_envs import OnTensorEnvs
from zoo_plugins.algos.optimizers import FlatAdamStep, GradientStep
from zoo_plugins.algos.recordings import Recordings
from zoo_plugins.algos.rollout_ends import RolloutEnds
from zoo_plugins.algos.rollout_values import finish_rollout
from zoo_plugins.algos.update_logs import log_update
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer
from zoo_plugins.vec_envs.numpy_boundary import NumpyBoundary, tensor_face
from zoo_plugins.vec_envs.tensor_step import StepsTensors, TensorObs, TensorStep

SelfTensorPPO = TypeVar("SelfTensorPPO", bound="TensorPPO")

COMPILE = ("none", "default", "cudagraph")


class TensorPPO(OnTensorEnvs, PPO):
    """
    PPO whose rollouts stay on the device of environments that are stepped together there.

    It is :class:`stable_baselines3.PPO`: same policies, hyperparameters, logs and files, and, given the same rollout and the
    same permutations, the same weights up to floating point error. Environments that take and give tensors
    (:class:`~zoo_plugins.vec_envs.StepsTensors`) are asked for those; of any other VecEnv, the arrays are sent to
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

        self._for_env = ActionsForEnv(self.action_space, self.policy.squash_output, self.device)
        self._graphs = Recordings() if self._uses_graphs() else None
        if self.compile == "cudagraph" and self.device.type != "cuda":
            warnings.warn(f"compile='cudagraph' needs a GPU: on {self.device}, it does nothing", stacklevel=2)
        self._compute_loss = th.compile(plain_loss) if self.compile == "default" else fast_loss

    def _excluded_save_params(self) -> list[str]:
        # Tensors of a GPU can't be read where there is none
        tensors = ["_last_obs", "_last_episode_starts"]
        return [*super()._excluded_save_params(), *tensors, "_compute_loss", "_graphs"]

    def _uses_graphs(self) -> bool:
        return self.compile == "cudagraph" and self.device.type == "cuda"

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
        obs: Any = to_tensors(self._last_obs, self.device)
        starts = th.as_tensor(self._last_episode_starts, device=self.device)
        ends = RolloutEnds(self._stats_window_size)
        act_and_step: Callable[..., Any] = partial(self._act_and_step, face)
        if self._graphs is not None:
            act_and_step = self._graphs.of_steps(face, act_and_step)

        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                reset_noise(self.policy, env.num_envs)

            actions, log_probs, values, clipped_actions, step = act_and_step(obs)
            new_obs, rewards, dones = step.obs, step.rewards, step.terminated | step.truncated
            infos = infos_of(face, step)

            self.num_timesteps += env.num_envs

            callback.update_locals(locals())
            if not callback.on_step():
                return False

            if isinstance(face, NumpyBoundary):
                self._update_info_buffer([face.infos[i] for i in np.flatnonzero(face.dones)], face.dones[face.dones])
            self._warn_about_final_obs(step)
            ends.add(step, dones)
            rollout_buffer.add(obs, actions, rewards, starts, values, log_probs, step.valid)
            obs = new_obs
            # Steps that are none stand between two episodes
            starts = dones if step.valid is None else dones | ~step.valid
            self._last_obs, self._last_episode_starts = obs, starts

        episodes = ends.read(self.start_time)
        if not isinstance(face, NumpyBoundary):
            self._update_info_buffer(episodes, np.ones(len(episodes), dtype=bool))
        finish_rollout(self.policy, rollout_buffer, ends, obs, starts, self.gamma)

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
        clipped_actions = self._for_env(actions)
        return actions, log_probs, values, clipped_actions, face.step_tensors(clipped_actions)

    def train(self) -> None:
        """
        Update policy using the currently gathered rollout buffer.

        Written after ``PPO.train`` of SB3 2.9.2. What differs: statistics are fetched once, after the last minibatch.

        :raises ValueError: if training diverged
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)  # type: ignore[operator]
        clip_range_vf = self.clip_range_vf and self.clip_range_vf(self._current_progress_remaining)  # type: ignore[operator]
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
                    loss, batch_statistics = self._compute_loss(self.policy, batch, terms)
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

        rollout = self.rollout_buffer.rollout
        log_update(self, statistics, epoch_start, terms, rollout.values, rollout.returns)

    def _gradient_step(self, terms: LossTerms) -> GradientStep:
        """
        Choose how gradient steps are done.

        :param terms: Coefficients and clipping parameters
        :return: a context for an update
        """
        optimizer = self.policy.optimizer
        # Before the first step, it does not
        if not FlatAdamStep.supports(optimizer):
            return GradientStep(optimizer, self.max_grad_norm)
        if self._graphs is None:
            return FlatAdamStep(optimizer, self.max_grad_norm)
        return self._graphs.of_update(optimizer, self.max_grad_norm, partial(plain_loss, self.policy), terms)

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
            return self._for_env(self.policy._predict(observation, deterministic)), state

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
