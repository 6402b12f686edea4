"""What is built, installed and uninstalled: the wheel, the sdist, and an editable install."""

import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import zoo_plugins

ROOT = Path(__file__).parent.parent
DIST_INFO = f"zoo_plugins-{zoo_plugins.__version__}.dist-info"

# Prints what a user gets who has only imported the zoo
LOOK = """
import json, sys, warnings
started = "zoo_plugins._startup" in sys.modules
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import rl_zoo3.exp_manager
algo = rl_zoo3.utils.ALGOS.get("ppo_lstm_seq")
found = {"started": started, "algo": algo and algo.__name__, "warnings": [str(w.message) for w in caught]}
found["manager"] = rl_zoo3.exp_manager.ExperimentManager.__module__
if algo:
    import zoo_plugins
    manager = rl_zoo3.exp_manager.ExperimentManager(None, "ppo_lstm_seq", "CartPole-v1", "logs")
    found |= {"file": zoo_plugins.__file__, "yaml": manager.config}
    found["hyperparams"] = manager.read_hyperparameters()[0]
print(json.dumps(found))
"""


def execute(*command, cwd):
    """Run a command that must succeed, outside of this checkout; return its output."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ZOO_PLUGINS")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_checkout(folder):
    """Copy what git tracks, without the caches and leftovers of the working tree."""
    names = execute("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder with a copy of the checkout, its sdist, the wheel built from that, and the wheel built from the checkout."""
    folder = tmp_path_factory.mktemp("packaging")
    copy_checkout(folder / "checkout")
    execute(sys.executable, "-m", "build", "--no-isolation", "--outdir", "from_sdist", "checkout", cwd=folder)
    execute(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "direct", "checkout", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    """Path of the wheel built from the checkout."""
    (path,) = (built / "direct").glob("*.whl")
    return path


def read_wheel(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheel(wheel):
    """The wheel holds the package, its YAML, the two startup files at its root and the licence, and nothing else."""
    files = read_wheel(wheel)
    tracked = execute("git", "ls-files", "zoo_plugins", cwd=ROOT).split()
    yamls = execute("git", "ls-files", "hyperparams", cwd=ROOT).split()
    expected = {*tracked, *(f"zoo_plugins/{name}" for name in yamls), "zoo_plugins.pth", "zoo_plugins.start"}
    info = {f"{DIST_INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert {"hyperparams/ppo_lstm_seq.yml", "hyperparams/maskable_ppo_lstm_seq.yml"} <= set(yamls)
    assert "zoo_plugins/py.typed" in tracked
    assert set(files) == expected | info
    for name in ("zoo_plugins.pth", "zoo_plugins.start"):
        assert files[name] == (ROOT / name).read_bytes()
    assert files["zoo_plugins/hyperparams/ppo_lstm_seq.yml"] == (ROOT / "hyperparams/ppo_lstm_seq.yml").read_bytes()


def test_sdist(built, wheel):
    """The sdist holds all that is needed to build the very same wheel, and the tests."""
    (path,) = (built / "from_sdist").glob("*.whl")
    assert read_wheel(path) == read_wheel(wheel)
    (sdist,) = (built / "from_sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sdist.name == f"zoo_plugins-{zoo_plugins.__version__}.tar.gz"
    assert names >= {"pyproject.toml", "README.md", "LICENSE", "setup.cfg", "hyperparams/ppo_lstm_seq.yml", "zoo_plugins.pth"}
    assert any(name.startswith("tests/test_") for name in names)
    assert not any(name.startswith((".ci", ".git/", ".github")) for name in names)


def test_metadata(wheel):
    """The version is that of the package, and the licence and the entry points are declared."""
    files = read_wheel(wheel)
    metadata = Parser().parsestr(files[f"{DIST_INFO}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("zoo-plugins", zoo_plugins.__version__)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("MIT", "LICENSE")
    entry_points = files[f"{DIST_INFO}/entry_points.txt"].decode().splitlines()
    assert "ppo_lstm_seq = zoo_plugins.specs:PPO_LSTM_SEQ" in entry_points
    assert "maskable_ppo_lstm_seq = zoo_plugins.specs:MASKABLE_PPO_LSTM_SEQ" in entry_points


def test_startup_files():
    """Both startup files run the same module: one imports it, the other (PEP 829) names a function without parameters."""
    (line,) = (ROOT / "zoo_plugins.start").read_text().splitlines()
    start = pkgutil.resolve_name(line)
    assert callable(start)
    assert (ROOT / "zoo_plugins.pth").read_text().splitlines() == [f"import {start.__module__}"]
    before = list(sys.meta_path)
    assert start() is None
    assert sys.meta_path == before  # it has been run already


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory):
    """Folder that shows what is installed here, but for this project."""
    folder = tmp_path_factory.mktemp("dependencies")
    for path in map(Path, dict.fromkeys(sys.path)):
        if path.name in ("site-packages", "dist-packages"):
            for entry in path.iterdir():
                if "zoo_plugins" not in entry.name and not (folder / entry.name).exists():
                    (folder / entry.name).symlink_to(entry)
    return folder


class Venv:
    """Virtual environment without pip that sees a folder of dependencies, whose ``.pth`` files are not executed."""

    def __init__(self, folder, dependencies):
        self.folder = folder
        execute(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        (self.site_packages,) = (folder / "venv").glob("lib/python*/site-packages")
        (self.site_packages / "deps.pth").write_text(f"{dependencies}\n")
        self.python = folder / "venv" / "bin" / "python"

    def pip(self, *arguments):
        execute(sys.executable, "-m", "pip", "--python", self.python, *arguments, cwd=self.folder)

    def installed(self):
        return sorted(path.name for path in self.site_packages.iterdir() if path.name != "__pycache__")

    def look(self):
        return json.loads(execute(self.python, "-c", LOOK, cwd=self.folder).splitlines()[-1])


def check_uninstall(venv):
    """Uninstalling leaves nothing of ours, and rl_zoo3 as it was."""
    venv.pip("uninstall", "--yes", "zoo-plugins")
    assert venv.installed() == ["deps.pth"]
    found = venv.look()
    assert found["algo"] is None
    assert found["started"] is False
    assert found["manager"] == "rl_zoo3.exp_manager"
    assert [text for text in found["warnings"] if "zoo" in text] == []


def test_installed_wheel(tmp_path, wheel, dependencies):
    """With the wheel installed, the zoo has the algorithm and its YAML from site-packages; uninstalling takes all away."""
    venv = Venv(tmp_path, dependencies)
    venv.pip("install", "--no-index", "--no-deps", wheel)
    assert venv.installed() == ["deps.pth", "zoo_plugins", DIST_INFO, "zoo_plugins.pth", "zoo_plugins.start"]
    found = venv.look()
    assert (found["started"], found["algo"], found["manager"]) == (True, "SeqRecurrentPPO", "zoo_plugins.exp_manager")
    assert Path(found["file"]) == venv.site_packages / "zoo_plugins" / "__init__.py"
    assert Path(found["yaml"]) == venv.site_packages / "zoo_plugins" / "hyperparams" / "ppo_lstm_seq.yml"
    assert [text for text in found["warnings"] if "zoo" in text] == []
    check_uninstall(venv)


def test_editable_install(tmp_path, dependencies):
    """An editable install reads code and YAML from the checkout, edits included; uninstalling leaves the checkout alone."""
    checkout = copy_checkout(tmp_path / "checkout")
    files = sorted(checkout.rglob("*"))
    venv = Venv(tmp_path, dependencies)
    venv.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "--editable", checkout)
    path = checkout / "hyperparams" / "ppo_lstm_seq.yml"
    hyperparams = yaml.safe_load(path.read_text())
    hyperparams["default"]["n_steps"] = 77
    path.write_text(yaml.safe_dump(hyperparams))

    found = venv.look()
    assert (found["started"], found["algo"], found["manager"]) == (True, "SeqRecurrentPPO", "zoo_plugins.exp_manager")
    assert Path(found["file"]) == checkout / "zoo_plugins" / "__init__.py"
    assert Path(found["yaml"]) == path
    assert found["hyperparams"]["n_steps"] == 77
    assert [text for text in found["warnings"] if "zoo" in text] == []
    check_uninstall(venv)
    assert set(files) <= set(checkout.rglob("*"))
