"""
Compare how SeqRecurrentPPO and sb3_contrib's RecurrentPPO learn: returns against timesteps and against time.

Three sides: RecurrentPPO with the hyperparameters of rl_zoo3's ppo_lstm.yml ("upstream"), SeqRecurrentPPO with the same
("equal"), and SeqRecurrentPPO with those of ppo_lstm_seq.yml ("tuned"). Each run is a process of its own with one torch
thread. The sides of a seed run one after the other, and the order changes from seed to seed. Time is CPU time of the process,
which a busy machine inflates less than wall time; wall times are reported beside it. Curves are interquartile means over the
seeds with bootstrap intervals (scripts/curves.py).

    python scripts/benchmark_learning.py --jobs 2 --output learning
    python scripts/benchmark_learning.py --jobs 2 --output learning --resume     # go on after an interruption
    python scripts/benchmark_learning.py --envs CartPoleNoVel-v1 --seeds 0 1 --scale 0.1 --output look     # a quick look

OUTPUT-runs/ gets the episodes of each run, as soon as it has ended. In the end: OUTPUT.json, OUTPUT.md, OUTPUT-ENV.png.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from curves import Array, at_points, describe, draw_curve, make_curve, rounded
from processes import describe_machine, parse_run_options, read_versions, run_all, write_report
from recurrent_runs import OUR_FILE, UPSTREAM_FILE, make_model, read_hyperparams

from zoo_plugins.registry import import_object

if TYPE_CHECKING:
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

# Timesteps of a run, and the return that an agent has to reach
ENVS: dict[str, dict[str, int]] = {
    "PendulumNoVel-v1": dict(timesteps=100_000, threshold=-250),
    "CartPoleNoVel-v1": dict(timesteps=100_000, threshold=450),
    "MountainCarContinuousNoVel-v0": dict(timesteps=49_152, threshold=90),
}
SIDES: dict[str, dict[str, str]] = {
    "upstream": dict(label="RecurrentPPO", cls="sb3_contrib:RecurrentPPO", file=UPSTREAM_FILE),
    "equal": dict(label="SeqRecurrentPPO", cls="zoo_plugins:SeqRecurrentPPO", file=UPSTREAM_FILE),
    "tuned": dict(label="SeqRecurrentPPO, tuned", cls="zoo_plugins:SeqRecurrentPPO", file=OUR_FILE),
}
WINDOW = 20  # episodes in a mean
POINTS = 50  # of a curve


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Train one side, in this process.

    :param settings: Side, environment, hyperparameters, seed and number of timesteps
    :return: the settings; timesteps, CPU and wall seconds of the whole run; and the same at the end of each episode, with
        its return
    """
    import torch as th

    th.set_num_threads(1)
    cls = import_object(SIDES[settings["side"]]["cls"])
    model = make_model(cls, settings["env"], settings["hyperparams"], settings["seed"])
    return {"settings": settings, **learn(model, settings["timesteps"])}


def learn(model: "OnPolicyAlgorithm", timesteps: int) -> dict[str, Any]:
    """
    Let a model learn, and keep its episodes.

    :param model: The model
    :param timesteps: Number of timesteps
    :return: timesteps, CPU and wall seconds of the whole run; and the same at the end of each episode, with its return
    """
    episodes: dict[str, list[float]] = {"timesteps": [], "cpu": [], "wall": [], "return": []}
    cpu, wall = time.process_time(), time.perf_counter()

    def progress() -> dict[str, float]:
        return {
            "timesteps": model.num_timesteps,
            "cpu": round(time.process_time() - cpu, 2),
            "wall": round(time.perf_counter() - wall, 2),
        }

    def record(variables: dict[str, Any], _: dict[str, Any]) -> bool:
        # Where many environments are stepped together, infos of all of them are expensive
        for idx in np.flatnonzero(variables["dones"]):
            episode = variables["infos"][idx]["episode"]
            for key, value in {**progress(), "return": round(float(episode["r"]), 2)}.items():
                episodes[key].append(value)
        return True

    model.learn(timesteps, callback=record)
    return {**progress(), "episodes": episodes}


