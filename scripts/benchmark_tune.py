"""
Compare `python -m zoo_plugins tune` with the zoo's own `-optimize`, on one machine.

All sides search the learning rate of PPO on CartPole-v1, with the same number of trials and timesteps, the same sampler, no
pruner and two evaluations per trial. "sequential" is `-optimize` in one process, "threads" the same with `--n-jobs`, "tune"
that number of workers, "tune-1" a single one. Sides take turns; what counts is wall time, from the start of a command to its
end. Overhead is what a trial takes longer in the single worker than in the sequential process, from the end of the first trial
to the end of the last one.

    pip install -c constraints.txt -e '.[tune]'
    python scripts/benchmark_tune.py --output docs/results/tune
    python scripts/benchmark_tune.py --trials 4 --timesteps 1000 --rounds 1     # a quick look
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import describe_machine, read_versions, write_report

HYPERPARAMS = """
CartPole-v1:
  n_timesteps: {timesteps}
  policy: MlpPolicy
  n_envs: 8
  n_steps: 32
  batch_size: 256
  n_epochs: 10
  search_space:
    replace: true
    learning_rate: {{low: 1e-4, high: 1e-2, log: true}}
"""
SIDES = ("sequential", "threads", "tune", "tune-1")
# Wall time of "tune" by that of another side, at most; and overhead per trial in seconds
GOAL, GOAL_OVERHEAD = 0.6, 1.0


def command(side: str, folder: Path, n_trials: int, jobs: int) -> list[str]:
    """
    Make the command line of a side.

    :param side: One of SIDES
    :param folder: Where it may write, and where conf.yml is
    :param n_trials: Number of trials
    :param jobs: Number of threads, or workers
    :return: arguments
    """
    common = ["--algo", "ppo", "--env", "CartPole-v1", "--conf-file", f"{folder}/conf.yml", "--n-trials", f"{n_trials}"]
    common += ["--sampler", "random", "--pruner", "none", "--n-evaluations", "2", "--seed", "0", "-f", f"{folder}/logs"]
    common += ["--storage", f"{folder}/study.log", "--study-name", "study", "--no-optim-plots", "--verbose", "0"]
    if side.startswith("tune"):
        return [sys.executable, "-m", "zoo_plugins", "tune", *common, "--workers", "1" if side == "tune-1" else f"{jobs}"]
    n_jobs = str(jobs) if side == "threads" else "1"
    options = ["-optimize", "--n-jobs", n_jobs, "--num-threads", "1"]
    return [sys.executable, "-m", "rl_zoo3.train", *common, *options]


def run(side: str, n_trials: int, timesteps: int, jobs: int) -> dict[str, Any]:
    """
    Run one side.

    :param side: One of SIDES
    :param n_trials: Number of trials
    :param timesteps: Timesteps of each
    :param jobs: Number of threads, or workers
    :return: wall seconds of the command, and of all trials after the first one that ended
    :raises RuntimeError: if the command fails, or a trial did not finish
    """
    from optuna import load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conf.yml").write_text(HYPERPARAMS.format(timesteps=timesteps))
        start = time.perf_counter()
        done = subprocess.run(
            command(side, folder, n_trials, jobs),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise RuntimeError(f"{side} failed:\n{done.stdout}\n{done.stderr}")
        study = load_study(study_name="study", storage=JournalStorage(JournalFileBackend(str(folder / "study.log"))))
        trials = study.get_trials(states=(TrialState.COMPLETE,))
        if len(trials) != n_trials:
            raise RuntimeError(f"{side} finished {len(trials)} of {n_trials} trials:\n{done.stdout}\n{done.stderr}")
        ends = sorted(trial.datetime_complete for trial in trials if trial.datetime_complete is not None)
    return {"seconds": seconds, "after_first": (ends[-1] - ends[0]).total_seconds()}


def summarize(runs: dict[str, list[dict[str, Any]]], n_trials: int) -> dict[str, Any]:
    """
    Compare sides.

    :param runs: What run() returned, by side and round
    :param n_trials: Number of trials
    :return: medians over rounds: seconds of each side, ratio of "tune" to it, and overhead per trial
    """
    tune = runs["tune"]
    sides = {
        side: {
            "seconds": statistics.median(row["seconds"] for row in rows),
            "ratio": statistics.median(ours["seconds"] / row["seconds"] for ours, row in zip(tune, rows, strict=True)),
        }
        for side, rows in runs.items()
    }
    pairs = zip(runs["tune-1"], runs["sequential"], strict=True)
    overheads = [(one["after_first"] - other["after_first"]) / (n_trials - 1) for one, other in pairs]
    return {"sides": sides, "overhead": statistics.median(overheads)}


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as a table.

    :param report: The report
    :return: Markdown
    """
    jobs = report["jobs"]
    labels = {
        "sequential": "`-optimize`",
        "threads": f"`-optimize --n-jobs {jobs}`",
        "tune": f"`tune --workers {jobs}`",
        "tune-1": "`tune --workers 1`",
    }
    lines = [
        f"{report['machine']}; medians of {report['rounds']} rounds.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        f"| {report['trials']} trials of {report['timesteps']} timesteps | wall seconds "
        f"| time of `tune --workers {jobs}` by it | goal, at most |",
        "|---|---|---|---|",
    ]
    for side, row in report["sides"].items():
        goal = f"{GOAL:g}" if side in ("sequential", "threads") else ""
        lines.append(f"| {labels[side]} | {row['seconds']:.1f} | {row['ratio']:.2f} | {goal} |")
    overhead = f"A trial took {report['overhead']:.2f} s longer in a worker than in the sequential process (goal: under"
    return "\n".join([*lines, "", f"{overhead} {GOAL_OVERHEAD:g} s).", ""])


def main() -> None:
    """Measure all sides and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--timesteps", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=2, help="threads, and workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    args = parser.parse_args()
    if args.trials < 2:
        parser.error("--trials must be at least 2: overhead is measured after the first")

    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for i in range(args.rounds):
        for side in SIDES[:: 1 if i % 2 == 0 else -1]:
            runs[side].append(run(side, args.trials, args.timesteps, args.jobs))
            print(f"round {i}, {side}: {runs[side][-1]['seconds']:.1f} s", flush=True)
    report = {
        "machine": describe_machine(),
        "versions": read_versions("optuna", "ray"),
        "rounds": args.rounds,
        "trials": args.trials,
        "timesteps": args.timesteps,
        "jobs": args.jobs,
        **summarize(runs, args.trials),
        "runs": runs,
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
