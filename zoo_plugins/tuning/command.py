"""``python -m zoo_plugins tune``: from the command line to the report."""

import importlib.util
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from zoo_plugins import _startup
from zoo_plugins.registry import PluginError

# What has to be there, and what for
NEEDS = {"ray": "workers", "rich": "the progress table", "matplotlib": "the plots of the report (or pass --no-optim-plots)"}


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command.

    :param arguments: What stands after ``tune``; None: those of this process
    :return: exit status: 0, or 128 and the number of the signal that stopped it
    :raises PluginError: if something is wrong, or no trial finished
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for module, purpose in NEEDS.items():
        if module == "matplotlib" and "--no-optim-plots" in arguments:
            continue
        if importlib.util.find_spec(module) is None:
            raise PluginError(f"tune needs {module}, for {purpose}: pip install 'zoo-plugins[tune]'")
    _startup.install(force=True)
    return _tune(arguments)


def _tune(arguments: Sequence[str]) -> int:
    # After the check above, and the hook
    import optuna
    import ray

    from zoo_plugins.tuning import cluster
    from zoo_plugins.tuning.options import check_options, parse_options
    from zoo_plugins.tuning.progress import Progress
    from zoo_plugins.tuning.report import write_report
    from zoo_plugins.tuning.runner import Runner
    from zoo_plugins.tuning.storages import connect, parse_storage, serve
    from zoo_plugins.tuning.studies import ERROR, best_trial, count_states, find_study, n_spent, open_study

    options = parse_options(arguments)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = options.study_name or f"{options.algo}_{options.env}"
    folder = Path(options.log_folder) / options.algo / "tune" / re.sub(r"[^\w.-]+", "-", name)
    storage = parse_storage(options.storage, folder / "journal.log")
    identity, manager = check_options(options)
    backend = connect(storage)
    find_study(backend, name, identity)

    started_ray = cluster.have_ray(options.ray_address, show_output=options.verbose >= 2)
    try:
        n_workers = cluster.check_room(options.workers, options.cpus_per_worker, options.gpus_per_worker)
        # Without the password, as everybody who sees the study sees it
        shown = [argument.replace(options.storage, str(storage)) if options.storage else argument for argument in arguments]
        command = shlex.join(["python", "-m", "zoo_plugins", "tune", *shown])
        study = open_study(backend, name, identity, {"command": command})
        print(f"Study {name!r} in {storage}: {count_states(study)}; {options.n_trials} trials in all, seed {options.seed}")
        seen = serve(backend, cluster.driver_host()) if options.proxy else storage
        left = options.n_trials - n_spent(study)
        with Progress() as progress:
            runner = Runner(
                study,
                options,
                n_timesteps=identity["n_timesteps"],
                n_workers=min(n_workers, max(1, left)),
                make_worker=lambda: cluster.make_worker(options, seen, name),
                progress=progress,
            )
            try:
                runner.run()
            except PluginError as error:
                raise PluginError(f"{error}; study {name!r} is kept in {storage}") from error
    finally:
        if started_ray:
            ray.shutdown()

    print(f"Study {name!r} in {storage}: {count_states(study)}")
    best = best_trial(study)
    if best is not None:
        print(f"Best trial: {best.number}, value {best.value:.6g}")
        remark = f"Trial {best.number} of study {name!r}: {best.value:.6g} after {identity['n_timesteps']} timesteps"
        page = write_report(
            study,
            folder / "report",
            manager.write_trial(best, remark),
            facts={
                "Algorithm and environment": f"{options.algo}, {options.env}, {identity['n_timesteps']} timesteps per trial",
                "Kept in": str(storage),
                "Command": command,
            },
            with_plots=not options.no_optim_plots,
        )
        print(f"Report: {page}; best hyperparameters: {page.with_name('best.yml')}")
    if runner.interrupted_by is not None:
        print(f"Stopped by {runner.interrupted_by.name}. The same command goes on with the study.")
        return 128 + int(runner.interrupted_by)
    if best is None:
        errors = [trial.user_attrs[ERROR] for trial in study.trials if ERROR in trial.user_attrs]
        last = f"; the last one failed with {errors[-1]}" if errors else ""
        raise PluginError(f"no trial finished ({count_states(study)}){last}; study {name!r} is kept in {storage}")
    return 0
