import json
import sys

import pytest
from stable_baselines3 import PPO, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.fakes import fake_distribution, run_python
from zoo_plugins import zoo
from zoo_plugins.buffers import SequenceRolloutBuffer
from zoo_plugins.registry import AlgoSpec, PluginError, find_plugins, find_resource, import_object, resolve

BUFFER = "from stable_baselines3.common.buffers import ReplayBuffer\nclass Memory(ReplayBuffer): ..."


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make fake distributions that this process finds until the end of the test."""
    installed = []

    def install_distribution(name, **kwargs):
        fake_distribution(tmp_path, name, **kwargs)
        monkeypatch.syspath_prepend(tmp_path)
        installed.extend(kwargs.get("modules", {}))

    yield install_distribution
    for module in list(sys.modules):
        if module.partition(".")[0] in {name.partition(".")[0] for name in installed}:
            del sys.modules[module]


def find(group, name, **kwargs):
    return [plugin for plugin in find_plugins(group, **kwargs) if plugin.name == name]


def test_own_plugins_are_found():
    """The entry points of this distribution are found, complete, and nothing speaks against them."""
    (algo,) = find("algos", "ppo_lstm_seq", reserved=zoo.reserved_names("algos"))
    assert (algo.target, algo.distribution, algo.extras, algo.problem) == (
        "zoo_plugins.specs:PPO_LSTM_SEQ",
        "zoo-plugins",
        (),
        None,
    )
    names = [plugin.name for plugin in find_plugins("buffers")]
    assert names == sorted(names)
    assert {"SequenceRolloutBuffer", "SequenceDictRolloutBuffer"} <= set(names)


def test_finding_does_not_import(install):
    """A plugin is found, with its distribution, version and extras, without being imported."""
    install(
        "someones-rl",
        version="2.3",
        entry_points={"vec_envs": {"theirs": "theirs_pkg.sim:Sim [gpu]"}},
        modules={"theirs_pkg.sim": "raise SystemExit(7)"},
        extras=["gpu"],
    )
    (plugin,) = find("vec_envs", "theirs")
    assert (plugin.target, plugin.distribution, plugin.version, plugin.extras) == (
        "theirs_pkg.sim:Sim",
        "someones-rl",
        "2.3",
        ("gpu",),
    )
    assert plugin.problem is None
    assert not {"theirs_pkg", "theirs_pkg.sim"} & set(sys.modules)


def test_list_imports_no_plugin(tmp_path):
    """``python -m zoo_plugins list`` shows plugins of all kinds, broken ones too, and imports none of them."""
    trace = tmp_path / "imported"
    fake_distribution(
        tmp_path,
        "someones-rl",
        entry_points={group: {f"their_{group}": "theirs:X"} for group in ("algos", "vec_envs", "buffers")},
        modules={"theirs": f"open({str(trace)!r}, 'w')\nraise SystemExit(7)"},
    )
    shown = run_python("-m", "zoo_plugins", "list", "--json", path=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    theirs = {plugin["name"]: plugin["problem"] for plugin in json.loads(shown.stdout) if plugin["target"] == "theirs:X"}
    assert theirs == {"their_algos": None, "their_vec_envs": None, "their_buffers": None}
    assert not trace.exists()


def test_clash_of_third_parties(install):
    """Of two distributions that register one name neither gets it, and both are named."""
    for name, module in (("alice-rl", "alice"), ("bob-rl", "bob")):
        install(name, entry_points={"buffers": {"Memory": f"{module}:Memory"}}, modules={module: BUFFER})
    problems = {plugin.distribution: plugin.problem for plugin in find("buffers", "Memory")}
    assert problems == {
        "alice-rl": "the name 'Memory' is registered by bob-rl too",
        "bob-rl": "the name 'Memory' is registered by alice-rl too",
    }
    with pytest.raises(PluginError, match=r"'Memory' of alice-rl 1\.0 .* is registered by bob-rl too"):
        resolve("buffers", "Memory")
    assert not {"alice", "bob"} & set(sys.modules)


def test_clash_with_own_name(install):
    """A third party can't take one of our names away."""
    install(
        "aaa-rl", entry_points={"buffers": {"SequenceRolloutBuffer": "aaa:Memory"}}, modules={"aaa": "raise SystemExit(7)"}
    )
    ours, theirs = find("buffers", "SequenceRolloutBuffer")
    assert (ours.distribution, ours.problem) == ("zoo-plugins", None)
    assert (theirs.distribution, theirs.problem) == (
        "aaa-rl",
        "the name 'SequenceRolloutBuffer' is registered by zoo-plugins too",
    )
    assert resolve("buffers", "SequenceRolloutBuffer") is SequenceRolloutBuffer


