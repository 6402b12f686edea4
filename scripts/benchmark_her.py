"""
Compare FastHerReplayBuffer with SB3's HerReplayBuffer: samples, adds, construction and whole runs.

Buffers are full of transitions of the shape of FetchPush, in episodes of 50 steps; goals are replaced as by `future`, with
n_sampled_goal 4. Calls of both sides are timed in turns in one process, 15 rounds of them; a step is added, outside of the
timing, before each sample ("1 per step") or each 8 of them ("8 per step", as an update phase does with 8 environments).
Whole runs, and constructors, are processes of their own, one side after the other, in an order that changes from seed to
seed. Everything has one torch thread. Times are CPU times of the process, but wall times with worker processes (subproc).
Ratios are medians over rounds and seeds, with quartiles. What is measured is in scripts/her_timings.py.

    python scripts/benchmark_her.py --output docs/results/her-speed
    python scripts/benchmark_her.py --cases sample-8-1e5 dqn --seeds 0 --scale 0.2     # a quick look
"""

import argparse
import importlib.util
import itertools
import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from her_timings import LEARNING_SIDES, UPDATES_PER_STEP, measure
from her_work import BUFFERS, TOY
from processes import describe_machine, read_versions, run_alone, write_report

BITS = "zoo_plugins.envs:BitFlipping-v0"
THREE_SIDES = ("sb3-1-env", "sb3", "ours")
# What is measured; with the ratio that a prototype reached and the one to reach, where there is one. Those of samples are by
# batch size, without and with VecNormalize
CASES: dict[str, dict[str, Any]] = {
    "sample-8-1e5": dict(
        kind="sample", n_envs=8, n_rows=1e5, targets={256: ((6.4, 7), (4.9, 5.5)), 2048: ((5.7, 6), (4.4, 5))}
    ),
    "sample-8-1e6": dict(kind="sample", n_envs=8, n_rows=1e6, targets={256: ((13, 14), (10, 11)), 2048: ((6.3, 7), (5.3, 6))}),
    "sample-1-1e5": dict(kind="sample", n_envs=1, n_rows=1e5),
    "sample-1-1e6": dict(kind="sample", n_envs=1, n_rows=1e6),
    "sample-8-1e5-subproc": dict(kind="sample", n_envs=8, n_rows=1e5, subproc=True, targets={256: ((11, 12),)}),
    "add-1": dict(kind="add", n_envs=1, n_rows=1e5),
    "add-8": dict(kind="add", n_envs=8, n_rows=1e5, targets=(1.1, 1)),
    "add-32": dict(kind="add", n_envs=32, n_rows=1e5, targets=(1.5, 1.5)),
    "construct-1-1e6": dict(kind="construct", n_envs=1, n_rows=1e6),
    "construct-8-1e6": dict(kind="construct", n_envs=8, n_rows=1e6),
    "dqn": dict(
        kind="learn", algo="stable_baselines3:DQN", env=BITS, env_kwargs={"n_bits": 10}, timesteps=10_000, targets=(1.19, 1.3)
    ),
    "sac": dict(kind="learn", algo="stable_baselines3:SAC", env=TOY, timesteps=4000, targets=(1.08, 1.15)),
    "tqc": dict(kind="learn", algo="sb3_contrib:TQC", env=TOY, timesteps=4000),
    **{
        f"sac-{name}": dict(
            kind="learn", algo="stable_baselines3:SAC", env=f"gymnasium_robotics:{name}-v4", timesteps=4000, sides=THREE_SIDES
        )
        for name in ("FetchReach", "FetchPush", "FetchPickAndPlace", "FetchSlide")
    },
}
N_ENVS = 8  # of whole runs, but for one side


def can_run(name: str) -> bool:
    """
    Look whether the environment of a case is installed.

    :param name: Name of the case
    :return: whether it is
    """
    return importlib.util.find_spec(CASES[name].get("env", TOY).partition(":")[0]) is not None


