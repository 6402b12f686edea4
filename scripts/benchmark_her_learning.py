"""
Show how hindsight experience replay learns with 1 to 32 environments, with and without updates that follow their number.

DQN and FastHerReplayBuffer on BitFlipping: success rate of 50 greedy episodes, every 400 timesteps. Each run is a process of
its own with one torch thread. Curves are interquartile means over the seeds with 95 % bootstrap intervals. Time is that of
learning alone: evaluations are left out. "parking" is SAC on parking-v0 (package highway-env), with 1 and with 8 environments.

    python scripts/benchmark_her_learning.py --jobs 2 --output docs/results/her-learning
    python scripts/benchmark_her_learning.py --jobs 2 --output docs/results/her-learning --resume    # after an interruption
    python scripts/benchmark_her_learning.py --cases 6bits --seeds 0 1 --scale 0.2 --output look     # a quick look

OUTPUT-runs/ gets each run as soon as it has ended. In the end: OUTPUT.json, OUTPUT.md, OUTPUT-CASE.png.
"""

import argparse
import importlib
import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from curves import Array, describe, iqm, make_curve, rounded
from processes import describe_machine, parse_run_options, read_versions, run_all, write_report

from zoo_plugins.registry import import_object

if TYPE_CHECKING:
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

BIT_FLIPPING = dict(
    env="stable_baselines3.common.envs:BitFlippingEnv",
    algo="stable_baselines3:DQN",
    success=0.95,
    every=400,
    n_episodes=50,
    n_envs=[1, 4, 8, 32],
    gradient_steps=["n_envs", 1],
    measure="success",
    seeds=10,
    # Those of SB3's own test, and as many first timesteps for any number of environments
    hyperparams=dict(
        learning_rate=2e-3,
        learning_starts=300,
        batch_size=32,
        buffer_size=100_000,
        exploration_final_eps=0.02,
        target_update_interval=100,
        train_freq=1,
    ),
)
CASES: dict[str, dict[str, Any]] = {
    "6bits": {**BIT_FLIPPING, "env_kwargs": dict(n_bits=6), "timesteps": 6_000},
    "8bits": {**BIT_FLIPPING, "env_kwargs": dict(n_bits=8), "timesteps": 6_000},
    "parking": dict(
        env="parking-v0",
        imports="highway_env",
        env_kwargs={},
        algo="stable_baselines3:SAC",
        timesteps=16_000,
        success=0.8,
        every=4_000,
        n_episodes=10,
        n_envs=[1, 8],
        gradient_steps=["n_envs"],
        measure="return",
        seeds=3,
        hyperparams=dict(
            learning_rate=1e-3,
            learning_starts=1_000,
            batch_size=128,
            gamma=0.95,
            tau=0.05,
            buffer_size=100_000,
            train_freq=1,
            policy_kwargs=dict(net_arch=[128, 128]),
        ),
    ),
}


