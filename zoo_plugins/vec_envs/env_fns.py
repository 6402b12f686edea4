"""What functions that make environments would make: one batched environment takes the place of all of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from stable_baselines3.common.monitor import Monitor

EnvFns: TypeAlias = Sequence[Callable[[], gym.Env[Any, Any]]]
# What a batched environment does itself
WITH_TWIN = {
    "Monitor": Monitor,
    "TimeLimit": TimeLimit,
    "OrderEnforcing": OrderEnforcing,
    "PassiveEnvChecker": PassiveEnvChecker,
}


class Made(NamedTuple):
    """
    What a function would make.

    :param env_id: Id of the environment
    :param kwargs: Its keyword arguments, those of its registration included
    """

    env_id: str
    kwargs: dict[str, Any]


def made_by(env_fns: EnvFns, vec_env: str) -> Made:
    """
    Make one environment and look at it.

    :param env_fns: Functions that make an environment each, all the same one
    :param vec_env: What asks, for messages
    :return: what the first one makes
    :raises ValueError: if it can't be had in a batch
    """
    if not env_fns:
        raise ValueError("env_fns: at least one environment is needed")
    env = outer = env_fns[0]()
    try:
        kwargs: dict[str, Any] = {}
        while isinstance(env, gym.Wrapper):
            # Not their subclasses, which do more; but for the one that the zoo puts in the place of gymnasium's TimeLimit
            if type(env) not in (*WITH_TWIN.values(), gym.wrappers.TimeLimit):
                raise ValueError(
                    f"{vec_env} can't apply {type(env).__name__} to a batch of environments: only "
                    f"{', '.join(WITH_TWIN)} are built in. Wrap the VecEnv instead (normalize, "
                    "frame_stack, vec_env_wrapper), or use another VecEnv"
                )
            if isinstance(env, TimeLimit):
                kwargs["max_episode_steps"] = env._max_episode_steps
            env = env.env
        if env.spec is None:
            raise ValueError(f"{vec_env} needs an environment that is registered: {type(env).__name__} was made without an id")
        return Made(env.spec.id, {**env.spec.kwargs, **kwargs})
    finally:
        outer.close()
