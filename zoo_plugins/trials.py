"""
Trials of a search: what an algorithm's sampler is asked beside a ``search_space``, where to find a stored trial, and what it
stands for.

Nothing here knows rl_zoo3.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from torch import nn

from zoo_plugins.config import UnreadableError, copy_containers, parse_kwargs
from zoo_plugins.registry import PluginError
from zoo_plugins.space_block import KEY, SearchSpace

# Attribute of a trial: the values of its search space, and what the sampler was answered in their place
ATTRIBUTE = KEY
# Attribute of a study: the search space of all of its trials
STUDY_ATTRIBUTE = f"zoo_plugins_{KEY}"
# What the zoo's sample_her_params suggests
HER_PARAMS = ("n_sampled_goal", "goal_selection_strategy")
# Suggestions of samplers that say under another name what a parameter says
OTHER_NAMES = {
    "subsample_steps": ("gradient_steps", "update_ratio"),
    "critic": ("policy_kwargs.enable_critic_lstm", "policy_kwargs.shared_lstm"),
}
# Hyperparameters of a sampler that give way to a parameter of another name
GIVE_WAY = {"update_ratio": "gradient_steps", "noise_type": "action_noise"}
# Maps whose entries samplers suggest by their names alone
GROUPS_OF_SAMPLERS = ("", "policy_kwargs", "replay_buffer_kwargs")


class SearchTrial:
    """
    A trial, as it is given to the zoo's objective and to the sampler of an algorithm.

    What the search space decides is not suggested again: the sampler gets its value if that is one it knows, and the first of
    its own range otherwise. Anything else is the trial's.

    :param trial: The trial
    :param space: The search space
    :param values: What was sampled from it
    :param hyperparams: Arguments of the algorithm's constructor with these values
    """

    def __init__(self, trial: optuna.Trial, space: SearchSpace, values: Mapping[str, Any], hyperparams: Mapping[str, Any]):
        self._trial = trial
        self._space = space
        self._values = values
        self._hyperparams = hyperparams
        self._answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trial, name)

    def sample(self, sampler: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """
        Sample what the search space leaves to the algorithm's sampler.

        :param sampler: The sampler, which suggests by this trial
        :return: hyperparameters, without those that the search space decides
        """
        sampled = {} if self._space.replace else dict(sampler())
        if not self._space:
            return sampled
        record = {"values": self._values, "answers": None if self._space.replace else self._answers}
        self._trial.set_user_attr(ATTRIBUTE, record)
        for name in self._values:
            group, _, entry = name.partition(".")
            sampled.pop(GIVE_WAY.get(name, ""), None)
            if not entry:
                sampled.pop(name, None)
            elif group in sampled:
                sampled[group] = {**sampled[group], entry: self._hyperparams[group][entry]}
        return sampled

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """As Optuna's."""
        if self._is_decided(name):
            return self._answer_number(name, low)
        return self._trial.suggest_int(name, low, high, step=step, log=log)

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> float:
        """As Optuna's."""
        if self._is_decided(name):
            return self._answer_number(name, low)
        return self._trial.suggest_float(name, low, high, step=step, log=log)

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """As Optuna's."""
        value = self._decided(name)
        if not value:
            return self._trial.suggest_categorical(name, choices)
        known = [choice for choice in choices if type(choice) is type(value[0]) and choice == value[0]]
        return self._answers.setdefault(name, (known or list(choices))[0])

    def set_user_attr(self, key: str, value: Any) -> None:
        """As Optuna's, but for true values of what the sampler does not decide."""
        if not self._decided(key):
            self._trial.set_user_attr(key, value)

    def report(self, value: float, step: int) -> None:
        """
        As Optuna's, but for NaN, after which nothing can become of a trial.

        :param value: Mean reward of an evaluation
        :param step: Number of the evaluation
        :raises optuna.TrialPruned: if the value is NaN
        """
        self._trial.report(value, step)
        if math.isnan(value):
            raise optuna.TrialPruned("the evaluation gave NaN")

    def _decided(self, suggestion: str) -> list[Any]:
        stem = suggestion.removeprefix("one_minus_").removesuffix("_pow")
        for name, value in self._values.items():
            group, _, entry = name.rpartition(".")
            if group in GROUPS_OF_SAMPLERS and entry == stem:
                return [value if stem == suggestion else None]
            if name in OTHER_NAMES.get(suggestion, ()):
                return [None]
        return []

    def _is_decided(self, suggestion: str) -> bool:
        return bool(self._decided(suggestion))

    def _answer_number(self, name: str, low: Any) -> Any:
        (value,) = self._decided(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._answers.setdefault(name, value if is_number else low)


def with_values(
    values: Mapping[str, Any],
    hyperparams: Mapping[str, Any],
    block: Mapping[str, Any],
    namespace: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Put values of a search space into hyperparameters.

    :param values: Values by name
    :param hyperparams: What to put them into
    :param block: Hyperparameters that have the other entries of maps, where the former have none
    :param namespace: Objects that texts of ``block`` may refer to by name
    :return: hyperparameters
    """
    found = copy_containers(dict(hyperparams))
    for name, value in values.items():
        group, _, entry = name.partition(".")
        if not entry:
            found[name] = value
            continue
        others = found.get(group) or block.get(group) or {}
        try:
            found[group] = {**parse_kwargs(others, namespace), entry: value}
        except UnreadableError:
            # Code, which upstream evaluates
            found[group] = f"{{**{others}, **{ {entry: value}!r}}}"
    return found


def trial_hyperparams(
    trial: FrozenTrial,
    converter: Callable[[dict[str, Any]], dict[str, Any]],
    block: Mapping[str, Any],
    namespace: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Find out what a trial was trained with.

    :param trial: The trial
    :param converter: Inverse of the algorithm's sampler
    :param block: The hyperparameters that it began with
    :param namespace: Objects that texts of ``block`` may refer to by name
    :return: hyperparameters that take the place of those of the block, and the values of its search space
    """
    record = trial.user_attrs.get(ATTRIBUTE, {"values": {}, "answers": {}})
    values: dict[str, Any] = record["values"]
    if record["answers"] is None:
        return with_values(values, {}, block, namespace), values
    sampled = {name: value for name, value in trial.params.items() if name not in values}
    converted = converter({**sampled, **record["answers"]})
    # Where upstream leaves them
    her = {f"replay_buffer_kwargs.{key}": converted.pop(key) for key in HER_PARAMS if key in converted}
    for name in values:
        converted.pop(GIVE_WAY.get(name, ""), None)
    return with_values({**her, **values}, converted, block, namespace), values


def check_study(storage: str, name: str, space: SearchSpace) -> None:
    """
    Refuse a study of another search space. Nothing is changed, nor made.

    :param storage: The zoo's ``--storage``
    :param name: Name of the study
    :param space: The search space
    :raises PluginError: if the study has trials of another one
    """
    if storage.endswith(".log") and not Path(storage).is_file():
        return
    try:
        study = optuna.load_study(study_name=name, storage=_open_storage(storage))
    except KeyError:
        return
    before = study.user_attrs.get(STUDY_ATTRIBUTE)
    if before != space.spec and study.get_trials(deepcopy=False):
        raise PluginError(
            f"--study-name: study {name!r} exists with another search space: {before!r}, and not {space.spec!r}: "
            "choose another name"
        )


def note_search_space(study: optuna.Study, space: SearchSpace) -> None:
    """
    Keep a search space with a study.

    :param study: The study
    :param space: The search space of its trials
    """
    if space and STUDY_ATTRIBUTE not in study.user_attrs:
        study.set_user_attr(STUDY_ATTRIBUTE, space.spec)


def find_trial(storage: str, study_name: str, number: int | None) -> FrozenTrial:
    """
    Find a trial.

    :param storage: The zoo's ``--storage``
    :param study_name: Name of the study
    :param number: Its number, None for the best one
    :return: the trial
    :raises PluginError: if there is no such study or trial
    """
    if storage.endswith(".log") and not Path(storage).is_file():  # it would be made
        raise PluginError(f"--storage: there is no file {storage}")
    try:
        study = optuna.load_study(study_name=study_name, storage=_open_storage(storage))
    except KeyError as error:
        raise PluginError(f"--study-name: there is no study {study_name!r} in {storage}") from error
    trials = study.get_trials(deepcopy=False)
    if number is None:
        if not any(trial.state is TrialState.COMPLETE for trial in trials):
            raise PluginError(f"--study-name: study {study_name!r} in {storage} has no finished trial")
        return study.best_trial
    if not 0 <= number < len(trials):
        valid = f"Valid: 0 to {len(trials) - 1}" if trials else "It has none"
        raise PluginError(f"--trial-id: study {study_name!r} has no trial {number}. {valid}")
    return trials[number]


def _open_storage(storage: str) -> str | BaseStorage:
    # As the zoo does
    return JournalStorage(JournalFileBackend(storage)) if storage.endswith(".log") else storage


def write_block(env: str, hyperparams: Mapping[str, Any], remarks: Iterable[str]) -> str:
    """
    Write hyperparameters as they stand in a file.

    :param env: Id of the environment
    :param hyperparams: The hyperparameters
    :param remarks: Comments to begin with
    :return: YAML
    """
    found = {key: value for key, value in hyperparams.items() if key != KEY}
    return "".join(f"# {remark}\n" for remark in remarks) + yaml.safe_dump({env: _as_data(found)}, sort_keys=False)


def _as_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_data(item) for item in value]
    if isinstance(value, type):
        short = getattr(nn, value.__name__, None) is value
        return f"nn.{value.__name__}" if short else f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item"):  # NumPy's numbers
        return value.item()
    return value
