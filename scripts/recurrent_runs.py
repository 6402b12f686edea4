"""What benchmarks of PPO share, recurrent or not: hyperparameters and models."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from zoo_plugins.registry import PluginError, find_resource

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

    Algorithm = TypeVar("Algorithm", bound=OnPolicyAlgorithm)

UPSTREAM_FILE = "rl_zoo3:hyperparams/ppo_lstm.yml"
OUR_FILE = "zoo_plugins:hyperparams/ppo_lstm_seq.yml"


def read_hyperparams(file: str, env_id: str) -> dict[str, Any]:
    """
    Read the block of an environment.

    :param file: Hyperparameter file, as "package:path"
    :param env_id: The environment
    :return: its hyperparameters, as they are in the file
    :raises PluginError: if the file has no such block
    """
    blocks = yaml.safe_load(find_resource(file).read_text())
    if env_id not in blocks:
        raise PluginError(f"{file} has no hyperparameters for {env_id}")
    return dict(blocks[env_id])


def make_model(
    cls: "type[Algorithm]",
    env_id: str,
    hyperparams: dict[str, Any],
    seed: int,
    wrapper_class: "Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None" = None,
    vec_env_cls: "type[VecEnv] | None" = None,
) -> "Algorithm":
    """
    Make a model as the zoo does, on a VecEnv of this process and on the CPU.

    :param cls: The algorithm
    :param env_id: The environment
    :param hyperparams: Its hyperparameters, as they are in a file of the zoo
    :param seed: Random seed
    :param wrapper_class: Wrapper of each environment
    :param vec_env_cls: Class of the VecEnv; None: DummyVecEnv
    :return: the model
    :raises PluginError: naming a hyperparameter that is not supported here
    """
    import rl_zoo3.import_envs  # noqa: F401  # registers the environments without velocities
    from rl_zoo3.utils import SimpleLinearSchedule
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from zoo_plugins.config import SCHEDULES, Block, parse_kwargs

    block = Block(hyperparams, f"the hyperparameters of {env_id}")
    block.check_keys(
        [*inspect.signature(cls).parameters, "n_timesteps", "n_envs", "normalize"],
        required=["policy"],
        by_caller=("env", "seed", "device"),
    )
    block.check_numbers()
    values = block.values
    values.pop("n_timesteps", None)
    normalize = values.pop("normalize", False)
    for key in SCHEDULES:
        if isinstance(values.get(key), str):
            values[key] = SimpleLinearSchedule(values[key].removeprefix("lin_"))
    values["policy_kwargs"] = parse_kwargs(values.get("policy_kwargs") or {})

    make_env: Any = make_vec_env  # which knows two classes of VecEnvs only
    n_envs = values.pop("n_envs", 1)
    env: VecEnv = make_env(env_id, n_envs, seed=seed, wrapper_class=wrapper_class, vec_env_cls=vec_env_cls)
    if normalize:
        kwargs = {} if normalize is True else parse_kwargs(normalize)
        if "gamma" in values:
            kwargs["gamma"] = values["gamma"]
        env = VecNormalize(env, **kwargs)
    make: Any = cls
    model: Algorithm = make(env=env, seed=seed, device="cpu", **values)
    return model
