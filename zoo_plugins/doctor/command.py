"""``python -m zoo_plugins doctor``: from the command line to the report."""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoo_plugins import __version__
from zoo_plugins.doctor import findings, requirements
from zoo_plugins.doctor.checks import CHECKS
from zoo_plugins.doctor.findings import Finding

VERSIONS_OF = ("rl_zoo3", "stable_baselines3", "sb3_contrib", "gymnasium", "torch", "ray", "optuna")
TIME_LIMIT = 300.0  # seconds, for all checks: a plugin may wait for something while it is imported


def main(arguments: Sequence[str]) -> int:
    """
    Print what works and what does not.

    :param arguments: What stands after ``doctor``
    :return: exit status: 1 if something is broken
    """
    parser = argparse.ArgumentParser(
        "python -m zoo_plugins doctor", description="Look whether all that is installed works, and what is missing for what."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args(arguments).json

    results = run_checks()
    found = [
        *findings.find_packages(results["torch"]),
        findings.find_hook(),
        findings.find_zoo(results["zoo"]),
        *findings.find_plugins(results["plugins"]),
        findings.find_self_test(results["self_test"]),
        *findings.find_features(),
    ]
    broken = [finding for finding in found if finding.status == "broken"]
    if as_json:
        report = {"ok": not broken, "versions": read_versions(results["torch"]), "findings": list(map(asdict, found))}
        print(json.dumps(report, indent=2))
    else:
        print_report(found, len(broken))
    return 1 if broken else 0


def run_checks(time_limit: float = TIME_LIMIT) -> dict[str, Any]:
    """
    Do the checks that import something in a process of its own, which may crash or hang.

    :param time_limit: Seconds
    :return: what each check returned, or ``{"problem": ...}``
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results"
        path.touch()
        command = [sys.executable, "-m", "zoo_plugins.doctor.checks", str(path)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=time_limit)
            last = (done.stderr.strip().splitlines() or [""])[-1]
            ending = f"the process that looks has ended with exit status {done.returncode}" + (f" ({last})" if last else "")
        except subprocess.TimeoutExpired:
            ending = f"it took longer than {time_limit:g} s"
        results: dict[str, Any] = {}
        for line in path.read_text().splitlines():
            results.update(json.loads(line))
    missing = [name for name in CHECKS if name not in results]
    for name in missing:
        results[name] = {"problem": ending if name == missing[0] else f"not looked at, as {missing[0]} could not be"}
    return results


def read_versions(torch: dict[str, Any]) -> dict[str, Any]:
    """
    Look up versions.

    :param torch: What :func:`~zoo_plugins.doctor.checks.check_torch` returned
    :return: versions by name; None for what is not installed
    """
    packages = {name: requirements.installed_version(name) for name in VERSIONS_OF}
    return {
        "zoo_plugins": __version__,
        **packages,
        "cuda": torch.get("cuda"),
        "gpus": torch.get("gpus", []),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def print_report(found: list[Finding], n_broken: int) -> None:
    """
    Print a line for each finding.

    :param found: The findings
    :param n_broken: How many of them are broken
    """
    print(f"zoo_plugins {__version__}, Python {platform.python_version()}, {platform.platform()}")
    topic = ""
    for finding in found:
        if finding.topic != topic:
            topic = finding.topic
            print()
        print(finding)
    print()
    print({0: "Nothing is broken.", 1: "One thing is broken."}.get(n_broken, f"{n_broken} things are broken."))
