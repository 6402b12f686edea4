"""
What we know about rl_zoo3's internals, but for its experiment manager (see :mod:`zoo_plugins.exp_manager`).

Written against rl_zoo3 2.9.2. ``tests/test_zoo_contract.py`` asserts each place that is leaned on.
"""

import ast
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from zoo_plugins import registry
from zoo_plugins.registry import OFF_SWITCH, AlgoSpec, PluginError

TESTED_VERSIONS = ((2, 9), (3, 0))  # from, up to but not including

# Functions and methods that we wrap, override or rely on, with the parameters they must have
SEAMS: dict[str, dict[str, tuple[str, ...]]] = {
    "rl_zoo3.utils": {
        "get_saved_hyperparams": ("stats_path", "norm_reward", "test_mode"),
        "create_test_env": ("env_id", "n_envs", "stats_path", "seed", "log_dir", "should_render", "hyperparams", "env_kwargs"),
    },
    "rl_zoo3.exp_manager": {
        "ExperimentManager.__init__": ("self", "args", "algo", "env_id", "log_folder"),
        "ExperimentManager.setup_experiment": ("self",),
        "ExperimentManager.read_hyperparameters": ("self",),
        "ExperimentManager._preprocess_hyperparams": ("self", "hyperparams"),
        "ExperimentManager._preprocess_action_noise": ("self", "hyperparams", "saved_hyperparams", "env"),
        "ExperimentManager._save_config": ("self", "saved_hyperparams"),
        "ExperimentManager.create_callbacks": ("self",),
        "ExperimentManager.learn": ("self", "model"),
        "ExperimentManager.create_envs": ("self", "n_envs", "eval_env", "no_log"),
        "ExperimentManager.load_trial": ("self", "storage", "study_name", "trial_id", "convert"),
        "ExperimentManager.objective": ("self", "trial"),
        "ExperimentManager._create_sampler": ("self", "sampler_method"),
        "ExperimentManager._create_pruner": ("self", "pruner_method"),
        "ExperimentManager.hyperparameters_optimization": ("self",),
    },
}

# Words of the zoo's own YAML files and flags, and what they stand for
WORDS = {
    "vec_envs": {
        "dummy": "stable_baselines3.common.vec_env:DummyVecEnv",
        "subproc": "stable_baselines3.common.vec_env:SubprocVecEnv",
    },
    "buffers": {"HerReplayBuffer": "stable_baselines3:HerReplayBuffer"},
}

# Our algorithms and those of third parties, as far as they could be loaded
SPECS: dict[str, AlgoSpec] = {}

# Modules that are extended, and why the rest was left alone, once it was
_extended: set[str] = set()
_given_up: str | None = None

# The environment that a script of the zoo has made to show an agent in, until the agent is loaded
_viewing_env: Any = None


class HerKwargs(dict[str, Any]):
    """Keyword arguments of a replay buffer that is a subclass of ``HerReplayBuffer``, marked for the samplers."""


def extend(module: ModuleType) -> None:
    """
    Extend a module of rl_zoo3 that has just been executed. Doing it twice changes nothing.

    :param module: ``rl_zoo3.utils`` or ``rl_zoo3.exp_manager``
    """
    global _given_up
    if module.__name__ not in SEAMS or module.__name__ in _extended or _given_up is not None:
        return
    _given_up = _version_problem(sys.modules["rl_zoo3"].__version__) or _seam_problem(module)
    if _given_up is None:
        step = _extend_utils if module.__name__ == "rl_zoo3.utils" else _extend_exp_manager
        try:
            if step(module):
                _extended.add(module.__name__)
        except Exception as error:
            _given_up = f"zoo_plugins {_own_version()} could not extend {module.__name__}: {type(error).__name__}: {error}"
    if _given_up is not None:
        warnings.warn(f"{_given_up}. It runs without plugins: update zoo-plugins, or {OFF_SWITCH}", stacklevel=2)
        _withdraw_algos()


def _version_problem(version: str) -> str | None:
    first, end = TESTED_VERSIONS
    if first <= tuple(int(part) for part in version.split(".")[:2]) < end:
        return None
    return f"zoo_plugins {_own_version()} works with rl_zoo3 >={_dotted(first)},<{_dotted(end)}, but found rl_zoo3 {version}"


def _seam_problem(module: ModuleType) -> str | None:
    for name, expected in SEAMS[module.__name__].items():
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None or tuple(inspect.signature(found).parameters)[: len(expected)] != expected:
            return (
                f"{module.__name__}.{name} of rl_zoo3 {sys.modules['rl_zoo3'].__version__} "
                f"is not the one that zoo_plugins {_own_version()} knows"
            )
    return None


