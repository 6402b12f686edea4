"""
Plugins are entry points: find them, load them, and say which one is to blame.

Three kinds, three groups: ``zoo_plugins.algos``, ``zoo_plugins.vec_envs`` and ``zoo_plugins.buffers``. The name of the entry
point is the word that users write in ``--algo`` or YAML. Finding them imports none of them.
"""

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

GROUPS = {"algos": "algorithm", "vec_envs": "vec env", "buffers": "buffer"}
OWN_DISTRIBUTION = "zoo-plugins"
OFF_SWITCH = "set ZOO_PLUGINS=0 to run rl_zoo3 without plugins"


class PluginError(SystemExit, ValueError):
    """
    A mistake of the user or of a plugin, told in one line.

    A ``ValueError`` to a program; uncaught, on a command line, the line alone and exit status 1, without a traceback.

    :param message: What is wrong; line breaks, which the messages of other libraries have, become spaces
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


@dataclass(frozen=True)
class AlgoSpec:
    """
    What the zoo has to know about an algorithm.

    Classes and functions may be given as ``"module:name"``, so that describing an algorithm does not import it.

    :param cls: The algorithm, a subclass of SB3's ``BaseAlgorithm``
    :param sampler: Samples hyperparameters for ``-optimize``, with the signature of those in ``rl_zoo3.hyperparams_opt``:
        ``(trial, n_actions, n_envs, additional_args) -> hyperparams``. ``None``: the algorithm can't be tuned
    :param converter: Inverse of the sampler's transformations, for ``--trial-id``: ``(trial.params) -> hyperparams``
    :param hyperparams: The default YAML: an absolute path, or ``"package:path"`` for a file inside the package or, in an
        editable install, beside it. ``None``: users must pass ``--conf-file``
    """

    cls: type | str
    sampler: Callable[..., dict[str, Any]] | str | None = None
    converter: Callable[[dict[str, Any]], dict[str, Any]] | str | None = None
    hyperparams: str | Path | None = None

    def load(self) -> "AlgoSpec":
        """
        Import everything that is named.

        :return: the same description, with objects instead of names and a path instead of ``"package:path"``
        :raises PluginError: if one of them does not exist
        """
        objects = {
            field: import_object(value)
            for field in ("cls", "sampler", "converter")
            if isinstance(value := getattr(self, field), str)
        }
        hyperparams = None if self.hyperparams is None else find_resource(str(self.hyperparams))
        return replace(self, **objects, hyperparams=hyperparams)


@dataclass(frozen=True)
class Plugin:
    """
    An entry point in one of our groups.

    :param group: "algos", "vec_envs" or "buffers"
    :param name: The word users write
    :param target: What it stands for, as ``"module:name"``
    :param distribution: Name of the distribution that registers it
    :param version: Version of that distribution
    :param extras: Extras of the distribution that it needs
    :param problem: Why it can't be used, ``None`` if nothing speaks against it
    """

    group: str
    name: str
    target: str
    distribution: str
    version: str
    extras: tuple[str, ...] = ()
    problem: str | None = None

    def load(self) -> Any:
        """
        Import what the entry point stands for.

        :return: the object
        :raises PluginError: if it can't be used, naming the distribution, the entry point and the cause
        """
        if self.problem is not None:
            raise self.error(self.problem)
        try:
            return import_object(self.target)
        except PluginError as error:
            if self.extras and isinstance(error.__cause__, ImportError):
                extra = ",".join(self.extras)
                raise self.error(f"{error}; install what it needs: pip install '{self.distribution}[{extra}]'") from error
            raise self.error(str(error)) from error

    def load_algo(self) -> AlgoSpec:
        """
        Import an algorithm, and all that the zoo has to know about it.

        :return: its description, complete with objects
        :raises PluginError: if it can't be used, naming the distribution, the entry point and the cause
        """
        spec = self.load()
        if isinstance(spec, type):
            spec = AlgoSpec(spec)
        if not isinstance(spec, AlgoSpec):
            raise self.error(f"an algorithm is registered as an AlgoSpec or a class, not as {type(spec).__name__}")
        try:
            return spec.load()
        except PluginError as error:
            raise self.error(str(error)) from error

    def error(self, cause: str) -> PluginError:
        """
        Blame this plugin.

        :param cause: What is wrong
        :return: the error to raise
        """
        return PluginError(
            f"{GROUPS[self.group]} {self.name!r} of {self.distribution} {self.version} "
            f"(entry point zoo_plugins.{self.group}: {self.name} = {self.target}) can't be used: {cause}"
        )


def find_plugins(group: str, reserved: Collection[str] = ()) -> list[Plugin]:
    """
    Find the plugins of a group, without importing them.

    :param group: "algos", "vec_envs" or "buffers"
    :param reserved: Names that plugins can't have, because they already mean something
    :return: the plugins, by name
    """
    plugins = []
    for entry_point in metadata.entry_points(group=f"zoo_plugins.{group}"):
        distribution = entry_point.dist
        match = entry_point.pattern.match(entry_point.value)
        match = match if match and match["attr"] else None
        plugins.append(
            Plugin(
                group,
                entry_point.name,
                f"{entry_point.module}:{entry_point.attr}" if match else entry_point.value,
                distribution.name if distribution else "unknown",
                distribution.version if distribution else "unknown",
                tuple(entry_point.extras) if match else (),
                None if match else "it is not written as 'module:name'",
            )
        )
    # Ours come first: a third party that claims one of our names can't take it away
    plugins.sort(key=lambda plugin: (plugin.name, plugin.distribution != OWN_DISTRIBUTION, plugin.distribution))
    return [_with_problem(plugin, plugins, reserved) for plugin in plugins]


def _with_problem(plugin: Plugin, plugins: list[Plugin], reserved: Collection[str]) -> Plugin:
    if plugin.name in reserved:
        return replace(plugin, problem=f"the name {plugin.name!r} is taken by the zoo itself")
    if plugin.distribution == OWN_DISTRIBUTION:
        return plugin
    rivals = [other.distribution for other in plugins if other.name == plugin.name and other is not plugin]
    if rivals:
        return replace(plugin, problem=f"the name {plugin.name!r} is registered by {' and '.join(rivals)} too")
    return plugin


def resolve(group: str, value: object, builtin: Mapping[str, type] | None = None) -> type:
    """
    Turn the value of a YAML key into a class.

    :param group: "vec_envs" or "buffers"
    :param value: A registered name, ``"module:Class"``, a dotted path, or a class
    :param builtin: Names that the zoo itself understands
    :return: the class
    :raises PluginError: if there is no such class, with a close match; or if its plugin is broken
    """
    builtin = builtin or {}
    if isinstance(value, type):
        return value
    if not isinstance(value, str):
        raise PluginError(f"expected the name of a {GROUPS[group]}, not {value!r}")
    if value in builtin:
        return builtin[value]
    plugins = find_plugins(group)
    found = next((plugin.load() for plugin in plugins if plugin.name == value), None)
    if found is None:
        if "." not in value and ":" not in value:
            raise PluginError(_unknown(group, value, [*builtin, *(plugin.name for plugin in plugins)]))
        found = import_object(value)
    if not isinstance(found, type):
        raise PluginError(f"{value!r} is not a class, but {found!r}")
    return found


def _unknown(group: str, value: str, names: Iterable[str]) -> str:
    names = sorted(names)
    message = f"unknown {GROUPS[group]} {value!r}{did_you_mean(value, names)}"
    if value in (metadata.metadata(OWN_DISTRIBUTION).get_all("Provides-Extra") or []):
        message += f" It may need an extra: pip install '{OWN_DISTRIBUTION}[{value}]'."
    return f"{message} Valid: {', '.join(names)}, or a class as my_package.my_module.MyClass"


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """
    Suggest a correction.

    :param word: What was written
    :param words: What could have been meant
    :return: a sentence to append to an error message
    """
    close = difflib.get_close_matches(word, list(words), n=1)
    return f", did you mean {close[0]!r}?" if close else "."


def import_object(name: str) -> Any:
    """
    Import an object by name.

    :param name: ``"module:name"`` or a dotted path
    :return: the object
    :raises PluginError: if it can't be imported; its ``__cause__`` is the original exception
    """
    module_name, separator, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    if not separator or not module_name or not attribute:
        raise PluginError(f"{name!r} is neither 'module:name' nor a dotted path")
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a plugin may do anything while it is imported
        raise PluginError(f"importing {module_name!r} failed with {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            hint = did_you_mean(attribute, dir(found))
            raise PluginError(f"module {module_name!r} has no {attribute!r}{hint}") from error
        except Exception as error:  # a module may import lazily, with a __getattr__
            raise PluginError(f"importing {name!r} failed with {type(error).__name__}: {error}") from error
    return found


def find_resource(name: str) -> Path:
    """
    Find a file that comes with a package.

    :param name: An absolute path, or ``"package:path"``
    :return: where the file is: inside the package, or beside it (an editable install of a project that keeps its
        YAML files at top level)
    :raises PluginError: if there is no such file
    """
    if Path(name).is_absolute():
        candidates = [Path(name)]
    else:
        package, _, relative = name.partition(":")
        try:
            spec = importlib.util.find_spec(package) if relative else None
        except Exception:  # of a parent package that is missing or broken
            spec = None
        folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
        candidates = [base / relative for folder in folders for base in (folder, folder.parent)]
    for path in candidates:
        if path.is_file():
            return path
    raise PluginError(f"{name!r} is not a file")
