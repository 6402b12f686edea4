"""Where a benchmark ran, and with which versions."""

import os
import platform
from importlib import metadata

PACKAGES = ("zoo-plugins", "sb3_contrib", "stable_baselines3", "torch", "gymnasium", "numpy")


def describe_machine() -> str:
    """
    Say what this machine is.

    :return: architecture, cores, system and Python
    """
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def read_versions(*peers: str) -> dict[str, str]:
    """
    Look up what is compared, and what it runs on.

    :param peers: Packages besides those that every benchmark uses
    :return: versions by package
    """
    return {name: metadata.version(name) for name in (*PACKAGES, *peers)}
