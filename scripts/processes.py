"""What all benchmarks share: processes of their own, runs that are kept, and where it all ran."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from zoo_plugins.benchmark.machine import describe_machine as describe_machine
from zoo_plugins.benchmark.machine import read_versions as read_versions


def run_alone(*arguments: str, **environment: str) -> dict[str, Any]:
    """
    Run a script in a process of its own, with one thread.

    :param arguments: Path of the script, and its arguments
    :param environment: Environment variables for it, besides the present ones
    :return: what it prints in its last line, as JSON
    :raises SystemExit: if it fails; it has told why
    """
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, *arguments], check=False, stdout=subprocess.PIPE, text=True, env=variables)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed with exit status {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_once(script: str, settings: dict[str, Any], path: Path, resume: bool) -> dict[str, Any]:
    """
    Train in a process of its own, and write what that returns.

    :param script: Path of a script that takes ``--settings`` and prints its result: the settings, CPU seconds and timesteps
    :param settings: All that decides about the result
    :param path: Where to write it; the name of the file tells what was trained
    :param resume: Read it, if it was written before, with the same settings
    :return: the result
    """
    if resume and path.is_file():
        found: dict[str, Any] = json.loads(path.read_text())
        if found["settings"] == settings:
            return found
        print(f"{path.stem}: the settings have changed since its last run", flush=True)
    done = run_alone(script, "--settings", json.dumps(settings))
    # Written aside first, so that there is never half a file, wherever it is interrupted
    path.with_suffix(".new").write_text(json.dumps(done, separators=(",", ":")) + "\n")
    path.with_suffix(".new").replace(path)
    print(f"{path.stem}: {done['cpu']:.1f} s, {done['timesteps'] / done['cpu']:.0f} fps", flush=True)
    return done


def parse_run_options(parser: argparse.ArgumentParser, output: str) -> argparse.Namespace:
    """
    Parse arguments, those of all benchmarks that keep their runs among them.

    :param parser: The parser of the script's own arguments
    :param output: Default of ``--output``
    :return: the arguments
    :raises SystemExit: if they are wrong, or plots can't be drawn
    """
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of timesteps")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs at the same time")
    parser.add_argument("--output", type=Path, default=Path(output), help=f"default: {output}")
    parser.add_argument("--resume", action="store_true", help="keep runs that were made here with the same settings")
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.scale <= 0 or args.jobs < 1:
        parser.error("--scale must be positive, and --jobs at least 1")
    if not args.settings and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("plots need matplotlib: pip install 'zoo-plugins[plots]'")
    return args


def run_all(script: str, settings: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """
    Train in processes of their own, each of which writes its result to OUTPUT-runs/.

    :param script: Path of the script
    :param settings: All that decides about the result, by name of the run
    :param args: What :func:`parse_run_options` returned
    :return: results by name of the run
    """
    folder = args.output.with_name(f"{args.output.name}-runs")
    folder.mkdir(parents=True, exist_ok=True)

    def run(name: str) -> dict[str, Any]:
        return run_once(script, settings[name], folder / f"{name}.json", args.resume)

    with ThreadPoolExecutor(args.jobs) as pool:
        return dict(zip(settings, pool.map(run, settings), strict=True))


def write_report(report: dict[str, Any], tables: str, output: Path | None) -> None:
    """
    Print the tables of a report, and write them and the report.

    :param report: The report
    :param tables: Its tables, in Markdown
    :param output: Write OUTPUT.json and OUTPUT.md; None: nothing
    """
    print(tables)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_name(f"{output.name}.json").write_text(json.dumps(report, separators=(",", ":")) + "\n")
        output.with_name(f"{output.name}.md").write_text(tables)
