"""What scripts/benchmark_vec_env.py compares: environments, VecEnvs, and the clusters that they run on."""

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps take longer, as they wait or as they compute."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float, waits: bool):
        super().__init__(env)
        self.seconds, self.waits = seconds, waits

    def step(self, action: Any) -> Any:
        """Take some time, then step."""
        if self.waits:
            time.sleep(self.seconds)
        else:
            started = time.process_time()
            while time.process_time() - started < self.seconds:
                pass
        return self.env.step(action)


class ImageEnv(gym.Env[Any, Any]):
    """Images of a common size that cost nothing to make; episodes of 200 steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.image = np.zeros((84, 84, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self.t = 0
        return self.image, {}

    def step(self, action: Any) -> Any:
        """Show the same image, with the time in a corner."""
        self.t += 1
        self.image[0, 0, 0] = self.t
        return self.image, 1.0, False, self.t >= 200, {}


def make_env(case: dict[str, Any]) -> gym.Env[Any, Any]:
    """
    Make an environment of a case.

    :param case: One of the cases
    :return: the environment
    """
    if case["env"] == "image":
        return ImageEnv()
    env = gym.make("CartPole-v1")
    return env if case["env"] == "cartpole" else Busy(env, case["seconds"], waits=case["env"] == "sleep")


def make_naive(env_fns: list[Callable[[], Any]]) -> Any:
    """
    Make a VecEnv of one Ray actor for each environment, of which only steps are needed here.

    :param env_fns: Functions that return an environment each
    :return: the VecEnv
    """
    import ray

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self, env_fn: Callable[[], Any]):
            self.env = env_fn()

        def reset(self) -> Any:
            return self.env.reset()

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation, _ = self.env.reset()
            return observation, reward, terminated or truncated, info

    class Naive:
        def __init__(self) -> None:
            self.actors: Any = [Actor.remote(env_fn) for env_fn in env_fns]  # type: ignore[attr-defined]

        def reset(self) -> Any:
            return np.stack([result[0] for result in ray.get([actor.reset.remote() for actor in self.actors])])

        def step(self, actions: Any) -> Any:
            results = ray.get([actor.step.remote(action) for actor, action in zip(self.actors, actions, strict=True)])
            observations, rewards, dones, infos = zip(*results, strict=True)
            return np.stack(observations), np.stack(rewards), np.stack(dones), infos

        def close(self) -> None:
            for actor in self.actors:
                ray.kill(actor)

    return Naive()


def make_vec_env(side: str, case: dict[str, Any]) -> Any:
    """
    Make a VecEnv of a case.

    :param side: One of the sides
    :param case: One of the cases
    :return: the VecEnv
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    from zoo_plugins import RayVecEnv

    n_envs = case["n_envs"]
    env_fns: list[Callable[[], Any]] = [functools.partial(make_env, case)] * n_envs
    if side == "naive":
        return make_naive(env_fns)
    if not side.startswith("ray"):
        return {"subproc": SubprocVecEnv, "dummy": DummyVecEnv}[side](env_fns)
    sizes: dict[str, int | str] = {"ray": "auto", "ray one each": 1, "ray two workers": -(-n_envs // 2)}
    size = -(-n_envs // case["nodes"]) if "nodes" in case and side == "ray" else sizes[side]
    return RayVecEnv(env_fns, envs_per_worker=size)


@contextmanager
def cluster(nodes: int | None) -> Iterator[None]:
    """
    Have Ray: on this machine, or as several nodes on this machine.

    :param nodes: Number of nodes, ``None`` for an ordinary local Ray
    """
    import ray

    os.environ.setdefault("RAY_worker_niceness", "0")
    memory = 2**28
    if nodes is None:
        ray.init(address="local", include_dashboard=False, object_store_memory=memory, logging_level=logging.ERROR)
        yield
        ray.shutdown()
        return
    from ray.cluster_utils import Cluster

    head = dict(num_cpus=4, object_store_memory=memory, include_dashboard=False)
    simulated = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes - 1):
        simulated.add_node(num_cpus=4, object_store_memory=memory)
    ray.init(address=simulated.address, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()
    simulated.shutdown()
