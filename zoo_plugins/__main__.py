"""
The explicit door: ``python -m zoo_plugins train ...`` runs a script of rl_zoo3 with the plugins.

It needs no ``.pth`` file, and works with ``ZOO_PLUGINS=0``. Commands of our own are imported when they are named.
"""

import argparse
import runpy
import sys

from zoo_plugins import __version__, _startup, registry

# What a command runs, with the arguments after its name, and what it is for. It returns the exit status
COMMANDS = {
    "list": ("zoo_plugins.listing:main", "show all plugins, without importing them"),
    "doctor": ("zoo_plugins.doctor.command:main", "look whether all that is installed works, and what is missing for what"),
    "benchmark": ("zoo_plugins.benchmark.command:main", "compare our classes with upstream's on this machine"),
    "tune": ("zoo_plugins.tuning.command:main", "search hyperparameters in workers, on this machine or a Ray cluster"),
}

SCRIPTS = {
    **{
        name: f"rl_zoo3.{name}"
        for name in ("train", "enjoy", "record_video", "record_training", "load_from_hub", "push_to_hub")
    },
    "zoo-benchmark": "rl_zoo3.benchmark",
    **{name: f"rl_zoo3.plots.{name}" for name in ("all_plots", "plot_from_file", "plot_train")},
}


def main() -> None:
    """Run the command that is named by the first argument."""
    parser = argparse.ArgumentParser("python -m zoo_plugins", description=__doc__.splitlines()[1])
    parser.add_argument("--version", action="version", version=f"zoo_plugins {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, purpose) in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    for name, module in SCRIPTS.items():
        commands.add_parser(name, help=f"python -m {module}, with the plugins", add_help=False)

    arguments, rest = parser.parse_known_args()
    if arguments.command in COMMANDS:
        sys.exit(registry.import_object(COMMANDS[arguments.command][0])(rest))
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


if __name__ == "__main__":
    main()
