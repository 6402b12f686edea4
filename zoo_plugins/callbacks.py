"""
Callbacks for SB3's algorithms, in a script or in the zoo.

:class:`UpdateRatioCallback` lets the number of updates of an off-policy algorithm follow the number of environments,
:class:`TimestepBudget` ends a training at a number of timesteps.
"""

import re
import warnings
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, NamedTuple

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from zoo_plugins.buffers.fast_her_replay_buffer import find_time_limit

GRADIENT_STEPS_FORMS = "a whole number from 0 on, -1, n_envs, K * n_envs or n_envs / K, with a whole number K from 1 on"
UPDATE_RATIO_FORMS = "a number above 0: updates per collected transition"
PER_ENV = re.compile(r"(?:([1-9]\d*)\s*\*\s*)?n_envs|n_envs\s*([*/])\s*([1-9]\d*)", re.ASCII)

# Attribute that a model has while its gradient_steps are ours: the user's own value, and ours
_REPLACED = "_replaced_gradient_steps"


class UpdateRule(NamedTuple):
    """
    How many updates are due after a rollout. The numbers are exact, so that nothing is lost or gained in a long run.

    :param fixed: Updates per rollout
    :param per_env: Updates per rollout and environment
    :param per_transition: Updates per transition that was collected
    """

    fixed: Fraction = Fraction(0)
    per_env: Fraction = Fraction(0)
    per_transition: Fraction = Fraction(0)

    def settle(self, carried: Fraction, n_envs: int, n_transitions: int) -> tuple[int, Fraction]:
        """
        Count the updates after a rollout.

        :param carried: Fraction of an update that is left over from the rollouts before
        :param n_envs: Number of environments
        :param n_transitions: Number of transitions that were collected, from all environments
        :return: number of updates, and the fraction of an update to carry over
        """
        return divmod(carried + self.fixed + self.per_env * n_envs + self.per_transition * n_transitions, 1)


def read_gradient_steps(value: object) -> UpdateRule:
    """
    Read updates per rollout.

    :param value: SB3's number, ``-1`` for one update per transition, or a text: ``n_envs``, ``K * n_envs``, ``n_envs / K``
    :return: the rule that it stands for
    :raises ValueError: if it is none of these
    """
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= -1:
        return UpdateRule(per_transition=Fraction(1)) if value == -1 else UpdateRule(fixed=Fraction(int(value)))
    match = PER_ENV.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"gradient_steps={value!r}: expected {GRADIENT_STEPS_FORMS}")
    before, sign, after = match.groups()
    factor = Fraction(before or after or 1)
    return UpdateRule(per_env=1 / factor if sign == "/" else factor)


def read_update_ratio(value: object) -> UpdateRule:
    """
    Read updates per transition.

    :param value: A number above 0; a float is taken for the decimal number that it is written as
    :return: the rule that it stands for
    :raises ValueError: if it is something else
    """
    try:
        if isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0:
            return UpdateRule(per_transition=Fraction(str(value)))
    except ValueError:  # infinity
        pass
    raise ValueError(f"update_ratio={value!r}: expected {UPDATE_RATIO_FORMS}")


def restore_gradient_steps(model: BaseAlgorithm) -> None:
    """
    Put back the user's own ``gradient_steps``, where training was interrupted before :class:`UpdateRatioCallback` did.

    :param model: The model
    """
    own, replaced = vars(model).pop(_REPLACED, (None, None))
    # A value that is not ours anymore was set by the user since
    if own is not None and vars(model)["gradient_steps"] == replaced:
        vars(model)["gradient_steps"] = own


