"""
The block ``search_space`` of a hyperparameter file: what a search samples, beside or in the place of the algorithm's sampler.

Nothing here knows rl_zoo3.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from zoo_plugins.config import Block, as_number
from zoo_plugins.registry import PluginError, did_you_mean

KEY = "search_space"
REPLACE = "replace"
RANGE_KEYS = ("low", "high", "log", "step")
FORMS = "{low: 1e-5, high: 1e-2, log: true}, {low: 32, high: 256, step: 32} or {choices: [64, 256]}"


@dataclass(frozen=True)
class Entry:
    """
    A parameter that is searched.

    :param distribution: What Optuna is asked for
    :param choices: Values by what is stored in their place, empty for a range
    """

    distribution: BaseDistribution
    choices: Mapping[Any, Any] = field(default_factory=dict)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """
        Sample a value.

        :param trial: The trial
        :param name: Name of the parameter
        :return: the value
        """
        match self.distribution:
            case FloatDistribution(low=low, high=high, log=log, step=step):
                return trial.suggest_float(name, low, high, log=log, step=step)
            case IntDistribution(low=first, high=last, log=log, step=stride):
                return trial.suggest_int(name, first, last, log=log, step=stride)
        return self.choices[trial.suggest_categorical(name, list(self.choices))]

    @property
    def extremes(self) -> list[Any]:
        """Values that show whether the parameter can have them: all choices, or both ends of a range."""
        if isinstance(self.distribution, FloatDistribution | IntDistribution):
            return [self.distribution.low, self.distribution.high]
        return list(self.choices.values())

    @property
    def spec(self) -> dict[str, Any]:
        """The entry as it is kept with a study, as JSON."""
        if not isinstance(self.distribution, FloatDistribution | IntDistribution):
            # Tuples of a .py file, for example, come back from a storage as lists
            return {"choices": json.loads(json.dumps(list(self.choices.values())))}
        found = {"low": self.distribution.low, "high": self.distribution.high}
        if self.distribution.log:
            return {**found, "log": True}
        return found if self.distribution.step is None else {**found, "step": self.distribution.step}


@dataclass(frozen=True)
class SearchSpace:
    """
    What a block says.

    :param entries: Parameters by name; ``policy_kwargs.net_arch`` is the entry ``net_arch`` of the map ``policy_kwargs``
    :param replace: Whether nothing else is sampled
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    replace: bool = False

    def __bool__(self) -> bool:
        return bool(self.entries)

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """
        Sample all parameters.

        :param trial: The trial
        :return: values by name
        """
        return {name: entry.suggest(trial, name) for name, entry in self.entries.items()}

    @property
    def spec(self) -> dict[str, Any] | None:
        """What is kept with a study, as JSON; None if nothing is searched by a block."""
        if not self:
            return None
        return {REPLACE: self.replace, **{name: self.entries[name].spec for name in sorted(self.entries)}}


def read_search_space(block: Block, kinds: Mapping[str, str], may_mean: Callable[[str], bool]) -> SearchSpace:
    """
    Take ``search_space`` out of a block.

    :param block: The hyperparameters
    :param kinds: Names that can be searched, with what is known of their type: ``"int"``, ``"float | None"``, ...
    :param may_mean: Tells whether another name may mean something, too
    :return: the search space, empty if there is none in the block
    :raises PluginError: naming the entry, its value and what would be valid
    """
    found = block.values.pop(KEY, None)
    if found is None:
        return SearchSpace()
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise _error(block, "", found, f"expected a map of parameters, each as {FORMS}")
    found = dict(found)
    replace = found.pop(REPLACE, False)
    if type(replace) is not bool:
        raise _error(block, REPLACE, replace, "expected true (only this block is sampled) or false (the sampler's, too)")
    if not found:
        raise _error(block, "", {}, f"expected at least one parameter, as {FORMS}")
    for name, value in found.items():
        if name not in kinds and not may_mean(name):
            raise _error(block, name, value, f"{_unknown(name, kinds)} Valid: {', '.join(sorted(kinds))}")
        if name in block.overrides:
            raise _error(block, name, value, "it is in -params too: leave one of them out")
    entries = {}
    for name, value in found.items():
        try:
            entries[name] = _read_entry(value, kinds.get(name, ""))
        except PluginError as error:
            raise _error(block, name, value, str(error)) from error.__cause__
    return SearchSpace(entries, replace)


