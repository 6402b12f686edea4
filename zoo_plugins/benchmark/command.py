"""``python -m zoo_plugins benchmark``: from the command line to the table."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from zoo_plugins.benchmark.comparisons import COMPARISONS
from zoo_plugins.benchmark.machine import describe_machine, read_versions
from zoo_plugins.benchmark.table import print_table
from zoo_plugins.benchmark.timing import summarize, take_turns
from zoo_plugins.registry import PluginError, did_you_mean

ZOO_COMMAND = "zoo-benchmark"  # in which __main__ keeps the zoo's script of the same name


def main(arguments: Sequence[str]) -> int:
    """
    Compare our classes with upstream's, and print a table.

    :param arguments: What stands after ``benchmark``
    :return: exit status
    :raises PluginError: if the file for the results can't be written
    """
    import torch as th

    args = _parse(arguments)
    if args.json is not None:
        _check_file(args.json)
    th.set_num_threads(1)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "seconds": args.seconds,
        "comparisons": {},
    }
    for name in args.only:
        comparison = COMPARISONS[name]
        print(f"{name}: {comparison.theirs} and {comparison.ours}, in turns", file=sys.stderr, flush=True)
        pair = comparison.make()
        try:
            turns = take_turns(pair, args.seconds)
        finally:
            pair.close()
        report["comparisons"][name] = summarize(comparison, pair.size, turns)
        if args.json is not None:
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    print_table(report, Console())
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m zoo_plugins benchmark",
        description="Compare our classes with upstream's on this machine: both do the same work, in turns.",
        epilog=f"The zoo's own script of this name, which evaluates trained agents, is python -m zoo_plugins {ZOO_COMMAND}.",
    )
    names = ", ".join(COMPARISONS)
    parser.add_argument("--only", nargs="+", type=_name, metavar="NAME", default=list(COMPARISONS), help=f"some of {names}")
    parser.add_argument("--seconds", type=_seconds, default=30.0, help="for each comparison, about (default: 30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was measured")
    return parser.parse_args(arguments)


def _name(text: str) -> str:
    if text not in COMPARISONS:
        hint = did_you_mean(text, COMPARISONS)
        raise argparse.ArgumentTypeError(f"unknown comparison {text!r}{hint} Valid: {', '.join(COMPARISONS)}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, not {text!r}")
    return seconds


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise PluginError(f"--json: {str(path)!r} is a folder, expected the name of a file")
    if not path.parent.is_dir():
        raise PluginError(f"--json: {str(path)!r}: there is no folder {str(path.parent)!r}")
