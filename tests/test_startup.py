import json
import re
from itertools import pairwise

import pytest

from tests.fakes import fake_distribution, run_python

# Imports the zoo after the lines that the test puts in front, and tells what it found
PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import rl_zoo3.exp_manager as em
    from rl_zoo3 import ALGOS, utils as zoo_utils
depth = lambda f: 1 + depth(f.__wrapped__) if hasattr(f, "__wrapped__") else 0
print(json.dumps({
    "algos": {name: cls.__module__ for name, cls in ALGOS.items()},
    "manager": em.ExperimentManager.__module__,
    "samplers": [name for table in (em.HYPERPARAMS_SAMPLER, em.HYPERPARAMS_CONVERTER) for name in table],
    "wraps": [
        sorted({depth(f) for f in table.values() if f.__module__ == "rl_zoo3.hyperparams_opt"})
        for table in (em.HYPERPARAMS_SAMPLER, em.HYPERPARAMS_CONVERTER)
    ],
    "wrapped": [name for name in ("get_saved_hyperparams", "create_test_env") if depth(getattr(zoo_utils, name))],
    "warnings": [str(w.message) for w in caught if "zoo_plugins" in str(w.message) or "ZOO_PLUGINS" in str(w.message)],
}))
"""
UPSTREAM_ALGOS = {"a2c", "ddpg", "dqn", "ppo", "sac", "td3", "ars", "crossq", "qrdqn", "tqc", "trpo", "ppo_lstm"}
OWN_ALGOS = {"ppo_lstm_seq", "maskable_ppo_lstm_seq", "ppo_tensor"}
OFF = "set ZOO_PLUGINS=0 to run rl_zoo3 without plugins"


def import_zoo(before="", **kwargs):
    """Import rl_zoo3 in a new process, after some lines of Python, and return what is found there."""
    ended = run_python("-c", f"{before}\n{PROBE}", **kwargs)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def is_untouched(found):
    """Tell whether all that a probe found is upstream's."""
    return (
        set(found["algos"]) == UPSTREAM_ALGOS
        and found["manager"] == "rl_zoo3.exp_manager"
        and "ppo_lstm_seq" not in found["samplers"]
        and found["wraps"] == [[0], [0]]
        and found["wrapped"] == []
    )


def algo_choices(usage):
    """Read the choices of --algo from a help message."""
    return set(re.split(r",\s*", re.search(r"--algo\s+\{(.*?)\}", usage, flags=re.DOTALL).group(1)))


