"""What a simulator of many environments is: the one thing that adapters, and users with a simulator of their own, write."""

from typing import Any, Literal, Protocol, TypeAlias

import gymnasium as gym
from gymnasium.vector import AutoresetMode

FinalObs: TypeAlias = Literal["exact", "none"]


class BatchSim(Protocol):
    """
    A simulator of many environments that are stepped together. Nothing needs to inherit from this.

    Arrays are tensors on any device, NumPy arrays, or others with DLPack. Actions come as NumPy arrays if observations are
    such, and otherwise as tensors. All are copied: a simulator may use its memory again, and write into actions. A
    ``gymnasium.vector.VectorEnv`` with ``final_obs`` is one.

    Optional attributes: ``max_episode_steps``, steps after which the simulator itself truncates an episode; ``render_mode``
    and ``render()``, which returns an image for each environment; ``close()``.
    """

    num_envs: int
    # Of one environment
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    # Whether the last observation of an episode can be had. Without it, values of truncated episodes are never bootstrapped
    final_obs: FinalObs
    # When an environment is reset whose episode has ended; also found as metadata["autoreset_mode"], gymnasium's place for it.
    # SAME_STEP: in the same step, which returns the first observation of the next episode, and the last one in info
    # NEXT_STEP: in the next step, which ignores the action
    # DISABLED: when it is asked to, by reset(options={"reset_mask": mask})
    autoreset_mode: AutoresetMode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        Reset all environments, or those of ``options["reset_mask"]`` if automatic resets are disabled.

        :param seed: Seed of all random generators, ``None`` to go on with them
        :param options: Options of this reset
        :return: observations of all environments, shape ``(num_envs, *obs_shape)``, or a dict of them for a Dict space; and an
            info
        """
        ...

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """
        Step all environments.

        :param actions: Actions. Shape: ``(num_envs, *action_shape)``
        :return: observations, shape ``(num_envs, *obs_shape)``; rewards, terminated and truncated, shape ``(num_envs,)``; and
            an info. With SAME_STEP and exact final observations, ``info["final_obs"]`` is like observations, and has to be
            there in each step; on the CPU, in those in which an episode has ended. Other entries of shape ``(num_envs, ...)``
            go to infos of environments
        """
        ...


def attribute(sim: Any, *names: str) -> Any:
    """
    Find an attribute of a simulator, through its wrappers.

    :param sim: The simulator
    :param names: Name of the attribute; an inner one of a mapping may follow
    :return: its value
    :raises AttributeError: naming what is missing
    """
    found = maybe_attribute(sim, *names)
    if found is None:
        raise AttributeError(f"{type(sim).__name__} has no {'.'.join(names)}, nor has what it wraps")
    return found


def maybe_attribute(sim: Any, *names: str) -> Any:
    """
    Find an attribute that may be missing.

    :param sim: The simulator
    :param names: Name of the attribute; an inner one of a mapping may follow
    :return: its value, ``None`` if there is none
    """
    name, *inner = names
    for holder in (sim, getattr(sim, "unwrapped", None)):
        value = getattr(holder, name, None)
        if value is None and hasattr(holder, "get_wrapper_attr"):
            value = _wrapper_attr(holder, name)
        for key in inner:
            value = value.get(key) if value is not None else None
        if value is not None:
            return value
    return None


def autoreset_mode(sim: Any) -> AutoresetMode:
    """
    Tell when a simulator resets.

    :param sim: The simulator
    :return: the mode
    :raises AttributeError: if it does not tell
    """
    mode = maybe_attribute(sim, "autoreset_mode")
    if mode is None:
        mode = maybe_attribute(sim, "metadata", "autoreset_mode")
    if mode is None:
        raise AttributeError(f"{type(sim).__name__} has neither autoreset_mode nor metadata['autoreset_mode']")
    return AutoresetMode(mode)


def _wrapper_attr(holder: Any, name: str) -> Any:
    try:
        return holder.get_wrapper_attr(name)
    except AttributeError:
        return None