def _withdraw_algos() -> None:
    utils: Any = sys.modules["rl_zoo3.utils"]
    for name in SPECS:
        utils.ALGOS.pop(name, None)
    SPECS.clear()
    if "rl_zoo3.utils" in _extended:
        for function in ("get_saved_hyperparams", "create_test_env"):
            setattr(utils, function, getattr(utils, function).__wrapped__)


def why_not_extended() -> str | None:
    """
    Import what is extended of rl_zoo3, after ``_startup.install()``.

    :return: why it was left as it is, None if it was extended
    """
    for name in SEAMS:
        import_module(name)
    if _given_up is None and not _extended.issuperset(SEAMS):
        return f"{' and '.join(sorted(set(SEAMS) - _extended))} could not be extended"
    return _given_up


def load_algo(plugin: registry.Plugin) -> AlgoSpec:
    """
    Import an algorithm, and look whether the zoo can use it.

    :param plugin: The plugin
    :return: its description, complete with objects
    :raises PluginError: if it can't be used, naming the distribution, the entry point and the cause
    """
    from stable_baselines3.common.base_class import BaseAlgorithm

    spec = plugin.load_algo()
    if not isinstance(spec.cls, type) or not issubclass(spec.cls, BaseAlgorithm):
        raise plugin.error(f"{spec.cls!r} is not a subclass of SB3's BaseAlgorithm")
    return spec


def _extend_utils(utils: Any) -> bool:
    for plugin in registry.find_plugins("algos", reserved=tuple(utils.ALGOS)):
        try:
            spec = load_algo(plugin)
        except PluginError as error:
            warnings.warn(f"{error}; uninstall {plugin.distribution}, or {OFF_SWITCH}", stacklevel=2)
            continue
        SPECS[plugin.name] = spec
        # In place: every script of the zoo holds this dict
        utils.ALGOS[plugin.name] = _with_masks_for_viewing(_with_small_buffer_for_viewing(spec.cls))
    # Every script of the zoo finds our environments by their ids
    import_module("zoo_plugins.envs")
    utils.get_saved_hyperparams = _with_her_named(utils.get_saved_hyperparams)
    utils.create_test_env = _with_env_remembered(utils.create_test_env)
    return True


def _extend_exp_manager(exp_manager: Any) -> bool:
    plugin_manager = import_module("zoo_plugins.exp_manager")
    if not hasattr(plugin_manager, "PluginExperimentManager"):
        return False  # it is being imported, and calls again when it is complete
    if exp_manager.ExperimentManager is plugin_manager.PluginExperimentManager:
        return True  # it has just called
    exp_manager.ExperimentManager = plugin_manager.PluginExperimentManager
    samplers, converters = exp_manager.HYPERPARAMS_SAMPLER, exp_manager.HYPERPARAMS_CONVERTER
    samplers.update({name: spec.sampler for name, spec in SPECS.items() if spec.sampler is not None})
    converters.update({name: spec.converter for name, spec in SPECS.items() if spec.converter is not None})
    for table in (samplers, converters):
        table.update({name: _with_ratio_of_one_env(function) for name, function in table.items() if _is_of_zoo(function)})
    samplers.update({name: for_trials(sampler) for name, sampler in samplers.items()})
    return True


def words(group: str) -> dict[str, type]:
    """
    Import what the zoo's own words stand for.

    :param group: "vec_envs" or "buffers"
    :return: classes by name
    """
    return {word: registry.import_object(target) for word, target in WORDS[group].items()}


