"""SeqRecurrentPPO for environments that tell which actions are valid."""

from typing import ClassVar, TypeVar

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from zoo_plugins.algos.maskable_policies import (
    CnnLstmPolicy,
    MaskableRecurrentActorCriticPolicy,
    MlpLstmPolicy,
    MultiInputLstmPolicy,
)
from zoo_plugins.algos.masking import UNSUPPORTED, MaskedModel, find_eval_callbacks, read_action_masks
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO
from zoo_plugins.vec_envs.numpy_face import steps_tensors

SelfMaskableSeqRecurrentPPO = TypeVar("SelfMaskableSeqRecurrentPPO", bound="MaskableSeqRecurrentPPO")


class MaskableSeqRecurrentPPO(SeqRecurrentPPO):
    """
    :class:`SeqRecurrentPPO` with invalid action masking: it never takes, and learns nothing about, an invalid action.

    The protocol is that of :class:`sb3_contrib.MaskablePPO`: environments have a method ``action_masks()``, or wear an
    ``ActionMasker``; :meth:`learn` takes ``use_masking``, and :meth:`predict` takes ``action_masks``. Evaluation callbacks
    evaluate with the masks of their environment.

    Paper: https://arxiv.org/abs/2006.14171 (invalid action masking), https://arxiv.org/abs/1707.06347 (PPO)

    Parameters are those of :class:`SeqRecurrentPPO`; ``policy`` is MlpLstmPolicy, CnnLstmPolicy, MultiInputLstmPolicy, or a
    subclass of :class:`MaskableRecurrentActorCriticPolicy`.

    :raises ValueError: if actions are not Discrete, MultiDiscrete or MultiBinary, the policy is another one, or for what
        :class:`SeqRecurrentPPO` refuses
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
    }

    policy: MaskableRecurrentActorCriticPolicy
    # As learn() was told
    _use_masking = True

    def _setup_model(self) -> None:
        if not isinstance(self.action_space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ValueError(
                f"only Discrete, MultiDiscrete and MultiBinary actions can be masked, not {self.action_space}: "
                "use SeqRecurrentPPO (ppo_lstm_seq)"
            )
        if not issubclass(self.policy_class, MaskableRecurrentActorCriticPolicy):
            raise ValueError(f"policy {self.policy_class.__name__} must subclass MaskableRecurrentActorCriticPolicy")
        super()._setup_model()

    def _action_masks(self, env: VecEnv) -> np.ndarray | None:
        return read_action_masks(env, self.action_space) if self._use_masking else None

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        callback = super()._init_callback(callback, progress_bar)
        for eval_callback in find_eval_callbacks(callback):
            # MaskableEvalCallback has a flag of its own
            if getattr(eval_callback, "use_masking", self._use_masking):
                eval_callback.model = self.with_masks_of(eval_callback.eval_env)  # type: ignore[assignment]
        return callback

    def with_masks_of(self, env: GymEnv) -> MaskedModel:
        """
        Give this model to code that calls ``predict`` without masks::

            evaluate_policy(model.with_masks_of(env), env)

        :param env: The environment whose observations that code will pass
        :return: this model, but for a ``predict`` that asks the environment for masks
        :raises ValueError: if the environment has no masks
        """
        return MaskedModel(self, env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env]))

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """See :meth:`MaskableRecurrentActorCriticPolicy.predict`. Without ``action_masks``, all actions are valid."""
        return self.policy.predict(observation, state, episode_start, deterministic, action_masks=action_masks)

    def learn(
        self: SelfMaskableSeqRecurrentPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "MaskableSeqRecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        use_masking: bool = True,
    ) -> SelfMaskableSeqRecurrentPPO:
        """
        Return a trained model. See :meth:`sb3_contrib.MaskablePPO.learn`.

        :param total_timesteps: The total number of samples (env steps) to train on
        :param callback: Callback(s) called at every step with state of the algorithm; an ``EvalCallback`` evaluates with the
            masks of its environment
        :param log_interval: Number of rollouts before logging
        :param tb_log_name: Name of the run for TensorBoard logging
        :param reset_num_timesteps: Whether to reset the current timestep number (used in logging)
        :param progress_bar: Display a progress bar using tqdm and rich
        :param use_masking: Whether to use the masks of the environment, in training and in evaluation
        :return: the trained model
        :raises ValueError: if masks are to be used and an environment has none, or wrong ones
        """
        self._use_masking = use_masking
        if use_masking and self.env is not None and steps_tensors(self.env):
            raise ValueError(
                f"masks of environments in tensors are not read: put {type(self.env).__name__} into a wrapper that gives "
                "NumPy arrays, or learn with use_masking=False"
            )
        if use_masking and self.env is not None and not is_masking_supported(self.env):
            raise ValueError(UNSUPPORTED)
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )
