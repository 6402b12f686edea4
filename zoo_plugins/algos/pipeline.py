"""Act on one half of the environments while the other half is stepped."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from zoo_plugins.vec_envs.arrays import concatenate


class Acted(NamedTuple):
    """
    What a recurrent policy did in one step.

    :param actions: Actions. Shape: (n_envs, *action_shape)
    :param clipped_actions: What environments get
    :param latent: Latents of actor and critic. Shape of each: (n_envs, hidden_size)
    :param lstm_states: LSTM states after the step. Shape of each: (n_layers, n_envs, hidden_size)
    """

    actions: np.ndarray
    clipped_actions: np.ndarray
    latent: tuple[Any, Any]
    lstm_states: Any


# Chooses actions, from observations, LSTM states, and where to reset these first
Act: TypeAlias = Callable[[Any, Any, np.ndarray], Acted]


def can_pipeline(env: VecEnv) -> bool:
    """
    Find out whether the environments can be stepped in parts.

    :param env: The training environment
    :return: whether they can
    :raises ValueError: if they could, were there no wrapper that sees whole steps only
    """
    if len(getattr(env.unwrapped, "parts", ())) < 2:
        return False
    if env is not env.unwrapped:
        raise ValueError(
            f"pipeline=True of {type(env.unwrapped).__name__}: {type(env).__name__} around it needs whole steps. "
            "Wrap each environment instead (NormalizeObservation of gymnasium, in place of normalize), or leave pipeline out"
        )
    return True


class Pipeline:
    """
    Steps a VecEnv in parts: while one is stepped, actions are chosen for the next.

    Each environment gets the actions that were chosen for its own last observation, as always. What callbacks see is a step
    of all environments, the last parts of which have started with their next step by then.

    :param env: The training environment, with ``parts``
    :param act: Chooses actions
    :param obs: Last observations. Shape: (n_envs, *obs_shape), a dict of them for Dict spaces
    :param lstm_states: LSTM states before the step. Shape of each: (n_layers, n_envs, hidden_size)
    :param episode_starts: Where to reset them first. Shape: (n_envs,)
    """

    def __init__(self, env: Any, act: Act, obs: Any, lstm_states: Any, episode_starts: np.ndarray):
        self._env = env
        self._act = act
        self._acted: list[Acted] = []
        self._last = False
        for index, envs in enumerate(env.parts):
            states = _map(lambda state, envs=envs: state[:, envs], lstm_states)
            acted = act(_take(obs, envs), states, episode_starts[envs])
            env.step_part_async(index, acted.clipped_actions)
            self._acted.append(acted)

    def step(self, last: bool) -> tuple[Acted, VecEnvStepReturn]:
        """
        Finish a step of all environments.

        :param last: Whether to start none after it
        :return: what the policy did, and what the environments returned
        """
        self._last = last
        before, results = list(self._acted), []
        for index, acted in enumerate(before):
            obs, rewards, dones, infos = self._env.step_part_wait(index)
            results.append((obs, rewards, dones, infos))
            if not last:
                self._acted[index] = self._act(obs, acted.lstm_states, dones)
                self._env.step_part_async(index, self._acted[index].clipped_actions)
        observations, rewards, dones, infos = zip(*results, strict=True)
        return _join(before), (
            concatenate(observations),
            np.concatenate(rewards),
            np.concatenate(dones),
            [info for of_part in infos for info in of_part],
        )

    def stop(self) -> None:
        """Wait for steps that have been started, and forget them."""
        if not self._last:
            for index in range(len(self._acted)):
                self._env.step_part_wait(index)


def _take(obs: Any, envs: slice) -> Any:
    return {key: array[envs] for key, array in obs.items()} if isinstance(obs, dict) else obs[envs]


def _map(function: Callable[..., Any], *lstm_states: Any) -> RNNStates:
    actor_and_critic = zip(*lstm_states, strict=True)
    return RNNStates(*(tuple(map(function, *states)) for states in actor_and_critic))


def _join(acted: list[Acted]) -> Acted:
    actions, clipped_actions, latents, lstm_states = zip(*acted, strict=True)
    latent_pi, latent_vf = (_concatenate(*parts) for parts in zip(*latents, strict=True))
    return Acted(
        np.concatenate(actions),
        np.concatenate(clipped_actions),
        (latent_pi, latent_vf),
        _map(lambda *parts: _concatenate(*parts, dim=1), *lstm_states),
    )


def _concatenate(*parts: Any, dim: int = 0) -> Any:
    return np.concatenate(parts, axis=dim) if isinstance(parts[0], np.ndarray) else th.cat(parts, dim=dim)
