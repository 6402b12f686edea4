"""What scripts/benchmark_her.py measures, each in a process of its own: samples, adds, construction and whole runs."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from her_work import BUFFERS, HER_KWARGS, LENGTH, TOY, Feed, make_buffer, whole_episodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from zoo_plugins.registry import import_object

BATCH_SIZES = (256, 2048)
UPDATES_PER_STEP = (1, 8)
N_ROUNDS = 15
# What sides of whole runs differ in
LEARNING_SIDES: dict[str, dict[str, Any]] = {
    "sb3-1-env": dict(buffer="sb3", n_envs=1),
    "sb3": dict(buffer="sb3"),
    "ours": dict(buffer="ours"),
    "ours-fused": dict(buffer="ours", fused=True),
    "ours-unvalidated": dict(buffer="ours", validate=False),
}


def make_envs(env_id: str, n_envs: int, seed: int | None = None, subproc: bool = False, **kwargs: Any) -> VecEnv:
    """
    Make a VecEnv.

    :param env_id: Id of the environment, with the module that registers it
    :param n_envs: Number of environments
    :param seed: Random seed
    :param subproc: Whether each environment lives in a process of its own
    :param kwargs: Arguments of the environment
    :return: the VecEnv
    """
    cls = SubprocVecEnv if subproc else DummyVecEnv
    return make_vec_env(gym.make, n_envs, seed=seed, env_kwargs={"id": env_id, **kwargs}, vec_env_cls=cls)


def take_turns(measure: Callable[[str], float], n_rounds: int) -> dict[str, list[float]]:
    """
    Measure both sides in turns, in alternating order, after one round that warms up.

    :param measure: Measures a side
    :param n_rounds: Number of rounds
    :return: measurements by side and round
    """
    found: dict[str, list[float]] = {side: [] for side in BUFFERS}
    for i in range(n_rounds + 1):
        for side in list(BUFFERS)[:: 1 if i % 2 == 0 else -1]:
            found[side].append(measure(side))
    return {side: values[1:] for side, values in found.items()}


def time_samples(case: dict[str, Any], scale: float) -> list[dict[str, Any]]:
    """
    Time ``sample()`` of both buffers when they are full, with a step added, outside of the timing, before each update phase.

    :param case: Number of environments and transitions, and whether each environment lives in a process of its own
    :param scale: Factor on the number of transitions
    :return: microseconds per call, by round and side, for each batch size, with and without VecNormalize, and for one sample
        and several after each step
    """
    n_envs = case["n_envs"]
    env = make_envs(TOY, n_envs, subproc=case.get("subproc", False))
    normalize = VecNormalize(env)
    normalize.reset()
    n_rows = whole_episodes(scale * case["n_rows"], n_envs)
    feeds = {side: Feed(make_buffer(side, env, n_rows), env) for side in BUFFERS}
    for feed in feeds.values():
        feed.fill()
    # A process that waits for another one takes no CPU time
    clock = time.perf_counter if case.get("subproc") else time.process_time

    found = []
    for batch_size, normalized, n_samples in itertools.product(BATCH_SIZES, (False, True), UPDATES_PER_STEP):
        n_steps = 24 // n_samples + 1

        def measure(
            side: str, batch_size: int = batch_size, normalized: bool = normalized, n: int = n_samples, n_steps: int = n_steps
        ) -> float:
            feed, seconds = feeds[side], 0.0
            for _ in range(n_steps):
                feed.add()
                start = clock()
                for _ in range(n):
                    feed.buffer.sample(batch_size, normalize if normalized else None)
                seconds += clock() - start
            return 1e6 * seconds / (n_steps * n)

        row = dict(batch_size=batch_size, normalized=normalized, n_samples=n_samples)
        found.append({**row, "microseconds": take_turns(measure, N_ROUNDS)})
    env.close()
    return found


def time_adds(case: dict[str, Any], scale: float) -> list[dict[str, Any]]:
    """
    Time ``add()`` of both buffers when they are full.

    :param case: Number of environments and transitions
    :param scale: Factor on the number of transitions
    :return: microseconds per call, by round and side
    """
    env = make_envs(TOY, case["n_envs"])
    n_rows = whole_episodes(scale * case["n_rows"], case["n_envs"])
    feeds = {side: Feed(make_buffer(side, env, n_rows), env) for side in BUFFERS}
    for feed in feeds.values():
        feed.fill()
    n_steps = 10 * LENGTH

    def measure(side: str) -> float:
        start = time.process_time()
        feeds[side].add(n_steps)
        return 1e6 * (time.process_time() - start) / n_steps

    return [{"microseconds": take_turns(measure, N_ROUNDS)}]


def resident_mib() -> float:
    """
    Look up how much memory this process has (Linux only).

    :return: resident set size in MiB
    """
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def construct(case: dict[str, Any], side: str, scale: float) -> dict[str, float]:
    """
    Time the constructor of a buffer, and measure its memory.

    :param case: Number of environments and transitions
    :param side: Whose buffer, "sb3" or "ours"
    :param scale: Factor on the number of transitions
    :return: CPU seconds; MiB of the empty and of the full buffer
    """
    env = make_envs(TOY, case["n_envs"])
    Feed(make_buffer(side, env, whole_episodes(0, case["n_envs"])), env).fill()  # imports, and what else happens once
    n_rows = whole_episodes(scale * case["n_rows"], case["n_envs"])
    before, start = resident_mib(), time.process_time()
    buffer = make_buffer(side, env, n_rows)
    seconds, empty = time.process_time() - start, resident_mib()
    Feed(buffer, env).fill()
    return {"seconds": seconds, "empty_mib": empty - before, "full_mib": resident_mib() - before}


def learn(case: dict[str, Any], side: str, seed: int, scale: float) -> dict[str, float]:
    """
    Train a model, with one update per timestep.

    :param case: Algorithm, environment and its arguments, number of environments and timesteps
    :param side: One of LEARNING_SIDES
    :param seed: Random seed
    :param scale: Factor on the number of timesteps
    :return: CPU seconds of the whole run, of collection and of updates; numbers of timesteps and updates
    """
    options = LEARNING_SIDES[side]
    n_envs = options.get("n_envs", case["n_envs"])
    th.distributions.Distribution.set_default_validate_args(options.get("validate", True))
    env = make_envs(case["env"], n_envs, seed, **case.get("env_kwargs", {}))
    model = import_object(case["algo"])(
        "MultiInputPolicy",
        env,
        replay_buffer_class=import_object(BUFFERS[options["buffer"]]),
        replay_buffer_kwargs=HER_KWARGS,
        policy_kwargs=dict(optimizer_kwargs=dict(fused=True)) if options.get("fused") else None,
        batch_size=BATCH_SIZES[0],
        learning_starts=500,
        train_freq=1,
        gradient_steps=n_envs,
        seed=seed,
        device="cpu",
    )
    seconds = {"collect_rollouts": 0.0, "train": 0.0}
    for name in seconds:
        original = getattr(model, name)

        def timed(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            start = time.process_time()
            result = original(*args, **kwargs)
            seconds[name] += time.process_time() - start
            return result

        setattr(model, name, timed)
    start = time.process_time()
    model.learn(int(case["timesteps"] * scale))
    return {
        "seconds": time.process_time() - start,
        "collect_seconds": seconds["collect_rollouts"],
        "update_seconds": seconds["train"],
        "timesteps": model.num_timesteps,
        "updates": model._n_updates,
    }


def measure(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """
    Do what one process is for.

    :param settings: The case, the side for those kinds that have a process for each, seed and scale
    :return: what was measured, in rows
    """
    case, side, seed, scale = (settings[key] for key in ("case", "side", "seed", "scale"))
    np.random.seed(seed)
    th.set_num_threads(1)
    if case["kind"] == "learn":
        return [learn(case, side, seed, scale)]
    if case["kind"] == "construct":
        return [construct(case, side, scale)]
    return {"sample": time_samples, "add": time_adds}[case["kind"]](case, scale)