def imports_at_startup(tmp_path):
    """Start Python with warm caches, and list its imports in their order: depth, name, microseconds without children."""
    # Someone who develops may have switched the cache off, which users do not
    env = {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    text = run_python("-X", "importtime", "-c", "pass", env=env).stderr
    lines = re.findall(r"^import time: +(\d+) \| +\d+ \| ( *)(\S+)$", text, flags=re.MULTILINE)
    return [(len(indent), name, int(own)) for own, indent, name in lines]


def test_cost_of_a_start(tmp_path):
    """Every Python start pays less than a millisecond, for two small modules of ours that import nothing."""
    times = []
    for _ in range(6):  # the first one writes the cache
        imports = imports_at_startup(tmp_path)
        ours = {name: own for _, name, own in imports if name.partition(".")[0] == "zoo_plugins"}
        assert set(ours) == {"zoo_plugins", "zoo_plugins._startup"}
        times.append(sum(ours.values()))
    assert min(times[1:]) < 1000

    # The imports of a module stand before it, and deeper
    imported_by_us = [
        name for (depth, name, _), (next_depth, next_name, _) in pairwise(imports) if next_name in ours and depth > next_depth
    ]
    assert set(imported_by_us) <= set(ours)


@pytest.mark.parametrize("before", ["", "import zoo_plugins.exp_manager", "import zoo_plugins.zoo, zoo_plugins.algos"])
def test_automatic_door(before):
    """An unmodified rl_zoo3 knows the plugins as soon as it is imported, whichever module of ours is imported before."""
    found = import_zoo(before)
    assert set(found["algos"]) == UPSTREAM_ALGOS | OWN_ALGOS
    assert found["algos"]["ppo_lstm_seq"] == "zoo_plugins.algos.seq_recurrent_ppo"
    assert found["manager"] == "zoo_plugins.exp_manager"
    assert {name: found["samplers"].count(name) for name in OWN_ALGOS} == dict.fromkeys(OWN_ALGOS, 2)
    assert found["wraps"] == [[2], [1]]  # for update ratios, and samplers for HER too
    assert found["wrapped"] == ["get_saved_hyperparams", "create_test_env"]
    assert found["warnings"] == []


def test_off_switch():
    """With ZOO_PLUGINS=0, rl_zoo3 is as if zoo_plugins were not installed."""
    found = import_zoo(env={"ZOO_PLUGINS": "0"})
    assert is_untouched(found)
    assert found["warnings"] == []


def test_explicit_door_needs_no_hook():
    """``python -m zoo_plugins`` opens the plugins even with ZOO_PLUGINS=0."""
    shown = run_python("-m", "zoo_plugins", "train", "--help", env={"ZOO_PLUGINS": "0"})
    assert shown.returncode == 0, shown.stderr
    assert "ppo_lstm_seq" in algo_choices(shown.stdout)


def test_child_processes():
    """Child processes know the plugins too, however they are started."""
    test = "'ppo_lstm_seq' in __import__('rl_zoo3.utils').utils.ALGOS"
    script = f"""
import multiprocessing, subprocess, sys
test = {test!r}
for method in ("spawn", "forkserver"):
    with multiprocessing.get_context(method).Pool(1) as pool:
        print(method, pool.apply(eval, (test,)))
print("subprocess", subprocess.run([sys.executable, "-c", f"print({{test}})"], capture_output=True, text=True).stdout.strip())
assert "rl_zoo3" not in sys.modules
"""
    ended = run_python("-c", script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["spawn", "True", "forkserver", "True", "subprocess", "True"]


IMPORT_ZOO = "from zoo_plugins import zoo\n"
FAIL = "def fail(module): raise RuntimeError('oops')\n"


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (
            "zoo.TESTED_VERSIONS = ((9, 0), (10, 0))",
            r"zoo_plugins \S+ works with rl_zoo3 >=9\.0,<10\.0, but found rl_zoo3 2\.9\.\d+\.",
        ),
        (
            "zoo.SEAMS['rl_zoo3.utils']['get_saved_hyperparams'] = ('stats_path', 'moved')",
            r"rl_zoo3\.utils\.get_saved_hyperparams of rl_zoo3 2\.9\.\d+ is not the one that zoo_plugins \S+ knows",
        ),
        (
            "zoo.SEAMS['rl_zoo3.exp_manager']['ExperimentManager.objective'] = ('self', 'moved')",
            r"rl_zoo3\.exp_manager\.ExperimentManager\.objective of rl_zoo3 2\.9\.\d+ is not the one that zoo_plugins ",
        ),
        (f"{FAIL}zoo._extend_utils = fail", r"zoo_plugins \S+ could not extend rl_zoo3\.utils: RuntimeError: oops"),
        (
            f"{FAIL}zoo._extend_exp_manager = fail",
            r"zoo_plugins \S+ could not extend rl_zoo3\.exp_manager: RuntimeError: oops",
        ),
    ],
)
def test_zoo_that_can_not_be_extended(before, cause):
    """An rl_zoo3 of another version or another shape, or a failure of ours, gives one warning and an untouched rl_zoo3."""
    found = import_zoo(IMPORT_ZOO + before)
    assert is_untouched(found)
    (warning,) = found["warnings"]
    assert re.match(cause, warning)
    assert OFF in warning


