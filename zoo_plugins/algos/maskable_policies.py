"""sb3_contrib's recurrent policies, with its maskable distributions."""

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from stable_baselines3.common.distributions import MultiCategoricalDistribution
from stable_baselines3.common.type_aliases import Schedule

from zoo_plugins.algos.masking import check_action_masks, count_choices


class MaskableRecurrentActorCriticPolicy(RecurrentActorCriticPolicy):
    """
    Recurrent policy that can be told which actions are valid.

    Its parameters are those of sb3_contrib's ``RecurrentActorCriticPolicy``, its networks too, but for MultiBinary actions,
    which have two outputs each here, as in ``MaskablePPO``. A policy of your own derives from this class.
    """

    action_dist: MaskableDistribution
    # Those of the current call of predict(), which passes nothing on to _predict() but what it knows of
    _masks_to_predict_with: np.ndarray | None = None

    def _build(self, lr_schedule: Schedule) -> None:
        if isinstance(self.action_space, spaces.MultiBinary):
            # Two outputs per action
            self.action_dist = MultiCategoricalDistribution(count_choices(self.action_space))  # type: ignore[assignment]
        super()._build(lr_schedule)
        self.action_dist = make_masked_proba_distribution(self.action_space)

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> MaskableDistribution:
        return self.action_dist.proba_distribution(action_logits=self.action_net(latent_pi))

    def get_distribution(  # type: ignore[override]  # as that of sb3_contrib's recurrent policies
        self,
        obs: th.Tensor,
        lstm_states: tuple[th.Tensor, th.Tensor],
        episode_starts: th.Tensor,
        action_masks: np.ndarray | None = None,
    ) -> tuple[MaskableDistribution, tuple[th.Tensor, ...]]:
        """
        Get the current policy distribution given the observations.

        :param obs: Observations. Shape: (n_envs, *obs_shape)
        :param lstm_states: LSTM states of the actor before the step. Shape of each: (n_layers, n_envs, hidden_size)
        :param episode_starts: Where to reset them first. Shape: (n_envs,)
        :param action_masks: Which actions are valid, None for all. Shape: (n_envs, n_choices)
        :return: the distribution, and the LSTM states after the step
        """
        distribution, next_states = super().get_distribution(obs, lstm_states, episode_starts)
        assert isinstance(distribution, MaskableDistribution)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution, next_states

    def _predict(  # type: ignore[override]  # as that of sb3_contrib's recurrent policies
        self,
        observation: th.Tensor,
        lstm_states: tuple[th.Tensor, th.Tensor],
        episode_starts: th.Tensor,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
        if action_masks is None:
            action_masks = self._masks_to_predict_with
        if action_masks is not None:
            action_masks = check_action_masks(action_masks, self.action_space, len(episode_starts))
        distribution, next_states = self.get_distribution(observation, lstm_states, episode_starts, action_masks)
        return distribution.get_actions(deterministic=deterministic), next_states

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Get the policy's actions from observations and LSTM states.

        :param observation: Observations, or the one of a single environment
        :param state: LSTM states of the actor before the step, None for zeros. Shape of each:
            (n_layers, n_envs, hidden_size)
        :param episode_start: Where to reset them first. Shape: (n_envs,)
        :param deterministic: Whether to take the most likely action instead of a sample
        :param action_masks: Which actions are valid, None for all. Shape: (n_envs, n_choices), or (n_choices,) for a single
            environment, where ``n_choices`` is that of all sub-actions together
        :return: actions, and LSTM states after the step
        :raises ValueError: if ``action_masks`` have another shape, or leave an environment without an action
        """
        self._masks_to_predict_with = action_masks
        try:
            return super().predict(observation, state, episode_start, deterministic)
        finally:
            self._masks_to_predict_with = None


class MaskableRecurrentActorCriticCnnPolicy(MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy):
    """:class:`MaskableRecurrentActorCriticPolicy` for images."""


class MaskableRecurrentMultiInputActorCriticPolicy(MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy):
    """:class:`MaskableRecurrentActorCriticPolicy` for Dict observations."""


MlpLstmPolicy = MaskableRecurrentActorCriticPolicy
CnnLstmPolicy = MaskableRecurrentActorCriticCnnPolicy
MultiInputLstmPolicy = MaskableRecurrentMultiInputActorCriticPolicy
