"""
The explicit door: ``python -m zoo_plugins train ...`` runs a script of rl_zoo3 with the plugins.

It needs no ``.pth`` file, and works with ``ZOO_PLUGINS=0``. ``python -m zoo_plugins list`` shows the plugins.
"""

import argparse
import json
import runpy
import sys
from dataclasses import asdict
from importlib import metadata

from zoo_plugins import __version__, _startup, registry, zoo

# What a command runs, with the arguments after its name, and what it is for. It returns the exit status
COMMANDS = {
    "tune": ("zoo_plugins.tuning.command:main", "search hyperparameters in workers, on this machine or a Ray cluster"),
}

SCRIPTS = {
    **{
        name: f"rl_zoo3.{name}"
        for name in ("train", "enjoy", "record_video", "record_training", "benchmark", "load_from_hub", "push_to_hub")
    },
    **{name: f"rl_zoo3.plots.{name}" for name in ("all_plots", "plot_from_file", "plot_train")},
}


def main() -> None:
    """Run the command that is named by the first argument."""
    parser = argparse.ArgumentParser("python -m zoo_plugins", description=__doc__.splitlines()[1])
    parser.add_argument("--version", action="version", version=f"zoo_plugins {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    list_parser = commands.add_parser("list", help="show all plugins, without importing them")
    list_parser.add_argument("--json", action="store_true", help="print JSON")
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    for name, module in SCRIPTS.items():
        commands.add_parser(name, help=f"python -m {module}, with the plugins", add_help=False)

    arguments, rest = parser.parse_known_args()
    if arguments.command == "list":
        if rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        list_plugins(as_json=arguments.json)
    elif arguments.command in COMMANDS:
        sys.exit(registry.import_object(COMMANDS[arguments.command][0])(rest))
    else:
        run_script(SCRIPTS[arguments.command], rest)


def run_script(module: str, arguments: list[str]) -> None:
    """
    Run a script of rl_zoo3 with the plugins.

    :param module: Its full name
    :param arguments: Its command line arguments
    """
    _startup.install(force=True)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def list_plugins(as_json: bool) -> None:
    """
    Print all plugins.

    :param as_json: Print JSON instead of a table
    """
    plugins = [plugin for group in registry.GROUPS for plugin in registry.find_plugins(group, zoo.reserved_names(group))]
    if as_json:
        print(json.dumps([asdict(plugin) for plugin in plugins], indent=2))
        return
    rows = [("GROUP", "NAME", "TARGET", "DISTRIBUTION", "STATUS")]
    rows += [
        (plugin.group, plugin.name, plugin.target, f"{plugin.distribution} {plugin.version}", plugin.problem or "ok")
        for plugin in plugins
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"rl_zoo3 {metadata.version('rl_zoo3')}, zoo_plugins {__version__}")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