def test_hook_that_raises():
    """Whatever the hook raises, rl_zoo3 is imported and untouched, with one warning for each module that has a hook."""
    found = import_zoo(f"{IMPORT_ZOO}{FAIL}zoo.extend = fail")
    assert is_untouched(found)
    assert found["warnings"] == [
        f"zoo_plugins could not extend {module} (RuntimeError: oops); set ZOO_PLUGINS=0 to run rl_zoo3 without it"
        for module in ("rl_zoo3.utils", "rl_zoo3.exp_manager")
    ]


GOOD = "from stable_baselines3 import PPO\nclass Good(PPO): ..."
# Module that a broken algorithm "X" stands in, and what to tell about it
BROKEN = {
    "raises": ("raise RuntimeError('no licence')", "importing 'raises' failed with RuntimeError: no licence"),
    "exits": ("import sys; sys.exit(3)", "importing 'exits' failed with SystemExit: 3"),
    "number": ("X = 3", "an algorithm is registered as an AlgoSpec or a class, not as int"),
    "other_class": ("X = int", "<class 'int'> is not a subclass of SB3's BaseAlgorithm"),
    "function": ("from zoo_plugins import AlgoSpec\ndef make(): ...\nX = AlgoSpec(make)", "make"),
    "lazy": ("def __getattr__(name): raise ImportError('no cuda')", "no cuda"),
}


@pytest.fixture
def broken(tmp_path):
    """Write a distribution with all broken algorithms, and one that works."""

    def write(*names):
        targets = {name: f"{name}:X" for name in names}
        modules = {name: BROKEN[name][0] for name in names}
        return fake_distribution(
            tmp_path, "alice-rl", "0.4", {"algos": {"good": "good:Good", **targets}}, {"good": GOOD, **modules}
        )

    return write


@pytest.mark.parametrize("names", [["raises", "exits", "number", "other_class"], ["function"], ["lazy"]])
def test_broken_third_party(broken, names):
    """Each broken algorithm is left out with one warning that names who, what and why; all others work."""
    found = import_zoo(path=broken(*names))
    assert set(found["algos"]) == {*UPSTREAM_ALGOS, *OWN_ALGOS, "good"}
    assert found["manager"] == "zoo_plugins.exp_manager"
    assert len(found["warnings"]) == len(names)
    for name, warning in zip(sorted(names), found["warnings"], strict=True):
        assert warning.startswith(
            f"algorithm '{name}' of alice-rl 0.4 (entry point zoo_plugins.algos: {name} = {name}:X) can't be used: "
        )
        assert BROKEN[name][1] in warning
        assert warning.endswith(f"; uninstall alice-rl, or {OFF}")


def test_train_with_broken_third_party(broken):
    """``python -m rl_zoo3.train`` offers our algorithm although another one is broken."""
    shown = run_python("-m", "rl_zoo3.train", "--help", path=broken("raises"))
    assert shown.returncode == 0, shown.stderr
    assert algo_choices(shown.stdout) == {*UPSTREAM_ALGOS, *OWN_ALGOS, "good"}
    assert shown.stderr.count("no licence") == 1


def test_third_party_with_names_that_are_taken(tmp_path):
    """Names of the zoo and of ours keep their meaning, with one warning for each distribution that wants them."""
    targets = {"ppo": "good:Good", "ppo_lstm_seq": "good:Good"}
    found = import_zoo(path=fake_distribution(tmp_path, "alice-rl", entry_points={"algos": targets}, modules={"good": GOOD}))
    assert found["algos"]["ppo"] == "stable_baselines3.ppo.ppo"
    assert found["algos"]["ppo_lstm_seq"] == "zoo_plugins.algos.seq_recurrent_ppo"
    refused, clash = found["warnings"]
    assert "the name 'ppo' is taken by the zoo itself; uninstall alice-rl, or set ZOO_PLUGINS=0" in refused
    assert "the name 'ppo_lstm_seq' is registered by zoo-plugins too; uninstall alice-rl, or set ZOO_PLUGINS=0" in clash
