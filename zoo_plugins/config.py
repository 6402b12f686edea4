"""
Values of a hyperparameter block: read, checked and turned into objects before any environment is made.

Nothing here knows rl_zoo3, and nothing is evaluated: ``"dict(...)"`` strings are parsed.
"""

import ast
import builtins
import copy
import importlib
import inspect
import re
import runpy
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from torch import nn

from zoo_plugins.registry import PluginError, did_you_mean, import_object

# What the zoo's own "dict(...)" strings may refer to without an import
NAMESPACE = {"nn": nn, "th": torch, "torch": torch}
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
DOTTED_PATH = re.compile(r"\w+(\.\w+)*")
SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf", "delta_std")
COUNTS = ("n_timesteps", "n_envs", "n_steps", "batch_size", "n_epochs", "buffer_size")

T = TypeVar("T")


def read_config(config: str) -> dict[str, Any]:
    """
    Read all hyperparameters from where upstream reads them.

    :param config: Path of a YAML or Python file, or name of a package
    :return: hyperparameters by environment: the very dict that a package or module holds
    :raises PluginError: if there is none
    """
    try:
        if config.endswith((".yml", ".yaml")):
            found = yaml.safe_load(Path(config).read_text())
        elif config.endswith(".py"):
            found = runpy.run_path(config)["hyperparams"]
        else:
            found = importlib.import_module(config).hyperparams
    except yaml.YAMLError as error:
        raise PluginError(f"{config} is not YAML: {error}") from error
    except (OSError, ImportError, KeyError, AttributeError) as error:
        raise PluginError(f"can't read hyperparameters from {config}: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise PluginError(f"{config}: expected a map of environment ids to hyperparameters, not {type(found).__name__}")
    return found


class UnreadableError(PluginError):
    """Python code that is more than data, but has no name in it that can't be known."""


class Block:
    """
    The hyperparameters of one environment, with the means to say where a wrong one stands.

    :param values: The hyperparameters; they are not changed
    :param file: File or package they come from
    :param overrides: Those that come from the command line instead
    """

    def __init__(self, values: Mapping[str, Any], file: str, overrides: Collection[str] = ()):
        self.values = {key: as_number(value) for key, value in copy_containers(values).items()}
        self.file = file
        self.overrides = overrides

    def error(self, key: str, problem: str) -> PluginError:
        """
        Blame a hyperparameter.

        :param key: Its name
        :param problem: What is wrong with it
        :return: the error to raise
        """
        source = "-params" if key in self.overrides else self.file
        value = f" {self.values[key]!r}" if key in self.values else ""
        return PluginError(f"{key}:{value} in {source}: {problem}")

    def pop(self, key: str, convert: Callable[[Any], T], default: T | None = None, leave_code: bool = False) -> T | None:
        """
        Take a hyperparameter out of the block.

        :param key: Its name
        :param convert: Turns its value into what is needed
        :param default: Result for a block without it
        :param leave_code: Leave a string of Python code, which is more than data, in the block for others to evaluate
        :return: the converted value
        :raises PluginError: if the conversion does
        """
        if self.values.get(key) is None:
            self.values.pop(key, None)
            return default
        try:
            value = convert(self.values[key])
        except PluginError as error:
            if leave_code and isinstance(error, UnreadableError):
                return default
            raise self.error(key, str(error)) from error.__cause__
        del self.values[key]
        return value

    def check_keys(self, valid: Iterable[str], required: Iterable[str], by_caller: Collection[str]) -> None:
        """
        Refuse unknown keys, and a block without the required ones.

        :param valid: Keys that mean something
        :param required: Keys without which nothing works
        :param by_caller: Valid parameters that users can't set here
        :raises PluginError: naming the first wrong key
        """
        valid = set(valid) - set(by_caller)
        for key in self.values:
            if key in by_caller:
                raise self.error(key, "it is set from the command line, not from hyperparameters")
            if key not in valid:
                raise self.error(
                    key, f"unknown hyperparameter{did_you_mean(str(key), valid)} Valid: {', '.join(sorted(valid))}"
                )
        for key in required:
            if key not in self.values:
                raise self.error(key, "it is missing")

    def check_numbers(self) -> None:
        """
        Refuse counts below one, schedules that are neither a number nor ``lin_<number>``, and value clipping of nothing.

        :raises PluginError: naming the hyperparameter
        """
        for key in COUNTS:
            value = self.values.get(key)
            if isinstance(value, float) and value.is_integer():
                value = self.values[key] = int(value)
            if value is not None and (type(value) is not int or value < 1):
                raise self.error(key, "expected a whole number, at least 1")
        for key in SCHEDULES:
            value = self.values.get(key)
            if value is None:
                self.values.pop(key, None)  # as if it was not there: upstream has no other way to say "the default"
                continue
            number = value.partition("_")[2] if isinstance(value, str) else str(value)
            if not NUMBER.fullmatch(number):
                raise self.error(key, "expected a number or lin_<number>, as in lin_2.5e-4")
        clip_range_vf = self.values.get("clip_range_vf")
        if isinstance(clip_range_vf, int | float) and clip_range_vf <= 0:
            raise self.error("clip_range_vf", "must be positive; leave the key out for no clipping")


def copy_containers(value: Any) -> Any:
    """
    Copy nested dicts, lists and tuples, but not what they hold.

    :param value: Any value
    :return: its copy
    """
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the class of a subclass
        copied.update({key: copy_containers(item) for key, item in value.items()})
        return copied
    if type(value) in (list, tuple):
        return type(value)(copy_containers(item) for item in value)
    return value


def as_number(value: Any) -> Any:
    """
    Read a number that YAML takes for text: its ``1e-4`` has no decimal point.

    :param value: Any value
    :return: an int or float for number-like text, the value itself otherwise
    """
    if not isinstance(value, str) or not NUMBER.fullmatch(value.strip()):
        return value
    number = float(value.strip())
    return int(number) if number.is_integer() else number


def parse_kwargs(value: Any, namespace: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    Read keyword arguments.

    :param value: A map, or the zoo's ``"dict(key=value, ...)"`` string: literals, nested dicts and lists, names in
        ``namespace`` and dotted paths of importable objects
    :param namespace: Objects that a string may refer to by name
    :return: keyword arguments; number-like text is read as a number
    :raises PluginError: if it is neither, or an object can't be imported
    """
    if isinstance(value, str):
        try:
            tree = ast.parse(value.strip(), mode="eval").body
        except SyntaxError as error:
            raise PluginError(f"expected a map or 'dict(...)', but can't read it: {error.msg}") from error
        namespace = {**NAMESPACE, **(namespace or {})}
        try:
            value = _read_node(tree, namespace)
        except UnreadableError:
            _check_names(tree, namespace)
            raise
    if not isinstance(value, dict):
        raise PluginError(f"expected a map of keyword arguments, not {type(value).__name__}")
    return {key: as_number(item) for key, item in value.items()}


def _read_node(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(item.arg for item in keywords):
            return {str(item.arg): _read_node(item.value, namespace) for item in keywords}
        case ast.Dict(keys=keys, values=values) if all(keys):
            items = [
                (_read_node(key, namespace), _read_node(value, namespace))
                for key, value in zip(keys, values, strict=True)
                if key is not None
            ]
            try:
                return dict(items)
            except TypeError as error:
                raise PluginError(f"can't read {ast.unparse(node)!r}: {error}") from error
        case ast.List(elts=items):
            return [_read_node(item, namespace) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_read_node(item, namespace) for item in items)
        case ast.Name() | ast.Attribute() if DOTTED_PATH.fullmatch(ast.unparse(node)):
            return _read_name(ast.unparse(node), namespace)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise UnreadableError(f"{ast.unparse(node)!r} is not data, but code") from error


def _check_names(code: ast.expr, namespace: Mapping[str, Any]) -> None:
    nodes = list(ast.walk(code))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in bound | set(namespace) | set(dir(builtins)):
            raise PluginError(f"unknown name {node.id!r} in {ast.unparse(code)!r}; code can't name other modules, a map can")


def _read_name(name: str, namespace: Mapping[str, Any]) -> Any:
    root, *attributes = name.split(".")
    if root not in namespace:
        if root in vars(builtins):
            raise UnreadableError(f"{name!r} is not data, but code")
        if not attributes:
            raise PluginError(f"unknown name {name!r}{did_you_mean(name, namespace)}")
        return import_object(name)
    found = namespace[root]
    for attribute in attributes:
        if not hasattr(found, attribute):
            raise PluginError(f"{name!r} does not exist{did_you_mean(attribute, dir(found))}")
        found = getattr(found, attribute)
    return found


def check_kwargs(cls: type, kwargs: Mapping[str, Any], by_caller: Collection[str], also: Iterable[str] = ()) -> None:
    """
    Refuse keyword arguments that a class does not take.

    :param cls: The class
    :param kwargs: Keyword arguments from a hyperparameter block
    :param by_caller: Parameters that the caller fills in itself
    :param also: Arguments that are valid without being the class's
    :raises PluginError: naming the first wrong one
    """
    parameters = inspect.signature(cls).parameters.values()
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    valid = [
        parameter.name
        for parameter in parameters
        if parameter.name not in by_caller and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    valid += also
    for key in kwargs:
        if key in by_caller or (key not in valid and not takes_anything):
            raise PluginError(
                f"{cls.__name__} has no argument {key!r} to set{did_you_mean(key, valid)} Valid: {', '.join(valid) or 'none'}"
            )


def check_importable(value: object) -> None:
    """
    Refuse a class that only exists inside a ``.py`` hyperparameter file: no other process could load the trained model.

    :param value: A hyperparameter
    :raises PluginError: if it is such a class
    """
    if not isinstance(value, type):
        return
    try:
        found = import_object(f"{value.__module__}:{value.__qualname__}")
    except PluginError:
        found = None
    if found is not value:
        raise PluginError(f"class {value.__qualname__} can't be imported from elsewhere; move it to a module")