def test_one_name_in_two_groups_is_no_clash(install):
    """Names are per kind of plugin: an algorithm and a buffer may share one."""
    install("alice-rl", entry_points={"buffers": {"same": "alice:Memory"}}, modules={"alice": BUFFER})
    install("bob-rl", entry_points={"vec_envs": {"same": "bob:Memory"}}, modules={"bob": BUFFER})
    assert [plugin.problem for group in ("buffers", "vec_envs") for plugin in find(group, "same")] == [None, None]


@pytest.mark.parametrize(("group", "name"), [("algos", "ppo"), ("vec_envs", "dummy"), ("buffers", "HerReplayBuffer")])
def test_name_of_the_zoo(install, group, name):
    """A name that already means something to the zoo is refused, and keeps its meaning."""
    install("alice-rl", entry_points={group: {name: "alice:X"}}, modules={"alice": "raise SystemExit(7)"})
    (plugin,) = find(group, name, reserved=zoo.reserved_names(group))
    assert plugin.problem == f"the name {name!r} is taken by the zoo itself"
    with pytest.raises(PluginError, match=f"'{name}' of alice-rl 1.0 .*taken by the zoo itself"):
        plugin.load()
    if group != "algos":
        assert resolve(group, name, zoo.words(group)) is zoo.words(group)[name]


def test_malformed_entry_point_hurts_nobody_else(install):
    """An entry point that is no ``module:name`` does not keep the other plugins from being found."""
    install("alice-rl", entry_points={"buffers": {"Theirs": "their-pkg.buffers:Memory"}})
    (plugin,) = find("buffers", "Theirs")
    assert (plugin.target, plugin.problem) == ("their-pkg.buffers:Memory", "it is not written as 'module:name'")
    assert find("buffers", "SequenceRolloutBuffer")[0].problem is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("SequenceRolloutBuffer", SequenceRolloutBuffer),
        ("Word", HerReplayBuffer),
        ("zoo_plugins.buffers:SequenceRolloutBuffer", SequenceRolloutBuffer),
        ("stable_baselines3.common.buffers.ReplayBuffer", ReplayBuffer),
        (ReplayBuffer, ReplayBuffer),
    ],
)
def test_resolve(value, expected):
    """A registered name, a word of the zoo, ``module:Class``, a dotted path and a class are all understood."""
    assert resolve("buffers", value, {"Word": HerReplayBuffer}) is expected


