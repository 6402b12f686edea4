"""Names in a hyperparameter block, and the classes they stand for."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins import registry, zoo
from zoo_plugins.callbacks import GRADIENT_STEPS_FORMS, UPDATE_RATIO_FORMS, read_gradient_steps, read_update_ratio
from zoo_plugins.config import Block, check_importable, check_kwargs, parse_kwargs
from zoo_plugins.registry import PluginError, did_you_mean

# Keys of a hyperparameter block that are not parameters of the algorithm: the zoo's, then ours
ZOO_KEYS = (
    "n_timesteps",
    "n_envs",
    "normalize",
    "frame_stack",
    "env_wrapper",
    "vec_env_wrapper",
    "callback",
    "env_kwargs",
    "monitor_kwargs",
    "noise_type",
    "noise_std",
)
OWN_KEYS = ("vec_env_class", "vec_env_kwargs", "update_ratio", "search_space")
OFF_POLICY_KEYS = ("update_ratio",)
# What a search can't change: the budget of all its trials, and itself
NOT_SEARCHED = ("n_timesteps", "callback", "search_space")
# Types of keys that are not in a signature
KINDS = {"n_envs": "int", "frame_stack": "int", "noise_std": "float", "update_ratio": "float"}
# Two ways to say how many updates are made, of which a block can have one
UPDATE_RULES = ("gradient_steps", "update_ratio")
# Parameters of the constructors that are filled in by the zoo, or by the algorithm
ALGO_BY_CALLER = ("env", "tensorboard_log", "seed", "verbose", "device", "_init_setup_model")
POLICY_BY_CALLER = ("observation_space", "action_space", "lr_schedule")
BUFFER_BY_CALLER = (
    "buffer_size",
    "observation_space",
    "action_space",
    "hidden_state_shape",
    "device",
    "env",
    "gae_lambda",
    "gamma",
    "n_envs",
    "optimize_memory_usage",
)
VEC_ENV_BY_CALLER = ("env_fns",)


def check_keys(block: Block, algo_class: type[BaseAlgorithm]) -> None:
    """
    Refuse keys that mean nothing for an algorithm.

    :param block: The hyperparameters
    :param algo_class: The algorithm
    :raises PluginError: naming the first wrong or missing key
    """
    parameters = inspect.signature(algo_class).parameters.values()
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    required = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    block.check_keys(
        valid=[
            *(parameter.name for parameter in parameters),
            *ZOO_KEYS,
            *(key for key in OWN_KEYS if key not in OFF_POLICY_KEYS or issubclass(algo_class, OffPolicyAlgorithm)),
            *(block.values if takes_anything else ()),
        ],
        required=["n_timesteps", *(name for name in required if name not in ALGO_BY_CALLER)],
        by_caller=ALGO_BY_CALLER,
    )


def choose_vec_env(block: Block, default: type) -> tuple[type, dict[str, Any]]:
    """
    Take ``vec_env_class`` and ``vec_env_kwargs`` out of a block.

    :param block: The hyperparameters
    :param default: The class if none is named
    :return: the class and its keyword arguments
    :raises PluginError: if there is no such VecEnv, or it does not take the arguments
    """
    cls = _choose_class(block, "vec_env_class", "vec_envs", VecEnv) or default

    def read_kwargs(value: object) -> dict[str, Any]:
        kwargs = parse_kwargs(value)
        check_kwargs(cls, kwargs, VEC_ENV_BY_CALLER)
        return kwargs

    return cls, block.pop("vec_env_kwargs", read_kwargs) or {}


def choose_policy(block: Block, algo_class: type[BaseAlgorithm], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """
    Take ``policy`` and ``policy_kwargs`` out of a block.

    :param block: The hyperparameters. ``policy_kwargs`` stays in it if it is code
    :param algo_class: The algorithm, which knows policies by short names
    :param namespace: Objects that ``policy_kwargs`` may refer to by name
    :return: what was found, with classes in place of names; short names of policies stay
    :raises PluginError: if there is no such class, or the policy does not take the arguments
    """
    aliases: dict[Any, Any] = algo_class.policy_aliases

    def choose(value: object) -> object:
        check_importable(value)
        if not isinstance(value, str) or value in aliases:
            return value
        if "." in value or ":" in value:
            return registry.import_object(value)
        raise PluginError(
            f"{algo_class.__name__} has no policy {value!r}{did_you_mean(value, aliases)} Valid: {', '.join(aliases)}, "
            "or a class as my_package.my_module.MyPolicy"
        )

    policy = block.pop("policy", choose)

    def read_kwargs(value: object) -> dict[str, Any]:
        kwargs = parse_kwargs(value, namespace)
        for key, item in kwargs.items():
            if isinstance(item, str) and key.endswith(("_class", "_fn")):
                kwargs[key] = parse_kwargs(f"dict({key}={item.replace(':', '.')})", namespace)[key]
            check_importable(kwargs[key])
        own = _check_own_policy_kwargs(algo_class, kwargs)
        cls = aliases.get(policy, policy)
        if isinstance(cls, type):
            check_kwargs(cls, kwargs, POLICY_BY_CALLER, also=own)
        return kwargs

    policy_kwargs = block.pop("policy_kwargs", read_kwargs, leave_code=True)
    return _given(policy=policy, policy_kwargs=policy_kwargs)


def _check_own_policy_kwargs(algo_class: type[BaseAlgorithm], kwargs: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
    """
    Check the keys of ``policy_kwargs`` that an algorithm reads itself.

    :param algo_class: The algorithm; its ``own_policy_kwargs``, if any, are such keys and the words that they take
    :param kwargs: The ``policy_kwargs``
    :return: the keys, and their words
    :raises PluginError: if one has another value
    """
    own: Mapping[str, tuple[str, ...]] = getattr(algo_class, "own_policy_kwargs", {})
    for key, valid in own.items():
        value = kwargs.get(key, valid[0])
        if value not in valid:
            raise PluginError(f"{key}: unknown value {value!r}{did_you_mean(str(value), valid)} Valid: {', '.join(valid)}")
    return own


def choose_buffers(block: Block, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """
    Take the class and keyword arguments of the replay or rollout buffer out of a block.

    :param block: The hyperparameters. ``replay_buffer_kwargs`` stays in it if it is code
    :param namespace: Objects that keyword arguments may refer to by name
    :return: what was found, with classes in place of names
    :raises PluginError: if there is no such buffer, or it does not take the arguments
    """
    found: dict[str, Any] = {}
    for kind, base in (("replay_buffer", ReplayBuffer), ("rollout_buffer", RolloutBuffer)):
        cls = _choose_class(block, f"{kind}_class", "buffers", base)

        def read_kwargs(value: object, cls: type = cls or base) -> dict[str, Any]:
            kwargs = parse_kwargs(value, namespace)
            check_kwargs(cls, kwargs, BUFFER_BY_CALLER)
            return kwargs

        # Upstream evaluates replay_buffer_kwargs, and does not know the other
        kwargs = block.pop(f"{kind}_kwargs", read_kwargs, leave_code=kind == "replay_buffer")
        found.update(_given(**{f"{kind}_class": cls, f"{kind}_kwargs": kwargs}))
    return found


def choose_update_ratio(block: Block, algo_class: type[BaseAlgorithm]) -> float | None:
    """
    Take ``update_ratio`` out of the block of an off-policy algorithm, and check what else says how often it learns.

    :param block: The hyperparameters. ``gradient_steps`` and ``train_freq`` stay in it
    :param algo_class: The algorithm
    :return: updates per transition, ``None`` if the block does not say
    :raises PluginError: if one of the three is wrong, or ``gradient_steps`` and ``update_ratio`` are both there
    """
    if not issubclass(algo_class, OffPolicyAlgorithm):
        return None
    if all(block.values.get(key) is not None for key in UPDATE_RULES):
        raise block.error("update_ratio", "gradient_steps is there too, and only one of them can be given")
    checked = {
        "gradient_steps": block.pop("gradient_steps", _checked(read_gradient_steps, GRADIENT_STEPS_FORMS)),
        "train_freq": block.pop("train_freq", _check_train_freq(block.values.get("n_envs") or 1)),
    }
    block.values.update(_given(**checked))
    return block.pop("update_ratio", _checked(read_update_ratio, UPDATE_RATIO_FORMS))


def overruled_key(block: Mapping[str, Any], command_line: Mapping[str, Any], searched: Mapping[str, Any] | None = None) -> str:
    """
    Tell which of ``gradient_steps`` and ``update_ratio`` gives way to the other.

    The command line wins over a search space, that over the file, and the file's ``update_ratio`` over the ``gradient_steps``
    of a sampler, whose trial ran with that very ratio.

    :param block: The hyperparameters of the file
    :param command_line: Those of the command line
    :param searched: Those of a search space
    :return: the key to leave out, empty if neither gives way
    """
    for source in (command_line, searched or {}, {**block, **command_line}):
        given = [key for key in UPDATE_RULES if source.get(key) is not None]
        if given:
            return next((key for key in UPDATE_RULES if key not in given), "")
    return ""


def searchable(
    block: Block, algo_class: type[BaseAlgorithm], vec_env_class: type
) -> tuple[Mapping[str, str], Callable[[str], bool]]:
    """
    List what a ``search_space`` can name.

    :param block: The hyperparameters, of which all others are right
    :param algo_class: The algorithm
    :param vec_env_class: The class of VecEnv if none is named
    :return: types by name, ``policy_kwargs.net_arch`` for an entry of a map; and whether another name may mean something
    """
    parameters = inspect.signature(algo_class).parameters
    own = [key for key in OWN_KEYS if key not in OFF_POLICY_KEYS or issubclass(algo_class, OffPolicyAlgorithm)]
    kinds = {**_kinds(algo_class, ALGO_BY_CALLER), **{key: KINDS.get(key, "") for key in (*ZOO_KEYS, *own)}}
    for key in NOT_SEARCHED:
        kinds.pop(key, None)
    groups = {key for key in kinds if key.endswith("_kwargs")}
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    values = block.values
    policy: Any = values.get("policy")
    policy = algo_class.policy_aliases.get(policy, policy)
    classes: list[tuple[str, Any, Collection[str]]] = [
        ("policy_kwargs", registry.import_object(policy) if isinstance(policy, str) else policy, POLICY_BY_CALLER),
        ("vec_env_kwargs", _resolve(values, "vec_env_class", "vec_envs") or vec_env_class, VEC_ENV_BY_CALLER),
    ]
    for kind, base in (("replay_buffer", ReplayBuffer), ("rollout_buffer", RolloutBuffer)):
        classes.append((f"{kind}_kwargs", _resolve(values, f"{kind}_class", "buffers") or base, BUFFER_BY_CALLER))
    for group, cls, by_caller in classes:
        if group in groups and isinstance(cls, type):
            kinds.update({f"{group}.{name}": kind for name, kind in _kinds(cls, by_caller).items()})
    kinds.update({f"policy_kwargs.{key}": "" for key in getattr(algo_class, "own_policy_kwargs", {})})
    # What the classes take is checked with the values
    return kinds, lambda name: name.partition(".")[0] in groups or (takes_anything and name not in NOT_SEARCHED)


def _kinds(cls: Any, by_caller: Collection[str]) -> dict[str, str]:
    return {
        name: str(parameter.annotation)
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in by_caller and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _resolve(values: Mapping[str, Any], key: str, group: str) -> type | None:
    value = values.get(key)
    return None if value is None else registry.resolve(group, value, zoo.words(group))


def _checked(read: Callable[[object], object], forms: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        try:
            read(value)
        except ValueError as error:
            raise PluginError(f"expected {forms}") from error
        return value

    return check


def _check_train_freq(n_envs: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        frequency, unit = value if isinstance(value, list | tuple) and len(value) == 2 else (value, "step")
        try:
            unit = TrainFrequencyUnit(unit)
        except ValueError:
            frequency = 0
        if type(frequency) is not int or frequency < 1:
            raise PluginError("expected a whole number of steps, at least 1, or [<number>, step] or [<number>, episode]")
        if unit is TrainFrequencyUnit.EPISODE and n_envs > 1:
            raise PluginError(
                f"episodes need n_envs: 1, because those of several environments end at different times, not {n_envs}; "
                "use steps"
            )
        return value

    return check


def _choose_class(block: Block, key: str, group: str, base: type) -> type | None:
    def choose(value: object) -> type:
        check_importable(value)
        cls = registry.resolve(group, value, zoo.words(group))
        if not issubclass(cls, base):
            raise PluginError(f"{cls.__name__} is not a subclass of SB3's {base.__name__}")
        return cls

    return block.pop(key, choose)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
