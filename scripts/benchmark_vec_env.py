"""
Compare RayVecEnv with SubprocVecEnv: steps per second, whole PPO and SAC runs, starting, and replacing a lost worker.

All VecEnvs of a case live in one process and are stepped in turn, round after round; a time is the median of the rounds, and a
ratio the median of the rounds' ratios, so that other work on the machine meets all of them. "naive" is what is usually
written first: a Ray actor for each environment, and a call for each step.

    python scripts/benchmark_vec_env.py --output docs/results/vec_env
    python scripts/benchmark_vec_env.py --cases cartpole-8 --rounds 3 --seconds 0.3     # a quick look
"""

import argparse
import functools
import json
import os
import signal
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from processes import describe_machine, read_versions
from vec_env_sides import cluster, make_env, make_vec_env

# Kind of environment, number of environments, further sides, and the goals of the ratios to SubprocVecEnv
CASES: dict[str, dict[str, Any]] = {
    "cartpole-2": dict(env="cartpole", n_envs=2, goals={"ray": 2.2}),
    "cartpole-8": dict(env="cartpole", n_envs=8, goals={"ray": 4.0, "ray one each": 1.5}),
    "cartpole-32": dict(env="cartpole", n_envs=32, goals={"ray": 6.0}),
    "image-8": dict(env="image", n_envs=8, goals={"ray": 5.0}),
    "sleep-1ms-8": dict(env="sleep", seconds=1e-3, n_envs=8, goals={"ray": 1.25}),
    "sleep-10ms-8": dict(env="sleep", seconds=1e-2, n_envs=8, goals={"ray": 1.1}),
    "cpu-1ms-8": dict(env="cpu", seconds=1e-3, n_envs=8, goals={"ray": 1.4}),
    "cpu-10ms-8": dict(env="cpu", seconds=1e-2, n_envs=8, goals={"ray": 1.1}),
    "three-nodes-9": dict(env="cartpole", n_envs=9, nodes=3, goals={"ray": 3.5}),
}
SIDES = ("subproc", "dummy", "naive", "ray", "ray one each", "ray two workers")


def run_case(name: str, sides: tuple[str, ...], rounds: int, seconds: float) -> dict[str, Any]:
    """
    Step the VecEnvs of a case in turn.

    :param name: Name of the case
    :param sides: The sides
    :param rounds: Number of rounds
    :param seconds: How long each is stepped in a round
    :return: seconds per step of each round, and seconds of starting, by side
    """
    case = CASES[name]
    starts, steps, vec_envs = {}, {side: [] for side in sides}, {}  # type: ignore[var-annotated]
    with cluster(case.get("nodes")):
        for side in sides:
            started = time.perf_counter()
            vec_envs[side] = make_vec_env(side, case)
            vec_envs[side].reset()
            starts[side] = time.perf_counter() - started
        actions = np.zeros(case["n_envs"], np.int64)
        for _ in range(rounds):
            for side, vec_env in vec_envs.items():
                n_steps, started = 0, time.perf_counter()
                while time.perf_counter() - started < seconds:
                    for _ in range(5):
                        vec_env.step(actions)
                    n_steps += 5
                steps[side].append((time.perf_counter() - started) / n_steps)
        workers = {side: len(vec_env._workers) for side, vec_env in vec_envs.items() if side.startswith("ray")}
        for vec_env in vec_envs.values():
            vec_env.close()
    return {"case": name, "start": starts, "steps": steps, "workers": workers}


def run_learning(algo: str, rounds: int) -> dict[str, Any]:
    """
    Train in turn with SubprocVecEnv and with RayVecEnv.

    :param algo: "PPO" or "SAC"
    :param rounds: Number of runs of each
    :return: seconds of each run, by side
    """
    import stable_baselines3 as sb3
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from zoo_plugins import RayVecEnv

    th.set_num_threads(1)
    env_id, timesteps = {"PPO": ("CartPole-v1", 32768), "SAC": ("Pendulum-v1", 4000)}[algo]
    kwargs: dict[str, Any] = {"PPO": dict(n_steps=256), "SAC": dict(learning_starts=1000)}[algo]
    found: dict[str, list[float]] = {"subproc": [], "ray": []}
    with cluster(None):
        for _ in range(rounds):
            for side, vec_env_class in (("subproc", SubprocVecEnv), ("ray", RayVecEnv)):
                vec_env = make_vec_env(env_id, n_envs=8, seed=0, vec_env_cls=vec_env_class)  # type: ignore[arg-type]
                model = getattr(sb3, algo)("MlpPolicy", vec_env, seed=0, device="cpu", **kwargs)
                started = time.perf_counter()
                model.learn(timesteps)
                found[side].append(time.perf_counter() - started)
                vec_env.close()
    return {"case": f"{algo}.learn() on {env_id}, 8 environments", "seconds": found}