def rolling_mean(returns: Array, window: int = WINDOW) -> Array:
    """
    Average over the last episodes.

    :param returns: Returns of the episodes
    :param window: Number of episodes in a mean; there are fewer of them at the start
    :return: the mean at the end of each episode
    """
    sums = np.concatenate([[0.0], np.cumsum(returns)])
    ends = np.arange(1, len(returns) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def cut_episodes(run: dict[str, Any]) -> dict[str, Array]:
    """
    Leave out the episodes after the number of timesteps asked for, which only some sides have: rollouts are of unlike length.

    :param run: What train() returned
    :return: columns of the episodes, and the mean of the last ones
    :raises SystemExit: if there is no episode
    """
    settings = run["settings"]
    columns = {key: np.array(values, dtype=float) for key, values in run["episodes"].items()}
    n_episodes = int((columns["timesteps"] <= settings["timesteps"]).sum())
    if n_episodes == 0:
        raise SystemExit(f"no episode of {settings['env']} ended within {settings['timesteps']} timesteps: raise --scale")
    columns = {key: values[:n_episodes] for key, values in columns.items()}
    return {**columns, "mean": rolling_mean(columns["return"])}


def time_to_threshold(episodes: dict[str, Array], threshold: float) -> dict[str, float]:
    """
    Find the first time at which the mean of the last 20 episodes reaches a threshold.

    :param episodes: Columns of the episodes
    :param threshold: The threshold
    :return: timesteps, CPU and wall seconds until then; infinite if it is never reached
    """
    reached = np.flatnonzero(episodes["mean"][WINDOW - 1 :] >= threshold)
    return {
        axis: float(episodes[axis][WINDOW - 1 + reached[0]]) if len(reached) else math.inf
        for axis in ("timesteps", "cpu", "wall")
    }


def final_return(episodes: dict[str, Array], budget: int) -> float:
    """
    Average over the last tenth of a run.

    :param episodes: Columns of the episodes
    :param budget: Timesteps of the run
    :return: mean return of the episodes that ended in it; of the last 20 episodes, if none did
    """
    last = episodes["return"][episodes["timesteps"] > 0.9 * budget]
    return float(last.mean() if len(last) else episodes["mean"][-1])


def summarize(env_id: str, runs: dict[str, list[dict[str, Any]]], threshold: float) -> dict[str, Any]:
    """
    Compare the sides on an environment.

    :param env_id: The environment
    :param runs: Runs of each side, by seed
    :param threshold: The return to reach
    :return: final returns, areas under the curve, times to the threshold and curves, by side
    """
    budget = next(iter(runs.values()))[0]["settings"]["timesteps"]
    episodes = {side: [cut_episodes(run) for run in side_runs] for side, side_runs in runs.items()}
    # Curves start where all runs have an episode, so that areas are over the same timesteps
    start = max(run["timesteps"][0] for side_runs in episodes.values() for run in side_runs)
    points = np.linspace(0, budget, POINTS + 1)
    points = points[points >= start]
    curves, finals, times = {}, {}, {}
    for side, side_runs in episodes.items():
        curves[side] = np.stack([at_points(run["timesteps"], run["mean"], points) for run in side_runs])
        finals[side] = np.array([final_return(run, budget) for run in side_runs])
        times[side] = [time_to_threshold(run, threshold) for run in side_runs]

    found: dict[str, Any] = {}
    for side, side_runs in episodes.items():
        compare = side != "upstream" and "upstream" in runs
        # Two decades of CPU time, in which all runs have an episode and none has ended
        last = max(0.01, min(run["cpu"][-1] for run in side_runs))
        first = max(last / 100, *(run["cpu"][0] for run in side_runs))
        cpu_points = np.geomspace(first, last, POINTS)
        cpu_curves = np.stack([at_points(run["cpu"], run["mean"], cpu_points) for run in side_runs])
        to_threshold: dict[str, Any] = {"reached": sum(math.isfinite(seed["cpu"]) for seed in times[side])}
        for axis in ("timesteps", "cpu", "wall"):
            by_seed = [seed[axis] for seed in times[side]]
            to_threshold[axis] = {"by_seed": rounded(by_seed), "median": rounded(statistics.median(by_seed))}
            if compare:
                ratio = statistics.median(seed[axis] for seed in times["upstream"]) / statistics.median(by_seed)
                to_threshold[axis]["ratio"] = rounded(ratio)
        found[side] = {
            "final": describe(finals[side], finals["upstream"] if compare else None),
            "area": describe(curves[side].mean(axis=1), curves["upstream"].mean(axis=1) if compare else None),
            "to_threshold": to_threshold,
            "cpu": statistics.median(run["cpu"] for run in runs[side]),
            "wall": statistics.median(run["wall"] for run in runs[side]),
            "fps": rounded(statistics.median(run["timesteps"] / run["cpu"] for run in runs[side])),
            "hyperparams": runs[side][0]["settings"]["hyperparams"],
            "curves": {"timesteps": make_curve(points, curves[side]), "cpu": make_curve(cpu_points, cpu_curves)},
        }
    return {"env": env_id, "timesteps": budget, "threshold": threshold, "sides": found}


def to_markdown(report: dict[str, Any], sides: dict[str, dict[str, str]] = SIDES) -> str:
    """
    Write the report as tables.

    :param report: The report
    :param sides: What was compared, with a label each
    :return: Markdown
    """

    def number(value: float | None, digits: int = 1) -> str:
        return "never" if value is None else f"{value:,.{digits}f}"

    def estimate(value: float, interval: Sequence[float]) -> str:
        return f"{value:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]"

    def difference(measure: dict[str, Any]) -> str:
        return estimate(measure["difference"], measure["difference_interval"]) if "difference" in measure else ""

    def ratio(measure: dict[str, Any]) -> str:
        return f"**{measure['ratio']:.1f}**" if measure.get("ratio") else ""

    lines = [
        f"{report['machine']}; seeds {', '.join(map(str, report['seeds']))}; one torch thread per process; "
        f"{report['jobs']} run(s) at a time.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| environment | side | final return | mean (min to max) | difference | area under the curve | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(env, side, env["sides"][side]) for env in report["envs"] for side in env["sides"]]
    for env, side, row in rows:
        final, area = row["final"], row["area"]
        lines.append(
            f"| {env['env']} | {sides[side]['label']} | {estimate(final['iqm'], final['interval'])} "
            f"| {final['mean']:.1f} ({final['min']:.1f} to {final['max']:.1f}) | {difference(final)} "
            f"| {estimate(area['iqm'], area['interval'])} | {difference(area)} |"
        )
    lines += [
        "",
        "| environment | return to reach | side | seeds that did | timesteps | CPU s | ratio | wall s | ratio "
        "| whole run: timesteps | CPU s | fps |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for env, side, row in rows:
        to_threshold = row["to_threshold"]
        timesteps, cpu, wall = (to_threshold[axis] for axis in ("timesteps", "cpu", "wall"))
        lines.append(
            f"| {env['env']} | {env['threshold']:g} | {sides[side]['label']} "
            f"| {to_threshold['reached']} of {len(row['final']['by_seed'])} | {number(timesteps['median'], 0)} "
            f"| {number(cpu['median'])} | {ratio(cpu)} | {number(wall['median'])} | {ratio(wall)} "
            f"| {env['timesteps']:,} | {number(row['cpu'])} | {number(row['fps'], 0)} |"
        )
    return "\n".join(lines) + "\n"


def plot(env: dict[str, Any], path: Path, sides: dict[str, dict[str, str]] = SIDES) -> None:
    """
    Draw the curves of an environment, against timesteps and against CPU time.

    :param env: What summarize() returned
    :param path: The PNG to write
    :param sides: What was compared, with a label each
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), dpi=90, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (axis, label) in zip(panels, {"timesteps": "timesteps", "cpu": "CPU seconds (log)"}.items(), strict=True):
        for i, (side, texts) in enumerate(sides.items()):
            if side in env["sides"]:
                draw_curve(panel, env["sides"][side]["curves"][axis], f"C{i}", texts["label"])
        panel.axhline(env["threshold"], color="gray", linestyle="--", linewidth=1, label="return to reach")
        panel.set(xlabel=label, ylabel=f"return (mean of the last {WINDOW} episodes)")
        panel.grid(alpha=0.3)
    panels[0].legend()
    panels[1].set_xscale("log")
    figure.suptitle(f"{env['env']}: interquartile mean, 95 % bootstrap interval")
    figure.savefig(path)


def parse_threshold(text: str) -> tuple[str, float]:
    """
    Read an argument.

    :param text: "environment=return"
    :return: environment and return
    :raises argparse.ArgumentTypeError: if it is something else
    """
    env_id, _, value = text.partition("=")
    try:
        if env_id in ENVS:
            return env_id, float(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not ENV=RETURN; environments are {', '.join(ENVS)}")


def main() -> None:
    """Run all sides and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--thresholds", nargs="+", type=parse_threshold, default=[], metavar="ENV=RETURN")
    args = parse_run_options(parser, "learning")
    if args.settings:
        print(json.dumps(train(args.settings)))
        return

    settings = {
        f"{env_id}-{side}-{seed}": {
            "env": env_id,
            "side": side,
            "seed": seed,
            "timesteps": round(ENVS[env_id]["timesteps"] * args.scale),
            "hyperparams": read_hyperparams(SIDES[side]["file"], env_id),
            "machine": describe_machine(),
            "versions": read_versions(),
        }
        for i, seed in enumerate(args.seeds)
        for env_id in args.envs
        for side in (args.sides if i % 2 == 0 else args.sides[::-1])
    }
    done = run_all(__file__, settings, args)
    thresholds = {env_id: ENVS[env_id]["threshold"] for env_id in args.envs} | dict(args.thresholds)
    runs = {
        env_id: {side: [done[f"{env_id}-{side}-{seed}"] for seed in args.seeds] for side in args.sides} for env_id in args.envs
    }
    report = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "seeds": args.seeds,
        "scale": args.scale,
        "jobs": args.jobs,
        "window": WINDOW,
        "envs": [summarize(env_id, runs[env_id], thresholds[env_id]) for env_id in args.envs],
    }
    write_report(report, to_markdown(report), args.output)
    for env in report["envs"]:
        plot(env, args.output.with_name(f"{args.output.name}-{env['env']}.png"))


if __name__ == "__main__":
    main()
