"""How many environments a worker should have: measured, not guessed."""

import math
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

# What a message to a worker and back costs, besides the steps: driver and worker, one after the other
SECONDS_PER_MESSAGE = 25e-6
MEASURE_SECONDS = 0.2
MEASURE_STEPS = 200


@dataclass(frozen=True)
class StepTime:
    """
    How long a step of an environment takes, resets included.

    :param wall: Seconds until it returns
    :param cpu: Seconds of a CPU's work, less than ``wall`` if the environment waits for something
    """

    wall: float
    cpu: float


def measure(env: gym.Env[Any, Any]) -> StepTime:
    """
    Step an environment for a fraction of a second, with random actions.

    :param env: The environment
    :return: how long a step takes on average
    """
    actions = [env.action_space.sample() for _ in range(MEASURE_STEPS)]
    env.reset()
    env.step(env.action_space.sample())  # the first step of a simulator often does more than others
    steps, started, worked = 0, time.perf_counter(), time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        steps += 1
        if terminated or truncated:
            env.reset()
        if time.perf_counter() - started > MEASURE_SECONDS:
            break
    return StepTime((time.perf_counter() - started) / steps, (time.process_time() - worked) / steps)


def choose_envs_per_worker(n_envs: int, n_cpus: float, step: StepTime) -> int:
    """
    Choose the number of environments of each worker that makes a step of all of them the shortest.

    Environments of one worker are stepped one after the other, so each more of them delays the step; each worker costs a
    message, and more workers than CPUs only help environments that wait.

    :param n_envs: Number of environments
    :param n_cpus: Number of CPUs for workers
    :param step: How long a step takes
    :return: number of environments of each worker
    """

    def seconds(n_workers: int) -> float:
        messages = n_workers * SECONDS_PER_MESSAGE
        one_after_the_other = math.ceil(n_envs / n_workers) * step.wall
        on_all_cpus = (n_envs * step.cpu + messages) / max(1.0, n_cpus)
        return messages + max(one_after_the_other, on_all_cpus)

    return math.ceil(n_envs / min(range(1, n_envs + 1), key=seconds))
