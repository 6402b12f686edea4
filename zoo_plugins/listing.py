"""``python -m zoo_plugins list``: all plugins, without importing them."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata

from zoo_plugins import __version__, registry, zoo


def main(arguments: Sequence[str]) -> int:
    """
    Print all plugins, as a table or as JSON.

    :param arguments: Command line arguments
    :return: exit status
    """
    parser = argparse.ArgumentParser("python -m zoo_plugins list", description="Show all plugins, without importing them.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args(arguments).json

    plugins = [plugin for group in registry.GROUPS for plugin in registry.find_plugins(group, zoo.reserved_names(group))]
    if as_json:
        print(json.dumps([asdict(plugin) for plugin in plugins], indent=2))
        return 0
    print(f"rl_zoo3 {metadata.version('rl_zoo3')}, zoo_plugins {__version__}")
    rows = [("GROUP", "NAME", "TARGET", "DISTRIBUTION", "STATUS")]
    rows += [
        (plugin.group, plugin.name, plugin.target, f"{plugin.distribution} {plugin.version}", plugin.problem or "ok")
        for plugin in plugins
    ]
    print("\n".join(aligned(rows)))
    return 0


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """
    Align the columns of a table.

    :param rows: Its cells, the same number in each row
    :return: lines
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