def run_pipeline(milliseconds: int, rounds: int, n_steps: int = 64) -> dict[str, Any]:
    """
    Collect rollouts with SeqRecurrentPPO, in turn with and without ``pipeline``.

    :param milliseconds: How long an environment waits in each step
    :param rounds: Number of rollouts of each
    :param n_steps: Steps per rollout
    :return: seconds per step of each rollout, by whether it was pipelined
    """
    from zoo_plugins import RayVecEnv, SeqRecurrentPPO

    env_fns = [functools.partial(make_env, dict(env="sleep", seconds=milliseconds * 1e-3))] * 16
    models: dict[str, Any] = {}
    found: dict[str, list[float]] = {"without": [], "with": []}
    with cluster(None):
        for side in found:
            vec_env = RayVecEnv(env_fns, envs_per_worker=2, pipeline=side == "with")
            kwargs = dict(n_steps=n_steps, device="cpu", policy_kwargs=dict(lstm_hidden_size=512))
            model = SeqRecurrentPPO("MlpLstmPolicy", vec_env, **kwargs)  # type: ignore[arg-type]
            models[side] = model, model._setup_learn(n_steps * 16 * rounds)[1]
        for _ in range(rounds):
            for side, (model, callback) in models.items():
                started = time.perf_counter()
                model.collect_rollouts(model.env, callback, model.rollout_buffer, n_steps)
                found[side].append((time.perf_counter() - started) / n_steps)
        for model, _ in models.values():
            model.env.close()
    return {"milliseconds": milliseconds, "seconds": found}


def run_loss(rounds: int) -> dict[str, Any]:
    """
    Kill a worker between steps.

    :param rounds: How often
    :return: seconds of the step that replaced it, each time
    """
    vec_env = None
    found = []
    with cluster(None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        vec_env = make_vec_env("ray two workers", dict(env="cartpole", n_envs=8))
        vec_env.reset()
        for _ in range(min(rounds, 5)):
            os.kill(vec_env._workers.of_env(0).hello.pid, signal.SIGKILL)
            time.sleep(0.2)
            started = time.perf_counter()
            infos = vec_env.step(np.zeros(8, np.int64))[3]
            found.append(time.perf_counter() - started)
            assert [env for env in range(8) if "worker_restarted" in infos[env]] == [0, 1, 2, 3]
        vec_env.close()
    return {"seconds": found}


def summarize(run: dict[str, Any]) -> dict[str, Any]:
    """
    Compare the sides of a case with SubprocVecEnv.

    :param run: What was measured
    :return: for each side steps per second, its ratio, and seconds of starting
    """
    steps = run["steps"]
    return {
        side: {
            "steps_per_second": 1 / statistics.median(times),
            "ratio": statistics.median(theirs / ours for theirs, ours in zip(steps["subproc"], times, strict=True)),
            "start": run["start"][side],
            "workers": run["workers"].get(side),
            "goal": CASES[run["case"]]["goals"].get(side),
        }
        for side, times in steps.items()
    }


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """
    lines = [
        f"{report['machine']}; load {report['load']:.1f} at the end; medians of {report['rounds']} interleaved rounds.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| case | VecEnv | workers | steps per second | ratio to SubprocVecEnv | goal | start, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in report["cases"]:
        for side, row in case["sides"].items():
            lines.append(
                f"| {case['case']} | {side} | {row['workers'] or ''} | {row['steps_per_second']:.0f} "
                f"| **{row['ratio']:.2f}** | {row['goal'] or ''} | {row['start']:.1f} |"
            )
    if report["learning"]:
        lines += ["", "| run | SubprocVecEnv, s | RayVecEnv, s | ratio |", "|---|---|---|---|"]
    for run in report["learning"]:
        theirs, ours = run["seconds"]["subproc"], run["seconds"]["ray"]
        ratio = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
        lines.append(f"| {run['case']} | {statistics.median(theirs):.1f} | {statistics.median(ours):.1f} | {ratio:.2f} |")
    if report["pipeline"]:
        lines += [
            "",
            "| steps of ppo_lstm_seq, 16 environments | without pipeline, ms | with, ms | ratio |",
            "|---|---|---|---|",
        ]
    for run in report["pipeline"]:
        without, pipelined = run["seconds"]["without"], run["seconds"]["with"]
        ratio = statistics.median(a / b for a, b in zip(without, pipelined, strict=True))
        lines.append(
            f"| two per worker, which wait {run['milliseconds']} ms each | {1e3 * statistics.median(without):.1f} "
            f"| {1e3 * statistics.median(pipelined):.1f} | {ratio:.2f} |"
        )
    if report["loss"]:
        seconds = report["loss"]["seconds"]
        lines += ["", f"A killed worker was replaced in {statistics.median(seconds):.1f} s (at most {max(seconds):.1f} s)."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all cases and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="subproc is always among them")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each VecEnv is stepped in a round")
    parser.add_argument("--learning", type=int, default=3, help="number of whole runs of PPO and SAC")
    parser.add_argument("--pipeline", type=int, default=9, help="number of rollouts with and without pipeline")
    parser.add_argument("--losses", type=int, default=5, help="how often a worker is killed")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    args = parser.parse_args()

    cases = []
    for name in args.cases:
        sides = tuple(dict.fromkeys(("subproc", *args.sides)))
        run = run_case(name, sides, args.rounds, args.seconds)
        cases.append({"case": name, "sides": summarize(run), "runs": run})
        print(name, {side: round(row["ratio"], 2) for side, row in cases[-1]["sides"].items()}, flush=True)
    report = {
        "machine": describe_machine(),
        "versions": read_versions("ray", "gymnasium"),
        "rounds": args.rounds,
        "cases": cases,
        "learning": [run_learning(algo, args.learning) for algo in ("PPO", "SAC") if args.learning],
        "pipeline": [run_pipeline(milliseconds, args.pipeline) for milliseconds in (1, 2, 4) if args.pipeline],
        "loss": run_loss(args.losses) if args.losses else None,
        "load": os.getloadavg()[0],
    }
    table = to_markdown(report)
    print(table)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.with_suffix(".json").write_text(json.dumps(report, indent=1))
        args.output.with_suffix(".md").write_text(table)


if __name__ == "__main__":
    main()
