"""Who may import whom: what starts with every Python stays light, and what a model needs does not need the zoo."""

import ast
import sys
from pathlib import Path

import pytest

import zoo_plugins
from tests.fakes import run_python

FOLDER = Path(zoo_plugins.__file__).parent
FILES = {path.relative_to(FOLDER).as_posix(): ast.parse(path.read_text()) for path in sorted(FOLDER.rglob("*.py"))}
# What a model needs to be saved, loaded or trained: these work where rl_zoo3 is not installed
MODEL_FOLDERS = ("algos", "buffers", "vec_envs", "envs")
MODEL_FILES = [name for name in FILES if name.partition("/")[0] in (*MODEL_FOLDERS, "callbacks.py")]


def imports(name, everywhere=True):
    """List the full names that a file imports: anywhere, or only when it is imported itself."""
    found = []
    nodes = list(FILES[name].body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            nodes += list(ast.iter_child_nodes(node))
    return found


def calls(name):
    """List the functions that a file calls, as they are written."""
    return [ast.unparse(node.func) for node in ast.walk(FILES[name]) if isinstance(node, ast.Call)]


def root(module):
    return module.partition(".")[0]


def imported_names(name):
    """List what a file imports, also through ``import_module("...")``."""
    found = imports(name)
    for node in ast.walk(FILES[name]):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return found


def test_files_are_found():
    """The rules below are about files that exist."""
    assert {"__init__.py", "_startup.py", "registry.py", "config.py", "zoo.py", "exp_manager.py"} <= set(FILES)
    assert {"algos/seq_recurrent_ppo.py", "buffers/sequence_rollout_buffer.py", "callbacks.py"} <= set(MODEL_FILES)


def test_registry_imports_only_the_standard_library():
    """Finding plugins needs neither ours nor anyone's code."""
    assert {root(module) for module in imported_names("registry.py")} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", MODEL_FILES)
def test_models_need_no_zoo(name):
    """Algorithms, buffers, environments and callbacks import neither the zoo nor what knows it."""
    modules = imported_names(name)
    assert not {"rl_zoo3", "optuna"} & {root(module) for module in modules}
    of_the_zoo = ("zoo_plugins.zoo", "zoo_plugins.exp_manager", "zoo_plugins.search_spaces", "zoo_plugins.registry")
    assert [module for module in modules if module.startswith(of_the_zoo)] == []


def test_who_knows_the_zoo():
    """Only two files import rl_zoo3, so that there are only two to look at when it changes."""
    knowing = {name for name in FILES if "rl_zoo3" in [root(module) for module in imported_names(name)]}
    assert knowing <= {"zoo.py", "exp_manager.py"}
    assert "exp_manager.py" in knowing


@pytest.mark.parametrize(
    ("name", "at_start", "later"),
    [
        ("__init__.py", set(), {"importlib.import_module"}),
        ("_startup.py", {"os", "sys"}, {"warnings", "zoo_plugins.zoo"}),
        ("specs.py", {"zoo_plugins.registry.AlgoSpec"}, set()),
        ("envs/__init__.py", {"gymnasium"}, set()),
        ("tuning/__init__.py", set(), set()),
        ("doctor/__init__.py", set(), set()),
        ("benchmark/__init__.py", set(), set()),
    ],
)
def test_light_files(name, at_start, later):
    """What Python's start and listing plugins run imports next to nothing."""
    assert set(imports(name, everywhere=False)) == at_start
    assert set(imports(name)) == at_start | later


def test_what_tune_needs():
    """The command can tell what is missing before it imports it; only few files know Ray, and one draws."""
    tuning = {name: {root(module) for module in imports(name)} for name in FILES if name.startswith("tuning/")}
    assert {name for name, roots in tuning.items() if "ray" in roots} == {
        f"tuning/{n}.py" for n in ("command", "cluster", "runner")
    }
    assert {name for name, roots in tuning.items() if "matplotlib" in roots} == {"tuning/plots.py"}
    at_start = set(imports("tuning/command.py", everywhere=False))
    assert {module for module in at_start if root(module) not in sys.stdlib_module_names} == {
        "zoo_plugins._startup",
        "zoo_plugins.registry.PluginError",
    }
    others = [name for name in FILES if not name.startswith("tuning/") and name != "__main__.py"]
    assert [name for name in others if any("zoo_plugins.tuning" in module for module in imported_names(name))] == []


def test_what_benchmark_needs():
    """It compares classes, without the zoo, and only the command and its table draw."""
    files = {name: {root(module) for module in imports(name)} for name in FILES if name.startswith("benchmark/")}
    assert {name for name, roots in files.items() if "rich" in roots} == {"benchmark/command.py", "benchmark/table.py"}
    assert not {"rl_zoo3", "optuna"} & set().union(*files.values())


def test_what_doctor_needs():
    """It can start where something is broken: only the checks, in a process of their own, import more, and none at once."""
    for name in [name for name in FILES if name.startswith("doctor/")]:
        allowed = {*sys.stdlib_module_names, "zoo_plugins", "packaging"}
        assert {root(module) for module in imports(name, everywhere=name != "doctor/checks.py")} <= allowed


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_evaluated(name):
    """No text of a user is run as code by us."""
    assert not {"eval", "exec", "compile", "builtins.eval", "builtins.exec"} & set(calls(name))


def test_importing_the_package_imports_nothing():
    """``import zoo_plugins`` imports no other module, of third parties or of Python."""
    script = f"""
import sys
sys.path.insert(0, {str(FOLDER.parent)!r})
before = set(sys.modules)
import zoo_plugins
print(sorted(set(sys.modules) - before))
zoo_plugins.PluginError
print("torch" in sys.modules)
"""
    ended = run_python("-S", "-c", script)  # -S: without the .pth file that has imported it
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["['zoo_plugins']", "False"]


@pytest.mark.parametrize("name", zoo_plugins.__all__)
def test_public_names(name):
    """Every public name exists, is listed by dir(), and is where it says."""
    value = getattr(zoo_plugins, name)
    assert name in dir(zoo_plugins)
    if name != "__version__":
        assert value.__name__ == name
        assert value.__module__.startswith("zoo_plugins.")


def test_names_for_type_checkers():
    """Type checkers, which do not run __getattr__, are told every public name."""
    told = {
        alias.asname
        for node in ast.walk(FILES["__init__.py"])
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("zoo_plugins")
        for alias in node.names
    }
    assert told == set(zoo_plugins.__all__) - {"__version__"}


def test_unknown_public_name():
    """A name that does not exist is an AttributeError, so that hasattr and doctest work."""
    assert not hasattr(zoo_plugins, "no_such_name")
    with pytest.raises(AttributeError, match="module 'zoo_plugins' has no attribute 'no_such_name'"):
        zoo_plugins.no_such_name  # noqa: B018