def explain(error: PluginError, block: Block, name: str, value: object) -> PluginError:
    """
    Tell that a value of the search space is wrong.

    :param error: What is wrong with it as a hyperparameter
    :param block: The hyperparameters
    :param name: The parameter
    :param value: Its value
    :return: the error to raise
    """
    problem = str(error).rpartition(f" in {block.file}: ")[2]
    return _error(block, name, value, problem)


def _error(block: Block, name: str, value: object, problem: str) -> PluginError:
    source = "-params" if KEY in block.overrides else block.file
    return PluginError(f"{KEY}{'.' * bool(name)}{name}: {value!r} in {source}: {problem}")


def _unknown(name: str, kinds: Collection[str]) -> str:
    inside = [known for known in kinds if known.endswith(f".{name}")]
    return "unknown parameter" + (f", did you mean {inside[0]!r}?" if inside else did_you_mean(name, kinds))


def _read_entry(value: object, kind: str) -> Entry:
    if not isinstance(value, dict):
        raise PluginError(f"expected a map, as {FORMS}")
    valid = ("choices",) if "choices" in value else RANGE_KEYS
    for key in value:
        if key not in valid:
            if key in RANGE_KEYS:
                raise PluginError(f"{key} goes with low and high, and not with choices")
            known = (*RANGE_KEYS, "choices")
            raise PluginError(f"unknown key {key!r}{did_you_mean(str(key), known)} Valid: {', '.join(known)}")
    return _read_choices(value["choices"]) if "choices" in value else _read_range(value, kind)


def _read_choices(choices: object) -> Entry:
    if not isinstance(choices, list | tuple) or not choices:
        raise PluginError("choices: expected a list of at least one value")
    by_label: dict[Any, Any] = {}
    for choice in choices:
        choice = as_number(choice)
        label = choice
        # What a storage of Optuna can't keep
        if isinstance(choice, float) and not math.isfinite(choice):
            raise PluginError(f"choices: {choice!r} is not finite")
        if not isinstance(choice, str | int | float | None):
            try:
                label = json.dumps(choice)
            except TypeError as error:
                raise PluginError(
                    f"choices: {choice!r} can't be kept with a study: write text, numbers, lists or maps"
                ) from error
        if label in by_label:
            raise PluginError(f"choices: {choice!r} is there twice")
        by_label[label] = choice
    return Entry(CategoricalDistribution(list(by_label)), by_label)


def _read_range(value: Mapping[str, Any], kind: str) -> Entry:
    for key in ("low", "high"):
        if key not in value:
            raise PluginError(f"{key} is missing: expected {FORMS}")
    low, high, step = (_read_number(key, value.get(key)) for key in ("low", "high", "step"))
    log = value.get("log", False)
    assert low is not None
    assert high is not None
    if type(log) is not bool:
        raise PluginError(f"log: {log!r}: expected true or false")
    if low > high:
        raise PluginError(f"low: {low!r} is above high: {high!r}")
    if log and low <= 0:
        raise PluginError(f"low: {low!r}: with log: true, expected a number above 0")
    if log and step is not None:
        raise PluginError(f"step: {step!r}: it does not go with log: true; leave one of them out")
    if step is not None and step <= 0:
        raise PluginError(f"step: {step!r}: expected a number above 0")
    if _is_whole(kind, low, high, step):
        for key, number in (("low", low), ("high", high), ("step", step)):
            if number is not None and not float(number).is_integer():
                raise PluginError(f"{key}: {number!r}: expected a whole number")
        first, stride = int(low), int(step or 1)
        # The last step below high, where Optuna would do the same with a warning for each trial
        return Entry(IntDistribution(first, first + (int(high) - first) // stride * stride, log, stride))
    if step is not None:
        n_steps = math.floor((high - low) / step * (1 + 1e-12))
        high = float(format(low + n_steps * step, ".15g"))
    return Entry(FloatDistribution(float(low), float(high), log, None if step is None else float(step)))


def _read_number(key: str, value: object) -> int | float | None:
    number = as_number(value)
    if number is None and key == "step":
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise PluginError(f"{key}: {value!r}: expected a number")
    return number


def _is_whole(kind: str, *numbers: int | float | None) -> bool:
    # {low: 0, high: 1} of a discount factor is no choice between two numbers
    if re.search(r"\bfloat\b", kind):
        return False
    return bool(re.search(r"\bint\b", kind)) or not any(isinstance(number, float) for number in numbers)
