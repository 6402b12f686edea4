"""
Train PPO in workers on three Ray nodes, kill one of the nodes meanwhile, and show what becomes of its environments.

Started by scripts/cluster_demo.sh, which makes the nodes and tells by --kill how to get rid of the third one. Without --kill,
three nodes are simulated by processes.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import ray
from ray.cluster_utils import Cluster
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from zoo_plugins import RayVecEnv

N_ENVS = 9  # three for each node


class Located(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that tells where it is."""

    def where(self) -> str:
        """
        Find the node.

        :return: Its address, and the start of Ray's name for it
        """
        return f"{ray.util.get_node_ip_address()} (node {ray.get_runtime_context().get_node_id()[:6]})"


class NodeLoss(BaseCallback):
    """
    Lose a node, and tell what follows.

    :param kill: Kills the node
    :param at: Timestep at which it does
    """

    def __init__(self, kill: Callable[[], Any], at: int):
        super().__init__()
        self.kill, self.at = kill, at
        self.killed = 0.0

    def _on_step(self) -> bool:
        marked = [env for env, info in enumerate(self.locals["infos"]) if "worker_restarted" in info]
        if marked:
            seconds = time.monotonic() - self.killed
            print(f"{self.num_timesteps} timesteps: worker_restarted in environments {marked}, after {seconds:.1f} s")
            show_places(self.training_env)
        if not self.killed and self.num_timesteps >= self.at:
            show_progress(self.model)
            self.kill()
            self.killed = time.monotonic()
            print(f"{self.num_timesteps} timesteps: the third node was killed")
        return True


def show_places(vec_env: VecEnv) -> None:
    """
    Print where environments are.

    :param vec_env: The environments
    """
    places: dict[str, list[int]] = {}
    for env, where in enumerate(vec_env.env_method("where")):
        places.setdefault(where, []).append(env)
    for where, envs in sorted(places.items()):
        print(f"  {where}: environments {envs}")


def show_progress(model: Any) -> None:
    """
    Print how far training is.

    :param model: What is trained
    """
    rewards = [episode["r"] for episode in model.ep_info_buffer]
    mean = sum(rewards) / len(rewards)
    print(f"{model.num_timesteps} timesteps: mean reward of the last {len(rewards)} episodes {mean:.1f}")


@contextmanager
def simulated_nodes() -> Iterator[Callable[[], Any]]:
    """
    Have three nodes of one CPU each, which are processes of this machine.

    :return: a function that kills the third one
    """
    settings: dict[str, Any] = dict(num_cpus=1, object_store_memory=10**8)
    cluster = Cluster(initialize_head=True, head_node_args=dict(include_dashboard=False, **settings))

    def kill() -> None:
        # At the same time as all that it has started: else workers live on for seconds, and an agent prints pages of logs
        (raylet,) = third.all_processes["raylet"]
        for children in Path(f"/proc/{raylet.process.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        cluster.remove_node(third, allow_graceful=False)

    try:
        cluster.add_node(**settings)
        third = cluster.add_node(**settings)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield kill
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def given_nodes(command: str) -> Iterator[Callable[[], Any]]:
    """
    Join the nodes of ``RAY_ADDRESS``.

    :param command: Shell command that kills the third one
    :return: a function that does
    """
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    yield lambda: subprocess.run(command, shell=True, check=True)
    ray.shutdown()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=30_000)
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    args = parser.parse_args()

    # So that nodes end with this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    warnings.showwarning = lambda message, *_: print(f"Warning: {message}")
    with simulated_nodes() if args.kill is None else given_nodes(args.kill) as kill:
        vec_env = make_vec_env(
            "CartPole-v1",
            n_envs=N_ENVS,
            seed=0,
            wrapper_class=Located,
            vec_env_cls=RayVecEnv,  # type: ignore[arg-type]
            vec_env_kwargs=dict(envs_per_worker=3, placement="SPREAD"),
        )
        print("PPO on CartPole-v1, with three workers:")
        show_places(vec_env)
        model = PPO("MlpPolicy", vec_env, n_steps=128, batch_size=128, n_epochs=5, seed=0, device="cpu")
        model.learn(args.timesteps, callback=NodeLoss(kill, at=args.timesteps // 2))
        print("Training has finished:")
        show_progress(model)
        vec_env.close()


if __name__ == "__main__":
    main()
