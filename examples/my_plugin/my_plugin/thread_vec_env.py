"""A VecEnv of one's own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv


class SteppedAhead(gym.Wrapper[Any, Any, Any, Any]):
    """An environment the step of which is begun in a thread, and asked for later."""

    def begin(self, pool: ThreadPoolExecutor, action: Any) -> None:
        self.result: Future[Any] = pool.submit(self.env.step, action)

    def step(self, action: Any) -> Any:
        return self.result.result()


class ThreadVecEnv(DummyVecEnv):
    """
    DummyVecEnv whose environments are stepped in threads: for those that wait, for a network, a robot or another program.

    :param env_fns: Functions that return an environment each
    :param n_threads: Number of threads, by default one for each environment
    """

    def __init__(self, env_fns: list[Callable[[], gym.Env[Any, Any]]], n_threads: int | None = None):
        if n_threads is not None and n_threads < 1:
            raise ValueError(f"n_threads must be at least 1, not {n_threads}")
        super().__init__([lambda fn=fn: SteppedAhead(fn()) for fn in env_fns])  # type: ignore[misc]
        self._pool = ThreadPoolExecutor(n_threads or self.num_envs)

    def step_async(self, actions: np.ndarray) -> None:
        super().step_async(actions)
        for env, action in zip(self.envs, actions, strict=True):
            env.begin(self._pool, action)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._pool.shutdown()
        super().close()
