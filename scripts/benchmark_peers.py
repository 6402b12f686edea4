"""
Compare SeqRecurrentPPO with what could be used instead, on the same work.

The work is PendulumNoVel-v1: rollouts of 4 x 1024 steps, 10 epochs, an LSTM and an MLP of 64 units for actor and critic
each, a plain Gaussian. The peers are skrl's PPO_RNN, on the same environments, and recurrent PPO in JAX with the environment
inside (scripts/peers/jax_rnn.py). The sides take turns, each run is a process of its own with one thread on one core, and a
side that is found to do other work is an error. How to read the result: docs/results/peers.md.

    pip install -c constraints.txt -e '.[peers]'
    python scripts/benchmark_peers.py --output peers
    python scripts/benchmark_peers.py --sides ours-128 skrl-128 --rollouts 3 --repeats 1     # a quick look
"""

import argparse
import importlib
import importlib.util
import json
import os
import statistics
from pathlib import Path
from typing import Any

from processes import describe_machine, read_versions, run_alone, write_report

INSTALL = "pip install -c constraints.txt -e '.[peers]'"
# Module in scripts/peers, minibatch size and sequence length, in timesteps
SIDES: dict[str, tuple[str, int, int | None]] = {
    "ours-128": ("ours", 128, None),
    "ours-128-cap16": ("ours", 128, 16),
    "ours-1024": ("ours", 1024, None),
    "skrl-128": ("skrl_rnn", 128, 128),
    "skrl-1024": ("skrl_rnn", 1024, 128),
    "jax-128": ("jax_rnn", 128, 128),
    # PureJaxRL's own layout: whole environments
    "jax-1024": ("jax_rnn", 1024, 1024),
    "jax-1024-rows": ("jax_rnn", 1024, 128),
}
PACKAGES: dict[str, tuple[str, ...]] = {"ours": (), "skrl_rnn": ("skrl",), "jax_rnn": ("jax", "optax")}
# What is compared; ratios of CPU time and of wall time that the prototype reached, and those to reach
PAIRS: list[dict[str, Any]] = [
    dict(part="whole", ours="ours-128", peer="skrl-128", prototype=dict(cpu=1.55), goal=dict(cpu=2.5)),
    dict(part="whole", ours="ours-1024", peer="skrl-1024", prototype=dict(cpu=2.7), goal=dict(cpu=4)),
    dict(part="update", ours="ours-128", peer="skrl-128", prototype=dict(cpu=1.03), goal=dict(cpu=1.8)),
    dict(part="update", ours="ours-1024", peer="skrl-1024", prototype=dict(cpu=1.35), goal=dict(cpu=2)),
    dict(part="update", ours="ours-128", peer="jax-128", prototype=dict(cpu=0.3), goal=dict(cpu=0.6)),
    dict(part="whole", ours="ours-1024", peer="jax-1024", prototype=dict(cpu=1.17, wall=0.84), goal=dict(cpu=1.5, wall=1.2)),
    dict(part="collect", ours="ours-128", peer="skrl-128"),
    dict(part="collect", ours="ours-1024", peer="skrl-1024"),
    dict(part="whole", ours="ours-128-cap16", peer="skrl-128"),
    dict(part="update", ours="ours-128-cap16", peer="jax-128"),
    dict(part="whole", ours="ours-1024", peer="jax-1024-rows"),
]
CLOCKS = ("cpu", "wall")


def check_packages(sides: list[str]) -> None:
    """
    Refuse sides that cannot run here.

    :param sides: Names of sides
    :raises SystemExit: if the package of a side is missing
    """
    missing = {
        package: side for side in sides for package in PACKAGES[SIDES[side][0]] if importlib.util.find_spec(package) is None
    }
    if missing:
        raise SystemExit(
            f"{', '.join(missing)} missing for {', '.join(dict.fromkeys(missing.values()))}: {INSTALL}, or choose --sides"
        )


