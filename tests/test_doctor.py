"""``python -m zoo_plugins doctor``: what works is ok, what does not is told in one line, with exit status 1."""

import json
import sys
from importlib import metadata

import pytest

from tests.fakes import fake_distribution, run_python
from zoo_plugins import SeqRecurrentPPO, registry, zoo
from zoo_plugins.doctor import checks, command, findings, requirements
from zoo_plugins.doctor.findings import Finding

OWN = registry.OWN_DISTRIBUTION
# Extras that are not for users
FOR_DEVELOPERS = {"peers", "tests", "docs", "dev"}


def find(report, topic, name=None):
    """Return the findings of a topic, by name, or the one with a name."""
    found = {finding["name"]: finding for finding in report["findings"] if finding["topic"] == topic}
    return found if name is None else found[name]


def test_all_is_well():
    """Where all is installed, nothing is broken: versions, the hook, all plugins of ours, and the self-test are ok."""
    done = run_python("-m", "zoo_plugins", "doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True
    for name in ("rl_zoo3", "stable_baselines3", "sb3_contrib", "gymnasium", "torch", "optuna"):
        assert report["versions"][name] == metadata.version(name)
    assert find(report, "hook", "hook")["status"] == "ok"
    assert find(report, "rl_zoo3", "rl_zoo3")["status"] == "ok"
    plugins = find(report, "plugin")
    own = {f"{p.group} {p.name}" for group in registry.GROUPS for p in registry.find_plugins(group) if p.distribution == OWN}
    assert own <= set(plugins)
    assert {plugins[name]["status"] for name in own} <= {"ok", "missing"}
    assert plugins["algos ppo_lstm_seq"]["status"] == "ok"
    assert find(report, "self-test", "self-test")["text"].startswith("trained, saved, loaded and predicted in ")
    assert set(find(report, "feature")) == set(findings.FEATURES)


def test_broken_plugins(tmp_path):
    """Plugins that can't be used are named, with who brings them and why; whose extra is missing, with the pip line."""
    fake_distribution(
        tmp_path,
        "bad-plugin",
        entry_points={
            "algos": {"bad_algo": "bad_plugin:Algo", "ppo": "bad_plugin:Ppo", "number": "good_module:NUMBER"},
            "vec_envs": {"sim": "bad_plugin:Sim [sim]"},
            "buffers": {"Number": "good_module:NUMBER"},
        },
        modules={"bad_plugin": "raise RuntimeError('one\\ntwo')", "good_module": "NUMBER = 1"},
        extras=["sim"],
    )
    with (tmp_path / "bad_plugin-1.0.dist-info" / "METADATA").open("a") as file:
        file.write("Requires-Dist: no-such-simulator>=2; extra == 'sim'\n")
    done = run_python("-m", "zoo_plugins", "doctor", path=tmp_path, env={"ZOO_PLUGINS": "0"})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()

    def line(start):
        (found,) = [line for line in lines if line.startswith(start)]
        return found

    assert line("broken   algos bad_algo: ").endswith("failed with RuntimeError: one two")
    assert "of bad-plugin 1.0 (entry point zoo_plugins.algos: bad_algo = bad_plugin:Algo)" in line("broken   algos bad_algo: ")
    assert line("broken   algos ppo: ").endswith("the name 'ppo' is taken by the zoo itself")
    assert line("broken   algos number: ").endswith("is registered as an AlgoSpec or a class, not as int")
    assert line("broken   buffers Number: ").endswith("1 is not a class")
    assert line("missing  vec_envs sim: ").endswith("needs no-such-simulator>=2; pip install 'bad-plugin[sim]'")
    assert line("off      hook: ").startswith("off      hook: ZOO_PLUGINS=0 is set")
    assert line("ok       rl_zoo3: ") == "ok       rl_zoo3: takes plugins"
    assert line("ok       self-test: ")
    assert lines[-1] == "4 things are broken."


def test_crash(tmp_path, monkeypatch):
    """A plugin that ends the process is told as what it is; what was seen before it is kept."""
    source = "import os, sys\nprint('goodbye', file=sys.stderr, flush=True)\nos._exit(7)\n"
    fake_distribution(tmp_path, "deadly", entry_points={"buffers": {"Deadly": "deadly:Buffer"}}, modules={"deadly": source})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    results = command.run_checks()
    assert "cuda" in results["torch"]
    assert results["zoo"] == {"problem": None}
    assert results["plugins"] == {"problem": "the process that looks has ended with exit status 7 (goodbye)"}
    assert results["self_test"] == {"problem": "not looked at, as plugins could not be"}
    assert [str(finding) for finding in findings.find_plugins(results["plugins"])] == [
        "broken   plugins: the process that looks has ended with exit status 7 (goodbye)"
    ]
    assert findings.find_self_test(results["self_test"]).status == "broken"


def test_time_limit():
    """Checks that hang are given up."""
    results = command.run_checks(time_limit=0.001)
    assert set(results) == set(checks.CHECKS)
    assert results["torch"] == {"problem": "it took longer than 0.001 s"}


@pytest.mark.parametrize(
    ("torch", "text"),
    [
        ({"cuda": None, "gpus": []}, ", built without CUDA, no GPU"),
        ({"cuda": "12.8", "gpus": ["H200"]}, ", CUDA 12.8, H200"),
        ({"cuda": "12.8", "gpus": []}, ", CUDA 12.8, no GPU"),
    ],
)
def test_torch(torch, text):
    """The version of torch comes with that of CUDA, and with the GPUs that it finds."""
    found = {finding.name: finding for finding in findings.find_packages(torch)}
    assert found["torch"] == Finding("package", "torch", "ok", metadata.version("torch") + text)


def test_wrong_packages(monkeypatch):
    """A package in a wrong version, or none, is broken, and comes with the pip line; Ray may be missing."""
    versions = {"gymnasium": "0.29.1", "pandas": None, "ray": None}
    installed = requirements.installed_version
    monkeypatch.setattr(
        requirements, "installed_version", lambda name: versions[name] if name in versions else installed(name)
    )
    found = {finding.name: finding for finding in findings.find_packages({"problem": "ImportError: libcudart"})}
    assert str(found["gymnasium"]) == "broken   gymnasium: 0.29.1, needed is <2,>=1.0; pip install 'gymnasium<2,>=1.0'"
    assert found["pandas"].text.startswith("not installed, needed is ")
    assert found["torch"].status == "broken"
    assert found["torch"].text.endswith(", ImportError: libcudart")
    assert str(found["ray"]) == "missing  ray: not installed, optional"
    assert found["rl-zoo3"] == Finding("package", "rl-zoo3", "ok", metadata.version("rl_zoo3"))

    features = {finding.name: finding for finding in findings.find_features()}
    assert features["ray"].status == "missing"
    assert features["ray"].text.startswith("for vec_env_class: ray, needs ray")
    assert features["ray"].fix == "pip install 'zoo-plugins[ray]'"
    assert "ray" in features["tune"].text


def test_not_installed(monkeypatch):
    """A folder on the path alone brings no plugins."""
    monkeypatch.setattr(requirements, "installed_version", lambda name: None)
    (found,) = findings.find_packages({"cuda": None, "gpus": []})
    assert (found.name, found.status) == (OWN, "broken")
    assert findings.find_features() == []


def test_every_extra_for_users_is_a_feature():
    """No optional feature is forgotten."""
    assert set(requirements.extras(OWN)) - FOR_DEVELOPERS == set(findings.FEATURES)


def test_hook_that_is_missing(tmp_path, monkeypatch):
    """Where Python reads no .pth file, as with -S, the hook is broken; nobody has switched it off."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("ZOO_PLUGINS", raising=False)
    found = findings.find_hook()
    assert found.status == "broken"
    assert "zoo_plugins.pth" in found.text
    monkeypatch.setenv("ZOO_PLUGINS", "0")
    assert findings.find_hook().status == "off"


def test_zoo_that_is_not_extended(monkeypatch):
    """If rl_zoo3 was left as it is, the reason is told."""
    monkeypatch.setattr(zoo, "_given_up", "zoo_plugins 0.1.0 works with rl_zoo3 >=2.9,<3.0, but found rl_zoo3 3.1")
    found = findings.find_zoo(checks.check_zoo())
    assert str(found) == "broken   rl_zoo3: zoo_plugins 0.1.0 works with rl_zoo3 >=2.9,<3.0, but found rl_zoo3 3.1"


def test_self_test_can_fail(monkeypatch):
    """Training that changes nothing is noticed, and so is a loaded agent that acts differently."""
    load = SeqRecurrentPPO.load

    def load_wrongly(*args, **kwargs):
        model = load(*args, **kwargs)
        for parameter in model.policy.parameters():
            parameter.data.neg_()
        return model

    with monkeypatch.context() as patch:
        patch.setattr(SeqRecurrentPPO, "load", load_wrongly)
        with pytest.raises(RuntimeError, match="acts differently"):
            checks.check_training()
    monkeypatch.setattr(SeqRecurrentPPO, "learn", lambda self, *args, **kwargs: self)
    with pytest.raises(RuntimeError, match="training has changed no weight"):
        checks.check_training()


@pytest.fixture
def distribution(tmp_path, monkeypatch):
    """A distribution with requirements of all kinds."""
    fake_distribution(tmp_path, "needy", extras=["sim", "all"])
    with (tmp_path / "needy-1.0.dist-info" / "METADATA").open("a") as file:
        file.write("Requires-Dist: numpy\nRequires-Dist: pytest<1\nRequires-Dist: missing-one>=1; python_version > '3'\n")
        file.write("Requires-Dist: missing-two; python_version < '3'\nRequires-Dist: missing-sim>=2,<3; extra == 'sim'\n")
        file.write("Requires-Dist: needy[sim]; extra == 'all'\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "needy"


def test_unmet(distribution):
    """What is missing or has a wrong version is listed; what an extra needs with it only, what another Python needs never."""
    pytest_version = metadata.version("pytest")
    assert requirements.unmet(distribution) == [
        {"requirement": "pytest<1", "found": pytest_version},
        {"requirement": "missing-one>=1", "found": None},
    ]
    missing = [{"requirement": "missing-sim<3,>=2", "found": None}]
    assert requirements.unmet(distribution, "sim") == missing
    assert requirements.unmet(distribution, "all") == missing  # through the extra that it names
    assert requirements.extras(distribution) == ["sim", "all"]
    assert requirements.extras("no-such-distribution") == []
