"""
What ``python -m zoo_plugins doctor`` looks at in a process of its own, because plugins and libraries are imported there.

``python -m zoo_plugins.doctor.checks FILE`` appends a line of JSON to the file after each check, so that a crash takes only
those that come after it.
"""

import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoo_plugins import _startup, registry, zoo
from zoo_plugins.doctor import requirements
from zoo_plugins.registry import PluginError


def check_torch() -> dict[str, Any]:
    """
    Ask torch for devices.

    :return: the version of CUDA it was built for, None if for none, and names of GPUs
    """
    import torch as th

    names = [th.cuda.get_device_name(i) for i in range(th.cuda.device_count())] if th.cuda.is_available() else []
    return {"cuda": th.version.cuda, "gpus": names}


def check_zoo() -> dict[str, Any]:
    """
    Let rl_zoo3 be extended.

    :return: why it can't be, None if it can
    """
    _startup.install(force=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem = zoo.why_not_extended()
    told = [str(warning.message) for warning in caught if "zoo_plugins" in str(warning.message)]
    return {"problem": problem and "; ".join([problem, *(text for text in told if problem not in text)])}


def check_plugins() -> list[dict[str, Any]]:
    """
    Import all plugins.

    :return: for each, what it is, why it can't be used (None if it can), and what to install if nothing else is wrong
    """
    found = []
    for group in registry.GROUPS:
        for plugin in registry.find_plugins(group, zoo.reserved_names(group)):
            problem, install = None, None
            missing = [
                need
                for extra in plugin.extras
                for need in requirements.unmet(plugin.distribution, extra)
                if need["found"] is None
            ]
            if missing:
                problem = f"needs {', '.join(need['requirement'] for need in missing)}"
                install = f"pip install '{plugin.distribution}[{','.join(plugin.extras)}]'"
            else:
                try:
                    load(plugin)
                except PluginError as error:
                    problem = str(error)
            keys = ("group", "name", "target", "distribution", "version")
            found.append({**{key: getattr(plugin, key) for key in keys}, "problem": problem, "install": install})
    return found


def load(plugin: registry.Plugin) -> None:
    """
    Import a plugin as the zoo does when it is used.

    :param plugin: The plugin
    :raises PluginError: if it can't be used
    """
    if plugin.group == "algos":
        zoo.load_algo(plugin)
    elif not isinstance(found := plugin.load(), type):
        raise plugin.error(f"{found!r} is not a class")


def check_training() -> dict[str, Any]:
    """
    Train a small ``ppo_lstm_seq`` agent, save and load it, and compare what both agents do.

    :return: how long that took
    :raises RuntimeError: if training changes nothing, or the loaded agent does something else
    """
    import numpy as np
    import torch as th

    from zoo_plugins import SeqRecurrentPPO

    started = time.perf_counter()
    model = SeqRecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=128, batch_size=128, n_epochs=2, seed=0, device="cpu")
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(512)
    if all(th.equal(old, new) for old, new in zip(before, model.policy.parameters(), strict=True)):
        raise RuntimeError("training has changed no weight")

    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.zip")
        loaded = SeqRecurrentPPO.load(Path(folder) / "model.zip", device="cpu")
    observations = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    (actions, states), (loaded_actions, loaded_states) = (
        agent.predict(observations, deterministic=True) for agent in (model, loaded)
    )
    pairs = [(actions, loaded_actions), *zip(states or (), loaded_states or (), strict=True)]
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise RuntimeError("the agent that was loaded acts differently from the one that was saved")
    return {"seconds": time.perf_counter() - started}


CHECKS: dict[str, Callable[[], Any]] = {
    "torch": check_torch,
    "zoo": check_zoo,
    "plugins": check_plugins,
    "self_test": check_training,
}


def main(path: Path) -> None:
    """
    Do all checks.

    :param path: File to append results to: a JSON object per line, with the name of the check and what it returned, or
        ``{"problem": ...}`` if it failed
    """
    with path.open("a") as file:
        for name, check in CHECKS.items():
            try:
                result = check()
            except (Exception, SystemExit) as error:
                result = {"problem": f"{type(error).__name__}: {error}"}
            file.write(json.dumps({name: result}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
