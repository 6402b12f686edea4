"""
Compare SeqRecurrentPPO with sb3_contrib's RecurrentPPO: whole runs with the same seed and hyperparameters.

Each run is a process of its own with one torch thread; the two sides of a pair run one after the other, and the order
changes from seed to seed. Times are CPU times of the process, which a busy machine inflates less than wall time.
Ratios are medians over the seeds of pairs. The hyperparameters are those of rl_zoo3's ppo_lstm.yml.

    python scripts/benchmark_recurrent.py --output docs/results/recurrent
    python scripts/benchmark_recurrent.py --cases cartpole worst --seeds 0 --scale 0.2     # a quick look
"""

import argparse
import itertools
import json
import resource
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from processes import describe_machine, read_versions, run_alone, write_report
from recurrent_runs import UPSTREAM_FILE, make_model, read_hyperparams

# timesteps, hyperparameters that differ from the YAML's for each side, and the floor and goal of the ratio of whole runs
CASES: dict[str, dict[str, Any]] = {
    "pendulum": dict(env="PendulumNoVel-v1", timesteps=100_000, floor=8, goal=12),
    "cartpole": dict(env="CartPoleNoVel-v1", timesteps=100_000, floor=4.3, goal=6.5),
    "bipedal": dict(env="BipedalWalker-v3", timesteps=82_000, floor=3.8, goal=5.5),
    "pendulum-1024": dict(
        env="PendulumNoVel-v1", timesteps=40_960, ours=dict(batch_size=1024), upstream=dict(batch_size=128), floor=22, goal=30
    ),
    "pendulum-1024-both": dict(env="PendulumNoVel-v1", timesteps=40_960, both=dict(batch_size=1024)),
    # Episodes that never end: upstream takes its fast path in all minibatches after the first rollout
    "worst": dict(env="PendulumNoVel-v1", timesteps=40_960, endless=True, floor=1, goal=1.3),
}
SIDES = ("upstream", "ours")