def list_sides(case: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """
    List what is compared in a case.

    :param case: One of the cases
    :return: number of environments and updates per rollout, by label; with one environment, both kinds of updates are the same
    """
    sides: dict[str, dict[str, Any]] = {}
    for gradient_steps in case["gradient_steps"]:
        for n_envs in case["n_envs"]:
            if n_envs > 1 or gradient_steps == case["gradient_steps"][0]:
                sides[f"n_envs {n_envs}, gradient_steps {gradient_steps}"] = dict(n_envs=n_envs, gradient_steps=gradient_steps)
    return sides


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Train one side, in this process.

    :param settings: All that decides about the result
    :return: the settings; timesteps and CPU seconds of learning; success rate, timesteps, updates, CPU and wall seconds of
        learning at each evaluation
    """
    import torch as th
    from stable_baselines3.common.callbacks import ConvertCallback
    from stable_baselines3.common.env_util import make_vec_env

    from zoo_plugins import FastHerReplayBuffer, UpdateRatioCallback

    th.set_num_threads(1)
    if "imports" in settings:
        importlib.import_module(settings["imports"])
    make: Any = import_object(settings["env"]) if ":" in settings["env"] else settings["env"]
    env, eval_env = (
        make_vec_env(make, n, seed=settings["seed"] + offset, env_kwargs=settings["env_kwargs"])
        for n, offset in ((settings["n_envs"], 0), (settings["n_episodes"], 10_000))
    )
    model: OffPolicyAlgorithm = import_object(settings["algo"])(
        "MultiInputPolicy",
        env,
        replay_buffer_class=FastHerReplayBuffer,
        seed=settings["seed"],
        device="cpu",
        **settings["hyperparams"],
    )
    found: dict[str, list[float]] = {"timesteps": [], "updates": [], "cpu": [], "wall": [], "success": [], "return": []}
    clock = {"cpu": time.process_time(), "wall": time.perf_counter()}

    def look(variables: dict[str, Any], _: dict[str, Any]) -> bool:
        if model.num_timesteps >= settings["every"] * (1 + len(found["success"])):
            found["cpu"].append(round(time.process_time() - clock["cpu"], 3))
            found["wall"].append(round(time.perf_counter() - clock["wall"], 3))
            before = time.process_time(), time.perf_counter()
            found["timesteps"].append(model.num_timesteps)
            found["updates"].append(model._n_updates)
            for key, value in evaluate(model, eval_env).items():
                found[key].append(value)
            clock["cpu"] += time.process_time() - before[0]
            clock["wall"] += time.perf_counter() - before[1]
        return True

    model.learn(settings["timesteps"], callback=[ConvertCallback(look), UpdateRatioCallback(settings["gradient_steps"])])
    return {"settings": settings, "timesteps": found["timesteps"][-1], "cpu": found["cpu"][-1], "evaluations": found}


def evaluate(model: "OffPolicyAlgorithm", env: Any) -> dict[str, float]:
    """
    Let an agent act greedily for one episode in each environment.

    :param model: The agent
    :param env: The environments
    :return: share of episodes that end in success, and mean return
    """
    obs = env.reset()
    success, returns = np.full((2, env.num_envs), np.nan)
    while np.isnan(success).any():
        obs, _, dones, infos = env.step(model.predict(obs, deterministic=True)[0])
        for i in np.flatnonzero(dones & np.isnan(success)):
            success[i], returns[i] = infos[i]["is_success"], infos[i]["episode"]["r"]
    return {"success": float(success.mean()), "return": round(float(returns.mean()), 3)}


def summarize(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """
    Compare the sides of a case.

    :param name: Name of the case
    :param runs: Runs of each side, by seed
    :return: areas under the curve, times to success and curves, by side
    """
    case = CASES[name]
    evaluations = {side: [run["evaluations"] for run in side_runs] for side, side_runs in runs.items()}
    n_points = min(len(run["success"]) for side_runs in evaluations.values() for run in side_runs)
    baseline: Array | None = None
    found: dict[str, Any] = {}
    for side, side_runs in evaluations.items():
        success = np.array([run["success"][:n_points] for run in side_runs])
        values = success * 100 if case["measure"] == "success" else np.array([run["return"][:n_points] for run in side_runs])
        area = values.mean(axis=1)
        points: Array = np.linspace(case["every"], case["every"] * n_points, n_points)
        to_success = [np.flatnonzero(row >= case["success"]) for row in success]
        times = {
            axis: rounded(
                [run[axis][first[0]] if len(first) else np.inf for run, first in zip(side_runs, to_success, strict=True)]
            )
            for axis in ("timesteps", "wall", "cpu")
        }
        found[side] = {
            "area": describe(area, baseline),
            "last": rounded(iqm(values[:, -1])),
            "to_success": times,
            "reached": sum(len(first) > 0 for first in to_success),
            "updates": side_runs[0]["updates"][n_points - 1],
            "cpu": rounded(np.median([run["cpu"][n_points - 1] for run in side_runs])),
            "wall": rounded(np.median([run["wall"][n_points - 1] for run in side_runs])),
            "curve": make_curve(points, values),
            "wall_points": rounded(np.median([run["wall"][:n_points] for run in side_runs], axis=0)),
        }
        baseline = area if baseline is None else baseline
    label = {"success": "success, %", "return": "return"}[case["measure"]]
    return {"case": name, "success": case["success"], "label": label, "sides": found}


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """

    def median(values: list[float | None]) -> str:
        middle = np.median([np.inf if value is None else value for value in values])
        return f"{middle:,.4g}" if np.isfinite(middle) else "never"

    lines = [
        f"{report['machine']}; one torch thread per process; {report['jobs']} run(s) at a time.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| case | environments and updates | measure | mean over the run | difference from the first | at the end "
        "| seeds that succeed | timesteps to it | wall s to it | updates | wall s of the run |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in report["cases"]:
        for side, row in case["sides"].items():
            area = row["area"]
            difference = ""
            if "difference" in area:
                low, high = area["difference_interval"]
                difference = f"{area['difference']:.1f} [{low:.1f}, {high:.1f}]"
            lines.append(
                f"| {case['case']} | {side} | {case['label']} "
                f"| {area['iqm']:.1f} [{area['interval'][0]:.1f}, {area['interval'][1]:.1f}] "
                f"| {difference} | {row['last']:.0f} "
                f"| {row['reached']} of {len(area['by_seed'])} reach {case['success']:.0%} "
                f"| {median(row['to_success']['timesteps'])} | {median(row['to_success']['wall'])} "
                f"| {row['updates']:,} | {row['wall']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def plot(case: dict[str, Any], path: Path) -> None:
    """
    Draw the curves of a case, against timesteps and against wall time.

    :param case: What summarize() returned
    :param path: The PNG to write
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), dpi=90, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for i, (side, row) in enumerate(case["sides"].items()):
        curve = row["curve"]
        style = dict(color=f"C{i}", linestyle="-" if side.endswith("n_envs") else "--")
        for panel, x in zip(panels, (curve["x"], row["wall_points"]), strict=True):
            panel.plot(x, curve["iqm"], label=side, **style)
        panels[0].fill_between(curve["x"], curve["low"], curve["high"], color=f"C{i}", alpha=0.15, linewidth=0)
    panels[0].set(xlabel="timesteps", ylabel=case["label"])
    panels[1].set(xlabel="wall seconds (log)", xscale="log")
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[1].legend(fontsize="small")
    figure.suptitle(f"{case['case']}: interquartile mean, 95 % bootstrap interval")
    figure.savefig(path)


def main() -> None:
    """Run all sides and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=["6bits", "8bits"])
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 0 to 9, 0 to 2 for parking")
    args = parse_run_options(parser, "her-learning")
    if args.settings:
        print(json.dumps(train(args.settings)))
        return

    settings = {}
    for name in args.cases:
        case = CASES[name]
        for seed in args.seeds if args.seeds is not None else range(case["seeds"]):
            for i, (side, values) in enumerate(list_sides(case).items()):
                settings[f"{name}-{i}-{seed}"] = {
                    **{key: value for key, value in case.items() if key not in ("seeds", "success", "measure")},
                    **values,
                    "case": name,
                    "side": side,
                    "seed": seed,
                    "timesteps": round(case["timesteps"] * args.scale),
                    "machine": describe_machine(),
                    "versions": read_versions(),
                }
    done = run_all(__file__, settings, args)
    cases = []
    for name in args.cases:
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in list_sides(CASES[name])}
        for run in done.values():
            if run["settings"]["case"] == name:
                runs[run["settings"]["side"]].append(run)
        cases.append(summarize(name, runs))
    report = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "scale": args.scale,
        "jobs": args.jobs,
        "cases": cases,
    }
    write_report(report, to_markdown(report), args.output)
    for case in cases:
        plot(case, args.output.with_name(f"{args.output.name}-{case['case']}.png"))


if __name__ == "__main__":
    main()