def run_side(side: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """
    Train one side, in this process.

    :param side: Name of the side
    :param seed: Random seed
    :param args: Arguments of the script
    :return: times of each rollout that counts, mean returns of all, what was found to be done, seconds of compilation
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {args.core})
    from peers.work import Work, check_facts

    module, batch_size, seq_length = SIDES[side]
    work = Work(batch_size, seq_length, args.rollouts, seed, n_steps=args.n_steps, n_epochs=args.n_epochs)
    run: dict[str, Any] = importlib.import_module(f"peers.{module}").train(work)
    check_facts(run["facts"], run.pop("expected_facts"))
    assert len(run["rollouts"]) == len(run["returns"]) == args.rollouts + 1
    run["rollouts"] = run["rollouts"][1:]
    return run


def seconds(run: dict[str, Any], part: str, clock: str) -> float:
    """
    Average a part of the rollouts of a run.

    :param run: The run
    :param part: "collect", "update" or "whole"
    :param clock: "cpu" or "wall"
    :return: seconds per rollout
    """
    phases = ("collect", "update") if part == "whole" else (part,)
    return statistics.mean(sum(rollout[phase][clock] for phase in phases) for rollout in run["rollouts"])


def spread(values: list[float]) -> dict[str, float]:
    """
    Sum up repeats.

    :param values: A value per repeat
    :return: median, minimum and maximum
    """
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarize_side(side: str, runs: list[dict[str, Any]], timesteps: int) -> dict[str, Any]:
    """
    Sum up the runs of a side.

    :param side: Name of the side
    :param runs: Its runs, by repeat
    :param timesteps: Timesteps of a rollout
    :return: speed, times, what was done, mean returns in the first and the last rollout
    """

    def median(part: str, clock: str) -> float:
        return statistics.median(seconds(run, part, clock) for run in runs)

    def mean_return(index: int) -> float | None:
        returns = [run["returns"][index] for run in runs if run["returns"][index] is not None]
        return statistics.mean(returns) if returns else None

    facts = runs[0]["facts"]
    compilations = [run["compile_seconds"] for run in runs if "compile_seconds" in run]
    return {
        "side": side,
        "fps": {clock: timesteps / median("whole", clock) for clock in CLOCKS},
        "collect_seconds": median("collect", "cpu"),
        "update_seconds": median("update", "cpu"),
        "milliseconds_per_optimizer_step": 1000 * median("update", "cpu") / facts["optimizer_steps"],
        "compile_seconds": statistics.median(compilations) if compilations else None,
        "facts": facts,
        "first_return": mean_return(0),
        "last_return": mean_return(-1),
    }


def compare(pair: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """
    Compare the two sides of a pair, repeat by repeat.

    :param pair: One of the pairs
    :param runs: Runs of each side, by repeat
    :return: the pair with its ratios, above 1 where ours is faster
    """
    both = list(zip(runs[pair["peer"]], runs[pair["ours"]], strict=True))
    ratios = {
        clock: spread([seconds(peer, pair["part"], clock) / seconds(ours, pair["part"], clock) for peer, ours in both])
        for clock in CLOCKS
    }
    return {**pair, "ratio": ratios}


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """

    def show_targets(targets: dict[str, float]) -> str:
        if len(targets) == 1:
            return f"{targets['cpu']:g}"
        return ", ".join(f"{targets[clock]:g} {clock}" for clock in targets)

    def show_spread(ratio: dict[str, float]) -> str:
        return f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"

    def show_return(value: float | None) -> str:
        return "" if value is None else f"{value:.0f}"

    lines = [
        f"{report['machine']}; one thread on one core; {report['repeats']} repeats (seeds from 0) of {report['rollouts']} "
        f"rollouts of 4 x {report['n_steps']} steps after one that warms up, {report['n_epochs']} epochs.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| part | ours | peer | CPU ratio: median (min-max) | wall ratio | prototype | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["pairs"]:
        cpu, wall = (show_spread(row["ratio"][clock]) for clock in CLOCKS)
        lines.append(
            f"| {row['part']} | {row['ours']} | {row['peer']} | **{cpu.replace(' ', '** ', 1)} | {wall} "
            f"| {show_targets(row.get('prototype', {}))} | {show_targets(row.get('goal', {}))} |"
        )
    lines += [
        "",
        "| side | CPU fps | wall fps | collection, s | update, s | ms per optimizer step | optimizer steps of timesteps "
        "| parameters | compilation, s | return, first and last rollout |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in report["sides"]:
        facts, compilation = row["facts"], row["compile_seconds"]
        lines.append(
            f"| {row['side']} | {row['fps']['cpu']:.0f} | {row['fps']['wall']:.0f} | {row['collect_seconds']:.2f} "
            f"| {row['update_seconds']:.2f} | {row['milliseconds_per_optimizer_step']:.2f} "
            f"| {facts['optimizer_steps']:g} of {facts['minibatch_sizes'][0]} | {facts['parameters']} "
            f"| {'' if compilation is None else f'{compilation:.1f}'} "
            f"| {show_return(row['first_return'])}, {show_return(row['last_return'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all sides and write the report."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--rollouts", type=int, default=14, help="number of rollouts that count, after one that warms up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n-steps", type=int, default=1024, help="steps of each environment in a rollout")
    parser.add_argument("--n-epochs", type=int, default=10)
    parser.add_argument("--core", type=int, choices=cores, default=cores[-1], help="the core to run on (Linux only)")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is not None:
        print(json.dumps(run_side(args.sides[0], args.seed, args)))
        return

    check_packages(args.sides)
    environment = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }
    options = [f"--{name}={getattr(args, name.replace('-', '_'))}" for name in ("rollouts", "n-steps", "n-epochs", "core")]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in args.sides}
    for repeat in range(args.repeats):
        for side in args.sides if repeat % 2 == 0 else args.sides[::-1]:
            run = run_alone(__file__, "--sides", side, f"--seed={repeat}", *options, **environment)
            runs[side].append(run)
            cpu, wall = (seconds(run, "whole", clock) for clock in CLOCKS)
            print(f"repeat {repeat} {side}: {cpu:.2f} s of CPU, {wall:.2f} s per rollout", flush=True)

    peers = dict.fromkeys(package for side in args.sides for package in PACKAGES[SIDES[side][0]])
    report = {
        "machine": describe_machine(),
        "versions": read_versions(*peers),
        **{name: getattr(args, name) for name in ("repeats", "rollouts", "n_steps", "n_epochs")},
        "pairs": [compare(pair, runs) for pair in PAIRS if {pair["ours"], pair["peer"]} <= set(args.sides)],
        "sides": [summarize_side(side, runs[side], 4 * args.n_steps) for side in args.sides],
        "runs": runs,
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