def test_resolve_imports_only_what_is_named(install):
    """Resolving a name imports its plugin and no other."""
    install(
        "alice-rl",
        entry_points={"buffers": {"Memory": "alice:Memory", "Other": "alice_other:Memory"}},
        modules={"alice": BUFFER, "alice_other": BUFFER},
    )
    assert resolve("buffers", "Memory").__module__ == "alice"
    assert "alice_other" not in sys.modules


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("SequenceRolloutBufer", r"unknown buffer 'SequenceRolloutBufer', did you mean 'SequenceRolloutBuffer'\? Valid: .*"),
        ("zzz", r"unknown buffer 'zzz'\. Valid: .*SequenceDictRolloutBuffer, .*Word, or a class as my_package\."),
        (3, r"expected the name of a buffer, not 3"),
        (None, r"expected the name of a buffer, not None"),
        ({"a": 1}, r"expected the name of a buffer, not \{'a': 1\}"),
        ("no_such_module.X", r"importing 'no_such_module' failed with ModuleNotFoundError: No module named"),
        ("no_such_module:X", r"importing 'no_such_module' failed with ModuleNotFoundError: No module named"),
        ("stable_baselines3.PP0", r"module 'stable_baselines3' has no 'PP0', did you mean 'PPO'\?"),
        ("stable_baselines3:", r"'stable_baselines3:' is neither 'module:name' nor a dotted path"),
        (".PPO", r"'\.PPO' is neither 'module:name' nor a dotted path"),
        ("os.path.join", r"'os\.path\.join' is not a class, but <function"),
    ],
)
def test_resolve_errors(value, message):
    """What is no class is refused, with the cause, and a close match and the valid names where there are any."""
    with pytest.raises(PluginError, match=message):
        resolve("buffers", value, {"Word": HerReplayBuffer})


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise RuntimeError('no licence')", "importing 'alice' failed with RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "importing 'alice' failed with SystemExit: 3"),
        ("def f(:", "importing 'alice' failed with SyntaxError: "),
        ("import no_such_module", "importing 'alice' failed with ModuleNotFoundError: No module named 'no_such_module'"),
        ("Memry = int", "module 'alice' has no 'Memory', did you mean 'Memry'?"),
        ("def __getattr__(name): raise ImportError('no cuda')", "ImportError: no cuda"),
    ],
)
def test_broken_plugin(install, source, cause):
    """Whatever a broken plugin does, the error names the distribution, its version, the entry point and the cause."""
    install("alice-rl", version="0.4", entry_points={"buffers": {"Memory": "alice:Memory"}}, modules={"alice": source})
    with pytest.raises(PluginError) as raised:
        resolve("buffers", "Memory")
    message = str(raised.value)
    assert message.startswith(
        "buffer 'Memory' of alice-rl 0.4 (entry point zoo_plugins.buffers: Memory = alice:Memory) can't be used: "
    )
    assert cause in message
    assert "pip install" not in message


def test_cause_of_several_lines_is_told_in_one(install):
    """A mistake is told in one line, even if its cause has more, as some failed imports of compiled modules have."""
    install(
        "alice-rl",
        entry_points={"buffers": {"Memory": "alice:Memory"}},
        modules={"alice": "raise ImportError('first line\\n\\n  second line')"},
    )
    with pytest.raises(PluginError, match=r"first line.*second line") as raised:
        resolve("buffers", "Memory")
    assert "\n" not in str(raised.value)


def test_plugin_with_missing_extra(install):
    """A plugin that misses what its extra would bring tells how to install it."""
    install(
        "alice-rl",
        entry_points={"buffers": {"Memory": "alice:Memory [gpu,fast]", "Bad": "alice:Missing [gpu]"}},
        modules={"alice": "import no_such_module"},
        extras=["gpu", "fast"],
    )
    with pytest.raises(PluginError, match=r"No module named 'no_such_module'; .*: pip install 'alice-rl\[gpu,fast\]'$"):
        resolve("buffers", "Memory")


def test_extra_is_only_blamed_for_missing_imports(install):
    """A plugin with an extra that fails otherwise does not send the user to pip."""
    install(
        "alice-rl",
        entry_points={"buffers": {"Memory": "alice:Memory [gpu]"}},
        modules={"alice": "raise RuntimeError('no licence')"},
        extras=["gpu"],
    )
    with pytest.raises(PluginError, match=r"no licence$"):
        resolve("buffers", "Memory")


def test_unknown_name_of_own_extra():
    """An unknown name that is one of our extras tells how to install it."""
    with pytest.raises(PluginError, match=r"unknown buffer 'ray'\. .*pip install 'zoo-plugins\[ray\]'"):
        resolve("buffers", "ray")
    with pytest.raises(PluginError) as raised:
        resolve("buffers", "rya")
    assert "pip install" not in str(raised.value)


def test_import_object_reaches_into_classes():
    """``module:Class.attribute`` names what a class holds."""
    assert import_object("stable_baselines3:PPO.learn") is PPO.learn


SPEC = "from zoo_plugins import AlgoSpec\nSPEC = AlgoSpec({})"


@pytest.fixture
def register(install):
    """Register an algorithm that stands in a module "alice", and find it."""

    def register_algo(source, target="alice:SPEC"):
        install("alice-rl", entry_points={"algos": {"alice": target}}, modules={"alice": source})
        (plugin,) = find("algos", "alice")
        return plugin

    return register_algo


