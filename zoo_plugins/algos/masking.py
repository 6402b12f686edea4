"""Masks of valid actions: read from environments, checked, and found for callers of ``predict`` that know none."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import EXPECTED_METHOD_NAME, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv

# MaskablePPO's
UNSUPPORTED = "Environment does not support action masking. Consider using ActionMasker wrapper"


def count_choices(action_space: spaces.Space[Any]) -> list[int]:
    """
    Count the choices of each sub-action.

    :param action_space: A Discrete, MultiDiscrete or MultiBinary space
    :return: numbers of choices, whose sum is the length of a mask
    """
    if isinstance(action_space, spaces.MultiDiscrete):
        return [int(n) for n in action_space.nvec]
    if isinstance(action_space, spaces.MultiBinary):
        return [2] * int(np.prod(action_space.shape))
    assert isinstance(action_space, spaces.Discrete)
    return [int(action_space.n)]


def check_action_masks(masks: Any, action_space: spaces.Space[Any], n_envs: int) -> np.ndarray:
    """
    Refuse masks that can't be those of an action space.

    :param masks: Which actions are valid. Shape: (n_envs, n_choices), or (n_choices,) for one environment; the choices may
        be spread over several dimensions
    :param action_space: Action space
    :param n_envs: Number of environments
    :return: the masks as booleans. Shape: (n_envs, n_choices)
    :raises ValueError: if they have another shape, or leave an environment (or one of its sub-actions) without a choice
    """
    choices = count_choices(action_space)
    expected = (n_envs, sum(choices))
    array = np.asarray(masks, dtype=bool)
    first = array.shape[:1] if array.ndim > 1 or n_envs > 1 else (1,)
    if first != (n_envs,) or array.size != n_envs * sum(choices):
        raise ValueError(f"action_masks have shape {array.shape}, expected {expected}")
    array = array.reshape(expected)
    possible = np.logical_or.reduceat(array, np.cumsum([0, *choices[:-1]]), axis=1)
    if not possible.all():
        env, sub_action = np.argwhere(~possible)[0]
        where = f"sub-action {sub_action} of environment {env}" if len(choices) > 1 else f"environment {env}"
        raise ValueError(f"action_masks leave {where} without a valid action")
    return array


def read_action_masks(env: VecEnv, action_space: spaces.Space[Any]) -> np.ndarray:
    """
    Ask all environments which actions are valid.

    :param env: Environments with a method ``action_masks()``
    :param action_space: Their action space
    :return: masks. Shape: (n_envs, n_choices)
    :raises ValueError: if one of the masks is not right, naming the environment
    """
    size = sum(count_choices(action_space))
    masks = [np.asarray(mask, dtype=bool) for mask in env.env_method(EXPECTED_METHOD_NAME)]
    for i, mask in enumerate(masks):
        if mask.size != size:
            raise ValueError(f"action_masks of environment {i} have shape {mask.shape}, expected ({size},)")
    return check_action_masks(np.stack([mask.ravel() for mask in masks]), action_space, len(masks))


class MaskedModel:
    """
    A model that asks an environment for masks when ``predict`` is called without any.

    It is for code that does not know masks: SB3's ``evaluate_policy`` and ``EvalCallback``, and the zoo's ``enjoy``. In
    everything else it is the model itself.

    It also remembers LSTM states for callers that lose them, as sb3_contrib's maskable ``evaluate_policy`` does in 2.9: they
    are used where no state is passed although an episode goes on.

    :param model: The model, whose ``predict`` takes ``action_masks``
    :param env: The environment of the observations that will be passed
    :raises ValueError: if the environment has no masks
    """

    model: Any
    masking_env: VecEnv

    def __init__(self, model: BaseAlgorithm, env: VecEnv):
        if not is_masking_supported(env):
            raise ValueError(UNSUPPORTED)
        # Past __setattr__, which is the model's
        vars(self).update(model=model, masking_env=env, last_state=None)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """See :meth:`MaskableRecurrentActorCriticPolicy.predict`; ``action_masks`` default to those of the environment."""
        if action_masks is None:
            action_masks = read_action_masks(self.masking_env, self.model.action_space)
        if state is None and episode_start is not None and not np.all(episode_start):
            state = vars(self)["last_state"]
        actions, next_state = self.model.predict(observation, state, episode_start, deterministic, action_masks=action_masks)
        vars(self)["last_state"] = next_state
        return actions, next_state

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # of an instance that is being unpickled
            raise AttributeError(name)
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.model, name, value)


def find_eval_callbacks(callback: object) -> Iterator[EvalCallback]:
    """
    Find all callbacks that evaluate, however deep.

    :param callback: A callback, or anything else, in which there are none
    :return: the ``EvalCallback`` instances
    """
    if not isinstance(callback, BaseCallback):
        return
    if isinstance(callback, EvalCallback):
        yield callback
    # Those of CallbackList, EventCallback and EvalCallback
    children = [getattr(callback, "callback", None), getattr(callback, "callback_on_new_best", None)]
    for child in [*getattr(callback, "callbacks", []), *children]:
        yield from find_eval_callbacks(child)