def for_trials(sampler: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """
    Let a sampler sample HER parameters for subclasses of ``HerReplayBuffer``, which upstream compares with ``==``, and leave
    what a ``search_space`` decides to it.

    :param sampler: One of the zoo's samplers, or of a plugin's
    :return: the sampler to use instead
    """

    @functools.wraps(sampler)
    def sample(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
        if isinstance(additional_args["her_kwargs"], HerKwargs):
            additional_args = {**additional_args, "using_her_replay_buffer": True}

        def sample_all() -> dict[str, Any]:
            return sampler(trial, n_actions, n_envs, additional_args)

        # A trial of our experiment manager
        return trial.sample(sample_all) if hasattr(trial, "sample") else sample_all()

    return sample


@for_trials
def sample_nothing(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Stand in for a sampler, where an algorithm has none and there is a ``search_space``.

    :param trial: Not used
    :param n_actions: Not used
    :param n_envs: Not used
    :param additional_args: Not used
    :return: nothing
    """
    return {}


def _is_of_zoo(function: Callable[..., Any]) -> bool:
    return function.__module__ == "rl_zoo3.hyperparams_opt"


def _with_ratio_of_one_env(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """
    Let the ``gradient_steps`` of a trial follow ``n_envs``; upstream's give the ratio that is meant with one environment only.

    :param function: One of the zoo's samplers or converters
    :return: the function to use instead
    """

    @functools.wraps(function)
    def hyperparams_for_any_n_envs(*args: Any, **kwargs: Any) -> dict[str, Any]:
        hyperparams = function(*args, **kwargs)
        if "gradient_steps" in hyperparams:
            hyperparams["gradient_steps"] = f"{hyperparams['gradient_steps']} * n_envs"
        return hyperparams

    return hyperparams_for_any_n_envs


def _with_her_named(get_saved_hyperparams: Callable[..., Any]) -> Callable[..., Any]:
    """
    Name ``HerReplayBuffer`` in the saved ``replay_buffer_class``, where enjoy.py looks for that text.

    It passes the environment, without which no HER model can be loaded, only if it finds it,
    and fails on a class object. What is in the file stays as it is.

    :param get_saved_hyperparams: The zoo's function
    :return: the function to use instead
    """

    @functools.wraps(get_saved_hyperparams)
    def get_saved_hyperparams_for_viewing(*args: Any, **kwargs: Any) -> Any:
        hyperparams, stats_path = get_saved_hyperparams(*args, **kwargs)
        value = hyperparams.get("replay_buffer_class")
        if value is not None:
            hyperparams["replay_buffer_class"] = _her_text(value)
        return hyperparams, stats_path

    return get_saved_hyperparams_for_viewing


def _her_text(value: Any) -> str:
    from stable_baselines3 import HerReplayBuffer

    text = f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)
    cls = registry.resolve("buffers", value, words("buffers"))
    if issubclass(cls, HerReplayBuffer) and "HerReplayBuffer" not in text:
        text += " (HerReplayBuffer)"
    return text


def _with_small_buffer_for_viewing(cls: Any) -> Any:
    """
    Load off-policy plugins with a buffer of one transition where the zoo only looks at the agent.

    enjoy.py, record_video.py and push_to_hub.py do so for a literal list of names.

    :param cls: The algorithm
    :return: the algorithm, or a subclass of the same name
    """
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

    if not issubclass(cls, OffPolicyAlgorithm):
        return cls

    class Viewed(cls):
        @classmethod
        def load(cls, *args: Any, custom_objects: dict[str, Any] | None = None, **kwargs: Any) -> Any:
            if _is_viewing(custom_objects):
                kwargs.setdefault("buffer_size", 1)
            return super().load(*args, custom_objects=custom_objects, **kwargs)

    return _under_name_of(cls, Viewed)


def _with_env_remembered(create_test_env: Callable[..., Any]) -> Callable[..., Any]:
    """
    Remember the environment in which a script of the zoo will show the agent that it loads next.

    :param create_test_env: The zoo's function
    :return: the function to use instead
    """

    @functools.wraps(create_test_env)
    def create_env_for_viewing(*args: Any, **kwargs: Any) -> Any:
        global _viewing_env
        _viewing_env = create_test_env(*args, **kwargs)
        return _viewing_env

    return create_env_for_viewing


def _with_masks_for_viewing(cls: Any) -> Any:
    """
    Let agents that need action masks ask the environment where the zoo only looks at them: its scripts pass no masks.

    An algorithm that masks actions has a method ``with_masks_of(env)``, which returns what those scripts call ``predict`` of.

    :param cls: The algorithm
    :return: the algorithm, or a subclass of the same name
    """
    if not hasattr(cls, "with_masks_of"):
        return cls

    class Viewed(cls):
        @classmethod
        def load(cls, *args: Any, custom_objects: dict[str, Any] | None = None, **kwargs: Any) -> Any:
            global _viewing_env
            model = super().load(*args, custom_objects=custom_objects, **kwargs)
            env, _viewing_env = _viewing_env, None
            return model.with_masks_of(env) if env is not None and _is_viewing(custom_objects) else model

    return _under_name_of(cls, Viewed)


def _is_viewing(custom_objects: dict[str, Any] | None) -> bool:
    # Scripts that only look at an agent pass a schedule that learns nothing, or an empty dict
    return custom_objects == {} or "lr_schedule" in (custom_objects or ())


def _under_name_of(cls: type, subclass: type) -> type:
    subclass.__module__, subclass.__name__, subclass.__qualname__ = cls.__module__, cls.__name__, cls.__qualname__
    return subclass


def reserved_names(group: str) -> tuple[str, ...]:
    """
    List the names that plugins can't have, without importing the zoo.

    :param group: "algos", "vec_envs" or "buffers"
    :return: names that mean something to the zoo itself
    """
    return _upstream_algos() if group == "algos" else tuple(WORDS[group])


def _upstream_algos() -> tuple[str, ...]:
    tree = ast.parse(registry.find_resource("rl_zoo3:utils.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ALGOS" and isinstance(node.value, ast.Dict):
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    return ()


def _own_version() -> str:
    return str(import_module("zoo_plugins").__version__)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