def find_sides(case: dict[str, Any]) -> tuple[str | None, ...]:
    """
    List what has a process of its own.

    :param case: One of the cases
    :return: names of sides, or None where one process is for both sides
    """
    if case["kind"] == "learn":
        return tuple(case.get("sides", LEARNING_SIDES))
    return tuple(BUFFERS) if case["kind"] == "construct" else (None,)


def compare(theirs: list[float], ours: list[float]) -> dict[str, Any]:
    """
    Compare measurements that were made in turns.

    :param theirs: Those of SB3
    :param ours: Those of ours
    :return: medians of both and of the ratios, and the ratios' quartiles
    """
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios
    return {
        "sb3": statistics.median(theirs),
        "ours": statistics.median(ours),
        "ratio": statistics.median(ratios),
        "quartiles": [low, high],
    }


def summarize_calls(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """
    Compare calls, over all rounds of all seeds.

    :param runs: Rows of each seed
    :return: rows with the comparison in place of the measurements
    """
    found = []
    for rows in zip(*runs, strict=True):
        both = ([value for row in rows for value in row["microseconds"][side]] for side in BUFFERS)
        found.append({**{key: value for key, value in rows[0].items() if key != "microseconds"}, **compare(*both)})
    return found


def summarize_sides(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """
    Compare processes.

    :param runs: Measurements of each side, by seed
    :return: for each side, medians of the measurements, and comparisons of seconds with those of "sb3"
    """
    found: dict[str, Any] = {}
    for side, rows in runs.items():
        seconds = ([row["seconds"] for row in other] for other in (runs["sb3"], rows))
        found[side] = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        found[side].update({key: value for key, value in compare(*seconds).items() if key in ("ratio", "quartiles")})
    return found


def show_ratio(row: dict[str, Any]) -> str:
    """
    Write a ratio.

    :param row: What compare() returned
    :return: Markdown
    """
    low, high = row["quartiles"]
    return f"**{row['ratio']:.2f}** ({low:.2f}-{high:.2f})"


def show_targets(targets: Any) -> str:
    """
    Write what is to be reached.

    :param targets: Ratios of the prototype and of the goal, if there are any
    :return: two cells
    """
    return " | ".join(f"{value:g}" for value in targets) if targets else " | "


def make_table(head: str, rows: Iterable[str]) -> list[str]:
    """
    Put a table together.

    :param head: Names of the columns
    :param rows: Its rows
    :return: lines; none if there is no row
    """
    lines = [f"| {row} |" for row in rows]
    return ["", f"| {head} |", "|---" * (head.count("|") + 1) + "|", *lines] if lines else []


def show_samples(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """
    Write the rows of a case of samples: one for all numbers of samples after a step.

    :param name: Name of the case
    :param rows: What summarize_calls() returned
    :return: rows of Markdown
    """
    targets = CASES[name].get("targets", {})
    lines = []
    for (batch_size, normalized), group in itertools.groupby(rows, lambda row: (row["batch_size"], row["normalized"])):
        cells = [f"{row['sb3']:.0f} | {row['ours']:.0f} | {show_ratio(row)}" for row in group]
        target = dict(enumerate(targets.get(batch_size, ()))).get(int(normalized))
        lines.append(f"{name} | {batch_size} | {'yes' if normalized else ''} | {' | '.join(cells)} | {show_targets(target)}")
    return lines


def show_learning(name: str, sides: dict[str, Any]) -> str:
    """
    Write how fast whole runs are.

    :param name: Name of the case
    :param sides: What summarize_sides() returned
    :return: a row of Markdown
    """
    fps = [f"{sides[side]['timesteps'] / sides[side]['seconds']:.0f}" for side in THREE_SIDES]
    ratios = [show_ratio(sides[side]) if side in sides else "" for side in ("ours", "ours-fused", "ours-unvalidated")]
    return " | ".join([name, *fps, *ratios, show_targets(CASES[name].get("targets"))])


def show_phases(name: str, sides: dict[str, Any]) -> str:
    """
    Write how long a timestep and an update take.

    :param name: Name of the case
    :param sides: What summarize_sides() returned
    :return: a row of Markdown
    """
    cells = [name]
    for phase, unit in (("collect_seconds", "timesteps"), ("update_seconds", "updates")):
        cells += [f"{1e6 * sides[side][phase] / sides[side][unit]:.0f}" for side in THREE_SIDES]
    return " | ".join(cells)


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """
    cases: dict[str, Any] = report["cases"]

    def show(kind: str, write: Callable[[str, Any], Any]) -> list[Any]:
        return [write(name, found) for name, found in cases.items() if CASES[name]["kind"] == kind]

    def show_add(name: str, rows: list[dict[str, Any]]) -> str:
        (row,) = rows
        return (
            f"{name} | {row['sb3']:.1f} | {row['ours']:.1f} | {show_ratio(row)} | {show_targets(CASES[name].get('targets'))}"
        )

    def show_construction(name: str, sides: dict[str, Any]) -> str:
        cells = [f"{sides[side]['seconds'] * 1000:.1f}" for side in BUFFERS]
        cells += [f"{sides[side][key]:.0f}" for key in ("empty_mib", "full_mib") for side in BUFFERS]
        return " | ".join([name, *cells])

    per_step = " | ".join(f"{n} per step: SB3, us | ours, us | ratio" for n in UPDATES_PER_STEP)
    phases = " | ".join(f"us per {unit}: SB3, 1 env | SB3, {N_ENVS} | ours, {N_ENVS}" for unit in ("timestep", "update"))
    fps = f"fps: SB3, 1 env | SB3, {N_ENVS} | ours, {N_ENVS}"
    lines = [
        f"{report['machine']}; seeds {', '.join(map(str, report['seeds']))}; one torch thread per process; "
        f"{report['scale']:g} of each case's transitions and timesteps.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        *make_table(
            f"sample() | batch | VecNormalize | {per_step} | prototype | goal",
            itertools.chain.from_iterable(show("sample", show_samples)),
        ),
        *make_table("add() | SB3, us | ours, us | ratio | prototype | goal", show("add", show_add)),
        *make_table(
            "constructor | SB3, ms | ours, ms | empty: SB3, MiB | ours, MiB | full: SB3, MiB | ours, MiB",
            show("construct", show_construction),
        ),
        *make_table(f"learn() | {fps} | ratio | fused Adam | no validation | prototype | goal", show("learn", show_learning)),
        *make_table(f"learn() | {phases}", show("learn", show_phases)),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all cases and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), help="default: those whose environment is installed")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the numbers of transitions and timesteps")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.settings:
        print(json.dumps({"rows": measure(args.settings)}))
        return
    names = args.cases or [name for name in CASES if can_run(name)]
    missing = [name for name in names if not can_run(name)]
    if missing:
        raise SystemExit(f"{', '.join(missing)}: pip install -c constraints.txt -e '.[robotics]', or choose other --cases")

    runs: dict[str, dict[Any, list[Any]]] = {name: {side: [] for side in find_sides(CASES[name])} for name in names}
    for i, seed in enumerate(args.seeds):
        for name in names:
            case = {"n_envs": N_ENVS, **CASES[name]}
            for side in find_sides(case)[:: 1 if i % 2 == 0 else -1]:
                settings = {"case": case, "side": side, "seed": seed, "scale": args.scale}
                rows = run_alone(__file__, "--settings", json.dumps(settings))["rows"]
                runs[name][side].append(rows if side is None else rows[0])
                print(f"{name} seed {seed} {side or ''}: done", flush=True)

    report = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "seeds": args.seeds,
        "scale": args.scale,
        "cases": {
            name: summarize_calls(found[None]) if None in found else summarize_sides(found) for name, found in runs.items()
        },
        "runs": {name: found.get(None, found) for name, found in runs.items()},
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