def run_side(case: dict[str, Any], side: str, seed: int, scale: float) -> dict[str, Any]:
    """
    Train one side, in this process.

    :param case: One of the cases
    :param side: "upstream" or "ours"
    :param seed: Random seed
    :param scale: Factor on the number of timesteps
    :return: CPU seconds of the whole run, of collection and of updates, those of each iteration, peak memory and rewards
    """
    import gymnasium as gym
    import torch as th
    from sb3_contrib import RecurrentPPO

    from zoo_plugins import SeqRecurrentPPO

    def endless(env: gym.Env) -> gym.Env:
        while not isinstance(env, gym.wrappers.TimeLimit):
            env = env.env  # type: ignore[attr-defined]
        return env.env

    th.set_num_threads(1)
    block = read_hyperparams(UPSTREAM_FILE, case["env"])
    hyperparams = {**block, **case.get("both", {}), **case.get(side, {})}
    cls = {"upstream": RecurrentPPO, "ours": SeqRecurrentPPO}[side]
    model = make_model(cls, case["env"], hyperparams, seed, endless if case.get("endless") else None)

    seconds: dict[str, list[float]] = {"collect": [], "update": []}
    for name, method in (("collect", "collect_rollouts"), ("update", "train")):
        original = getattr(model, method)

        def timed(*args: Any, name: str = name, original: Any = original, **kwargs: Any) -> Any:
            start = time.process_time()
            result = original(*args, **kwargs)
            seconds[name].append(time.process_time() - start)
            return result

        setattr(model, method, timed)
    rewards: list[float] = []
    start = time.process_time()

    def record(variables: dict[str, Any], _: dict[str, Any]) -> bool:
        rewards.extend(info["episode"]["r"] for info in variables["infos"] if "episode" in info)
        return True

    model.learn(int(case["timesteps"] * scale), callback=record)
    return {
        "seconds": time.process_time() - start,
        "timesteps": model.num_timesteps,
        "collect_by_iteration": seconds["collect"],
        "update_by_iteration": seconds["update"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "reward_by_tenth": [statistics.mean(rewards[i * len(rewards) // 10 : (i + 1) * len(rewards) // 10]) for i in range(10)]
        if len(rewards) >= 10
        else [],
    }


def by_fifth(values: list[float]) -> list[float]:
    """
    Sum the times of each fifth of a run.

    :param values: Times of the iterations
    :return: five sums, or fewer for a run of fewer iterations
    """
    n_parts = min(5, len(values))
    bounds = [round(i * len(values) / n_parts) for i in range(n_parts + 1)]
    return [sum(values[a:b]) for a, b in itertools.pairwise(bounds)]


def summarize(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """
    Compare the two sides of a case.

    :param name: Name of the case
    :param runs: Runs of each side, by seed
    :return: medians and ratios
    """
    pairs = list(zip(runs["upstream"], runs["ours"], strict=True))

    def ratio(measure: Any) -> float:
        return statistics.median(measure(upstream) / measure(ours) for upstream, ours in pairs)

    def fps(side: str) -> float:
        return statistics.median(run["timesteps"] / run["seconds"] for run in runs[side])

    def fifths(run: dict[str, Any]) -> list[float]:
        return by_fifth([a + b for a, b in zip(run["collect_by_iteration"], run["update_by_iteration"], strict=True)])

    return {
        "case": name,
        "upstream_fps": fps("upstream"),
        "ours_fps": fps("ours"),
        "ratio": ratio(lambda run: run["seconds"] / run["timesteps"]),
        "collect_ratio": ratio(lambda run: sum(run["collect_by_iteration"])),
        "update_ratio": ratio(lambda run: sum(run["update_by_iteration"])),
        "ratio_by_fifth": [ratio(lambda run, i=i: fifths(run)[i]) for i in range(len(fifths(runs["ours"][0])))],
        "memory_ratio": ratio(lambda run: run["peak_mib"]),
        "floor": CASES[name].get("floor"),
        "goal": CASES[name].get("goal"),
    }


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as a table.

    :param report: The report
    :return: Markdown
    """
    lines = [
        f"{report['machine']}; seeds {', '.join(map(str, report['seeds']))}; one torch thread per process; CPU time; "
        f"{report['scale']:g} of each case's timesteps; {report['jobs']} pair(s) at a time.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| case | RecurrentPPO fps | SeqRecurrentPPO fps | ratio | by fifth of the run | collection | update "
        "| peak memory, theirs / ours | floor | goal |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["cases"]:
        fifths = ", ".join(f"{value:.1f}" for value in row["ratio_by_fifth"])
        lines.append(
            f"| {row['case']} | {row['upstream_fps']:.0f} | {row['ours_fps']:.0f} | **{row['ratio']:.1f}** | {fifths} "
            f"| {row['collect_ratio']:.1f} | {row['update_ratio']:.1f} | {row['memory_ratio']:.2f} "
            f"| {row['floor'] or ''} | {row['goal'] or ''} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all pairs and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of timesteps")
    parser.add_argument("--jobs", type=int, default=1, help="number of pairs to run at the same time")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(run_side(CASES[args.cases[0]], args.side, args.seeds[0], args.scale)))
        return

    def run_pair(name: str, seed: int) -> dict[str, dict[str, Any]]:
        pair = {}
        for side in SIDES if seed % 2 == 0 else SIDES[::-1]:
            arguments = ["--cases", name, "--seeds", str(seed), "--scale", str(args.scale), "--side", side]
            pair[side] = run = run_alone(__file__, *arguments)
            print(
                f"{name} seed {seed} {side}: {run['seconds']:.1f} s, {run['timesteps'] / run['seconds']:.0f} fps", flush=True
            )
        return pair

    all_runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {side: [] for side in SIDES} for name in args.cases}
    pairs = list(itertools.product(args.cases, args.seeds))
    with ThreadPoolExecutor(args.jobs) as pool:
        for (name, _), pair in zip(pairs, pool.map(lambda pair: run_pair(*pair), pairs), strict=True):
            for side in SIDES:
                all_runs[name][side].append(pair[side])

    report = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "seeds": args.seeds,
        "scale": args.scale,
        "jobs": args.jobs,
        "cases": [summarize(name, runs) for name, runs in all_runs.items()],
        "runs": all_runs,
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