def test_algo_of_strings(register, tmp_path):
    """Everything that an AlgoSpec names is imported, and its YAML file found inside the package's folder or beside it."""
    (tmp_path / "alice.yml").touch()
    arguments = "'stable_baselines3:PPO', sampler='alice:sample', converter='json.loads', hyperparams='alice_data:alice.yml'"
    (tmp_path / "alice_data").mkdir()
    (tmp_path / "alice_data" / "__init__.py").touch()
    spec = register(f"{SPEC.format(arguments)}\ndef sample(): ...").load_algo()
    assert spec == AlgoSpec(PPO, sys.modules["alice"].sample, json.loads, tmp_path / "alice.yml")


def test_algo_of_objects(register):
    """An AlgoSpec of objects stays as it is."""
    source = "from stable_baselines3 import PPO\n" + SPEC.format("PPO, sampler=len")
    assert register(source).load_algo() == AlgoSpec(PPO, len)


def test_algo_that_is_a_class(register):
    """A class may be registered without an AlgoSpec; it then has neither search space nor hyperparameters."""
    assert register("from stable_baselines3 import PPO", "alice:PPO").load_algo() == AlgoSpec(PPO)


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("SPEC = 3", "an algorithm is registered as an AlgoSpec or a class, not as int"),
        (SPEC.format("'stable_baselines3:PP0'"), "module 'stable_baselines3' has no 'PP0', did you mean 'PPO'?"),
        (SPEC.format("'stable_baselines3:PPO', sampler='alice:sample'"), "module 'alice' has no 'sample'"),
        (SPEC.format("'stable_baselines3:PPO', hyperparams='alice:no.yml'"), "'alice:no.yml' is not a file"),
    ],
)
def test_algo_errors(register, source, cause):
    """A wrong description is refused, naming distribution, entry point and cause."""
    with pytest.raises(PluginError) as raised:
        register(source).load_algo()
    assert str(raised.value).startswith(
        "algorithm 'alice' of alice-rl 1.0 (entry point zoo_plugins.algos: alice = alice:SPEC)"
    )
    assert cause in str(raised.value)


@pytest.mark.parametrize("name", ["inside.yml", "beside.yml", "both.yml"])
def test_find_resource(install, tmp_path, name):
    """A file is found inside its package, else beside it."""
    install("alice-rl", modules={"alice.zoo": ""})
    for path in ("alice/inside.yml", "beside.yml", "both.yml", "alice/both.yml"):
        (tmp_path / path).touch()
    expected = tmp_path / name if name == "beside.yml" else tmp_path / "alice" / name
    assert find_resource(f"alice:{name}") == expected
    assert find_resource(str(expected)) == expected
    assert "alice" not in sys.modules


@pytest.mark.parametrize(
    "name", ["zoo_plugins:no.yml", "zoo_plugins:", "no_such:x.yml", "no_such.sub:x.yml", "json.tool:x.yml", "/no/x.yml"]
)
def test_find_resource_errors(name):
    """A file or a package that does not exist is a PluginError that repeats the name."""
    with pytest.raises(PluginError, match=f"^'{name}' is not a file$"):
        find_resource(name)


def test_find_resource_of_broken_package(install):
    """A package that can't be imported is a PluginError too."""
    install("alice-rl", modules={"alice": "raise RuntimeError('no licence')", "alice.sub": ""})
    with pytest.raises(PluginError, match=r"alice\.sub:x\.yml"):
        find_resource("alice.sub:x.yml")


def test_plugin_error_is_a_value_error():
    """A program catches a PluginError as a ValueError."""
    with pytest.raises(ValueError, match="unknown vec env 'x'"):
        resolve("vec_envs", "x", {"dummy": DummyVecEnv})


def test_uncaught_plugin_error_is_one_line():
    """On a command line, a PluginError is one line on stderr and exit status 1."""
    script = "from zoo_plugins.registry import resolve\nresolve('buffers', 'zzz')"
    ended = run_python("-c", script)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("unknown buffer 'zzz'.")
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr
