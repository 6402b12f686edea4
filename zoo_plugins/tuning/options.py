"""The command line of ``python -m zoo_plugins tune``, which is that of the zoo's train.py where the zoo has the option."""

import argparse
import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from zoo_plugins import exp_manager
from zoo_plugins.exp_manager import PluginExperimentManager
from zoo_plugins.registry import PluginError, did_you_mean

DESCRIPTION = "Search hyperparameters with trials that run in workers, on this machine or on a Ray cluster."


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line, and refuse what can't work.

    :param arguments: What stands after ``tune``
    :return: the options
    :raises PluginError: naming the option, its value and what would be valid
    """
    options = _make_parser().parse_args(arguments)
    for name, least in (("n_trials", 1), ("workers", 1), ("n_evaluations", 1), ("eval_episodes", 1), ("n_startup_trials", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise PluginError(f"--{name.replace('_', '-')}: {value}: expected a whole number, at least {least}")
    if options.cpus_per_worker <= 0 or options.gpus_per_worker < 0:
        raise PluginError("--cpus-per-worker must be positive, and --gpus-per-worker not negative")
    import_packages(options)
    if options.algo not in exp_manager.ALGOS:
        known = sorted(exp_manager.ALGOS)
        raise PluginError(
            f"--algo: unknown algorithm {options.algo!r}{did_you_mean(options.algo, known)} Valid: {', '.join(known)}"
        )
    if options.env not in gym.registry:
        raise PluginError(f"--env: {options.env!r} is not registered with gymnasium{did_you_mean(options.env, gym.registry)}")
    if options.seed < 0:
        options.seed = int(np.random.randint(2**32 - 1, dtype=np.int64))
    if options.optimization_log_path is not None:
        options.optimization_log_path = str(Path(options.optimization_log_path).resolve())
    _read_conf_file(options)
    return options


def import_packages(options: argparse.Namespace) -> None:
    """
    Import the packages that register environments.

    :param options: The options
    :raises PluginError: if one can't be imported
    """
    for name in options.gym_packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise PluginError(f"--gym-packages: can't import {name!r}: {error}") from error


def make_manager(options: argparse.Namespace, folder: Path) -> PluginExperimentManager:
    """
    Make the zoo's experiment manager, ready for trials.

    :param options: The options
    :param folder: Where it may write what nobody needs later; the same hyperparameter file is there on every machine
    :return: the manager
    :raises PluginError: if a hyperparameter is wrong
    """
    config = options.conf_file
    if options.conf_content is not None:
        path = folder / Path(config).name
        path.write_bytes(options.conf_content)
        config = str(path)
    manager = PluginExperimentManager(
        options,
        options.algo,
        options.env,
        str(folder),
        n_timesteps=options.n_timesteps,
        n_eval_episodes=options.eval_episodes,
        hyperparams=options.hyperparams,
        env_kwargs=options.env_kwargs,
        eval_env_kwargs=options.eval_env_kwargs,
        optimize_hyperparameters=True,
        sampler=options.sampler,
        pruner=options.pruner,
        n_startup_trials=options.n_startup_trials,
        n_evaluations=options.n_evaluations,
        optimization_log_path=options.optimization_log_path,
        seed=options.seed,
        verbose=options.verbose,
        vec_env_type=options.vec_env,
        n_eval_envs=options.n_eval_envs,
        device=options.device,
        config=config,
    )
    manager.setup_experiment()
    return manager


def check_options(options: argparse.Namespace) -> tuple[dict[str, Any], PluginExperimentManager]:
    """
    Set a trial up as far as possible without training, and find out what all trials have in common.

    :param options: The options
    :return: what identifies a study, as JSON, with ``n_timesteps`` for the budget of a trial; and the manager, which can write
        trials as blocks of a hyperparameter file
    :raises PluginError: if a hyperparameter or the sampler is wrong
    """
    with tempfile.TemporaryDirectory() as folder:
        manager = make_manager(options, Path(folder))
    try:
        manager.make_sampler(options.seed)
    except ImportError as error:
        raise PluginError(f"--sampler: {options.sampler!r} needs a package that is missing: {error}") from error
    identity = {
        "algo": options.algo,
        "env": options.env,
        "n_timesteps": manager.n_timesteps,
        "search_space": manager.search_space.spec,
    }
    return identity, manager


def _read_conf_file(options: argparse.Namespace) -> None:
    # Its content, as there may be other files on the machines of workers
    options.conf_content = None
    if options.conf_file is not None and Path(options.conf_file).suffix in (".yml", ".yaml", ".py"):
        try:
            options.conf_content = Path(options.conf_file).read_bytes()
        except OSError as error:
            raise PluginError(f"--conf-file: can't read {options.conf_file}: {error.strerror}") from error


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m zoo_plugins tune", description=DESCRIPTION)
    add = parser.add_argument
    add("--algo", default="ppo", help="algorithm, of the zoo or of a plugin")
    add("--env", default="CartPole-v1", help="id of the environment")
    add("-n", "--n-timesteps", type=int, default=-1, help="timesteps of a trial (default: those of the hyperparameters)")
    add("--n-trials", type=int, default=500, help="trials in all, those of earlier runs of the study included")
    where = parser.add_argument_group("where trials run")
    add = where.add_argument
    add("--workers", type=int, help="trials at the same time (default: as many as there is room for)")
    add("--cpus-per-worker", type=float, default=1.0, help="CPUs that Ray reserves for a worker, and threads it uses")
    add("--gpus-per-worker", type=float, default=0.0, help="GPUs that Ray reserves for a worker, for example 0.25")
    add("--ray-address", help="cluster to join, for example auto (default: RAY_ADDRESS, or a new one on this machine)")
    kept = parser.add_argument_group("where the study is kept")
    add = kept.add_argument
    add("--storage", help="journal.log, postgresql://..., mysql://... or grpc://host:port (default: a journal in LOG_FOLDER)")
    add("--study-name", help="study to create or to continue (default: ALGO_ENV)")
    add("--proxy", action="store_true", help="let workers reach the database through this process, by Optuna's gRPC proxy")
    add("-f", "--log-folder", default="logs", help="folder of reports and journals")
    add("--optimization-log-path", help="folder for the evaluations and best models of all trials")
    add("--no-optim-plots", action="store_true", help="report without plots")
    zoo = parser.add_argument_group("as in rl_zoo3.train")
    add = zoo.add_argument
    add("-conf", "--conf-file", help="YAML or Python file, or package, with hyperparameters")
    add("-params", "--hyperparams", nargs="+", action=exp_manager.StoreDict, help="hyperparameters, as learning_rate:0.01")
    add("--sampler", default="tpe", choices=["random", "tpe", "auto"])
    add("--pruner", default="median", choices=["halving", "median", "none"])
    add("--n-startup-trials", type=int, default=10, help="random trials before the sampler is used, and before pruning")
    add("--n-evaluations", type=int, help="evaluations of a trial (default: one per 100000 timesteps)")
    add("--eval-episodes", type=int, default=5, help="episodes of an evaluation")
    add("--n-eval-envs", type=int, default=1, help="environments for evaluation")
    add("--seed", type=int, default=-1, help="seed of samplers and trials (default: random)")
    add("--vec-env", default="dummy", choices=["dummy", "subproc"])
    add("--device", default="auto", help="PyTorch's device")
    add("--env-kwargs", nargs="+", action=exp_manager.StoreDict, help="arguments of the environment, as name:value")
    add("--eval-env-kwargs", nargs="+", action=exp_manager.StoreDict, help="the same for evaluation")
    add("--gym-packages", nargs="+", default=[], help="packages to import, which register environments")
    add("--verbose", type=int, default=1, help="2: print what workers print, too")
    return parser