class UpdateRatioCallback(BaseCallback):
    """
    Let the number of updates of an off-policy algorithm follow the number of environments.

    SB3 makes ``gradient_steps`` updates after a rollout, however many environments it has collected transitions from. Here
    they are counted anew after each rollout. The ratio of updates to transitions is the replay ratio of D'Oro et al. 2023
    (https://openreview.net/forum?id=OpC-9aBBVJe), and the UTD ratio of REDQ (https://arxiv.org/abs/2101.05982).

    The model has the user's own ``gradient_steps`` at any time but between the end of a rollout and the start of the next,
    and so has what is saved: it works with another number of environments. No updates are due, then or later, for
    transitions that are collected before ``learning_starts``, or before a :class:`HerReplayBuffer` has a finished episode.
    Action noise and the environment of the replay buffer are made to fit the model's environments.

    :param gradient_steps: Updates per rollout, which is ``train_freq`` steps of all environments: a number as in SB3,
        ``"n_envs"``, ``"K * n_envs"`` or ``"n_envs / K"``. ``None``: what the model's own ``gradient_steps`` says
    :param update_ratio: Updates per collected transition, instead of updates per rollout
    :param verbose: Verbosity level, not used
    :raises ValueError: if both are given, or one is none of these; when training starts, if the algorithm is not off-policy,
        its own ``gradient_steps`` are none of these, or ``train_freq`` is in episodes with several environments
    """

    model: OffPolicyAlgorithm

    def __init__(self, gradient_steps: int | str | None = None, update_ratio: float | None = None, verbose: int = 0):
        super().__init__(verbose)
        if gradient_steps is not None and update_ratio is not None:
            raise ValueError(f"gradient_steps={gradient_steps!r} and update_ratio={update_ratio!r}: only one can be given")
        self.rule: UpdateRule | None = None
        if gradient_steps is not None:
            self.rule = read_gradient_steps(gradient_steps)
        if update_ratio is not None:
            self.rule = read_update_ratio(update_ratio)
        self._carried = Fraction(0)
        self._first_timestep = 0  # of the rollout
        self._has_episode = False
        self._has_warned = False

    def _init_callback(self) -> None:
        model: Any = self.model
        if not isinstance(model, OffPolicyAlgorithm):
            raise ValueError(f"{type(model).__name__} is not off-policy: UpdateRatioCallback has nothing to count there")
        restore_gradient_steps(model)
        self._current_rule()
        # SB3 has made a TrainFreq of it
        _check_train_freq(model.train_freq, model.n_envs)  # type: ignore[arg-type]

    def _on_training_start(self) -> None:
        model = self.model
        noise = model.action_noise
        # A loaded model has the noise of the environments that it was saved with
        if isinstance(noise, VectorizedActionNoise) and noise.n_envs != model.n_envs:
            model.action_noise = VectorizedActionNoise(noise.base_noise, model.n_envs)
        self._has_episode = False  # the model may have another buffer now
        if isinstance(model.replay_buffer, HerReplayBuffer):
            _share_env(model.replay_buffer, self.training_env)
            self._warn_of_early_start()

    def _on_rollout_start(self) -> None:
        restore_gradient_steps(self.model)
        self._first_timestep = self.model.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        model = self.model
        restore_gradient_steps(model)  # another callback of this class may have been here
        n_updates = 0
        if model.num_timesteps > model.learning_starts:  # as SB3, which does not train before
            if self._can_sample():
                n_transitions = model.num_timesteps - self._first_timestep
                n_updates, self._carried = self._current_rule().settle(self._carried, model.n_envs, n_transitions)
            else:
                self._warn(
                    f"no episode has ended in {model.num_timesteps} transitions: HER has nothing to learn from, and updates "
                    "wait. Set learning_starts to at least n_envs * the length of an episode"
                )
        vars(model)[_REPLACED] = (model.gradient_steps, n_updates)
        model.gradient_steps = n_updates

    def _on_training_end(self) -> None:
        restore_gradient_steps(self.model)

    def _current_rule(self) -> UpdateRule:
        return self.rule or read_gradient_steps(self.model.gradient_steps)

    def _can_sample(self) -> bool:
        buffer: Any = self.model.replay_buffer
        if hasattr(buffer, "n_sampleable"):
            return bool(buffer.n_sampleable > 0)
        if isinstance(buffer, HerReplayBuffer) and not self._has_episode:
            # This looks through the whole buffer, so it is only done until the first episode ends
            self._has_episode = bool(buffer.ep_length.any())
            return self._has_episode
        return True

    def _warn_of_early_start(self) -> None:
        model = self.model
        limit = find_time_limit(self.training_env)
        # The last step of the first episodes is their n_envs * limit-th transition, and SB3 looks after every step
        if limit is None or model.learning_starts >= model.n_envs * (limit - 1) or self._can_sample():
            return
        first = f"{model.n_envs} * {limit} = {model.n_envs * limit}"
        self._warn(
            f"learning_starts={model.learning_starts} counts the transitions of all environments, of which there are "
            f"{model.n_envs}, and episodes have up to {limit} steps: HER may have nothing to learn from before {first} "
            f"transitions, and updates wait until then. Set learning_starts to at least {model.n_envs * limit}"
        )

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(message, stacklevel=2)


class TimestepBudget(BaseCallback):
    """
    End training when a number of timesteps is reached, in the middle of a rollout, too.

    SB3 ends training after a whole rollout, which may have many times the timesteps that were asked for, and then learns from
    it. Here nothing is learned from the last rollout, as nobody would evaluate what comes of it.

    :param n_timesteps: Timesteps from the start of the run, over all environments
    :param verbose: Verbosity level, not used
    """

    def __init__(self, n_timesteps: int, verbose: int = 0):
        super().__init__(verbose)
        self.n_timesteps = n_timesteps

    def _on_step(self) -> bool:
        return self.num_timesteps < self.n_timesteps


def _check_train_freq(train_freq: TrainFreq, n_envs: int) -> None:
    if n_envs > 1 and train_freq.unit is TrainFrequencyUnit.EPISODE:
        raise ValueError(
            f"train_freq: ({train_freq.frequency}, 'episode') needs n_envs=1, because the episodes of several environments "
            f"end at different times, not {n_envs}; use steps"
        )


def _share_env(buffer: HerReplayBuffer, env: VecEnv) -> None:
    # SB3's model.set_env() leaves the buffer with the old environment, and so does its buffer.set_env()
    if buffer.env is env:
        return
    if hasattr(buffer, "n_sampleable"):
        buffer.set_env(env)
    else:
        buffer.env = env
