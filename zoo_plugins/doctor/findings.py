"""What ``doctor`` has found, a line for each: packages, the hook, plugins, the self-test, and what optional features need."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

from zoo_plugins.doctor import requirements
from zoo_plugins.registry import OWN_DISTRIBUTION

# Extras for users, and what they are for; the others are for developers
FEATURES = {
    "ray": "vec_env_class: ray",
    "envpool": "vec_env_class: envpool",
    "robotics": "the environments of hyperparams/her.yml",
    "plots": "plots in the terminal, and of benchmark scripts",
    "tune": "python -m zoo_plugins tune",
}
EXPLICIT_DOOR = "python -m zoo_plugins train works without"
LOOK_FOR_HOOK = """
import json, sys
found = sys.modules.get("zoo_plugins")
hooks = [finder for finder in sys.meta_path if type(finder).__name__ == "ZooFinder"]
print(json.dumps({"imported": found and found.__file__, "hooked": bool(hooks)}))
"""


@dataclass(frozen=True)
class Finding:
    """
    A line of the report.

    :param topic: "package", "hook", "rl_zoo3", "plugin", "self-test" or "feature"
    :param name: What was looked at
    :param status: "ok"; "missing", something optional; "off", on purpose; or "broken"
    :param text: What is known about it
    :param fix: A command that may help, None if there is none
    """

    topic: str
    name: str
    status: str
    text: str = ""
    fix: str | None = None

    def __str__(self) -> str:
        line = f"{self.status:<8} {self.name}" + (f": {self.text}" if self.text else "")
        return f"{line}; {self.fix}" if self.fix else line


def find_packages(torch: dict[str, Any]) -> list[Finding]:
    """
    Compare the versions of what this distribution needs with what is installed.

    :param torch: What :func:`~zoo_plugins.doctor.checks.check_torch` returned, or why it failed
    :return: a finding for each distribution, and one for Ray, which is optional
    """
    if requirements.installed_version(OWN_DISTRIBUTION) is None:
        problem = "not installed: its folder is on the path, but nothing tells Python of its plugins"
        return [Finding("package", OWN_DISTRIBUTION, "broken", problem, "pip install it, as README.md says")]
    unmet = {need["requirement"] for need in requirements.unmet(OWN_DISTRIBUTION)}
    findings = []
    for requirement in map(Requirement, metadata.requires(OWN_DISTRIBUTION) or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, version = requirement.name, requirements.installed_version(requirement.name)
        text = f"{requirement.name}{requirement.specifier}"
        if text in unmet:
            problem = f"{version or 'not installed'}, needed is {requirement.specifier}"
            findings.append(Finding("package", name, "broken", problem, f"pip install '{text}'"))
        elif name == "torch":
            findings.append(_find_torch(str(version), torch))
        else:
            findings.append(Finding("package", name, "ok", str(version)))
    ray = requirements.installed_version("ray")
    return [*findings, Finding("package", "ray", "ok" if ray else "missing", ray or "not installed, optional")]


def _find_torch(version: str, found: dict[str, Any]) -> Finding:
    if found.get("problem"):
        return Finding("package", "torch", "broken", f"{version}, {found['problem']}")
    cuda = f"CUDA {found['cuda']}" if found["cuda"] else "built without CUDA"
    gpus = ", ".join(found["gpus"]) or "no GPU"
    return Finding("package", "torch", "ok", f"{version}, {cuda}, {gpus}")


def find_hook() -> Finding:
    """
    Look whether a new Python process is ready for rl_zoo3.

    :return: the finding
    """
    done = subprocess.run([sys.executable, "-c", LOOK_FOR_HOOK], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["hooked"]:
        return Finding("hook", "hook", "ok", f"python -m rl_zoo3.train finds the plugins ({found['imported']})")
    if os.environ.get("ZOO_PLUGINS") == "0":
        return Finding("hook", "hook", "off", f"ZOO_PLUGINS=0 is set; {EXPLICIT_DOOR}")
    problem = "Python did not read zoo_plugins.pth when it started, python -m rl_zoo3.train does not find the plugins"
    fix = f"{EXPLICIT_DOOR}, or install again: pip install --force-reinstall --no-deps {OWN_DISTRIBUTION}"
    return Finding("hook", "hook", "broken", problem, fix)


def find_zoo(result: dict[str, Any]) -> Finding:
    """
    Report on rl_zoo3.

    :param result: What :func:`~zoo_plugins.doctor.checks.check_zoo` returned
    :return: the finding
    """
    if result["problem"]:
        return Finding("rl_zoo3", "rl_zoo3", "broken", result["problem"])
    return Finding("rl_zoo3", "rl_zoo3", "ok", "takes plugins")


def find_plugins(result: list[dict[str, Any]] | dict[str, Any]) -> list[Finding]:
    """
    Report on plugins.

    :param result: What :func:`~zoo_plugins.doctor.checks.check_plugins` returned, or why there is nothing
    :return: a finding for each plugin
    """
    if isinstance(result, dict):
        return [Finding("plugin", "plugins", "broken", result["problem"])]
    findings = []
    for plugin in result:
        name = f"{plugin['group']} {plugin['name']}"
        status = "missing" if plugin["install"] else "broken" if plugin["problem"] else "ok"
        text = plugin["problem"] or f"{plugin['target']} of {plugin['distribution']} {plugin['version']}"
        findings.append(Finding("plugin", name, status, text, plugin["install"]))
    return findings


def find_self_test(result: dict[str, Any]) -> Finding:
    """
    Report on the self-test.

    :param result: What :func:`~zoo_plugins.doctor.checks.check_training` returned, or why it failed
    :return: the finding
    """
    if result.get("problem"):
        return Finding("self-test", "self-test", "broken", result["problem"])
    return Finding("self-test", "self-test", "ok", f"trained, saved, loaded and predicted in {result['seconds']:.1f} s")


def find_features() -> list[Finding]:
    """
    Look what optional features need.

    :return: a finding for each feature; none if this distribution is not installed
    """
    if requirements.installed_version(OWN_DISTRIBUTION) is None:
        return []
    findings = []
    for extra, purpose in FEATURES.items():
        unmet = requirements.unmet(OWN_DISTRIBUTION, extra)
        if unmet:
            needs = ", ".join(need["requirement"] + (f" (found {need['found']})" if need["found"] else "") for need in unmet)
            fix = f"pip install '{OWN_DISTRIBUTION}[{extra}]'"
            findings.append(Finding("feature", extra, "missing", f"for {purpose}, needs {needs}", fix))
        else:
            findings.append(Finding("feature", extra, "ok", f"for {purpose}"))
    return findings
