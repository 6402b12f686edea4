"""What README.md shows is true."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from zoo_plugins import SeqRecurrentPPO, registry, zoo
from zoo_plugins.choices import OWN_KEYS, ZOO_KEYS
from zoo_plugins.config import Block

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def run(*args: str, cwd: Path, **env: str) -> str:
    result = subprocess.run(
        [sys.executable, *args], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_plugin_example_is_complete(tmp_path):
    """The two files of the example, installed by pip, make a new word for --algo that trains and can be watched."""
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    (project / "pyproject.toml").write_text(code_blocks("toml")[0])
    (module,) = [block for block in code_blocks("python") if "AlgoSpec(" in block]
    assert len(module.strip().splitlines()) <= 20
    (project / "my_zoo_plugin.py").write_text(module)
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "."]
    run(*install, cwd=project)

    command = ["-m", "rl_zoo3.train", "--algo", "ppo_fade", "--env", "CartPole-v1", "-n", "128", "--eval-freq", "-1"]
    out = run(*command, "-params", "n_steps:64", "n_envs:1", "ent_coef:0.1", cwd=tmp_path, PYTHONPATH=str(site))
    assert "Saving to logs/ppo_fade/CartPole-v1_1" in out
    enjoy = ["-m", "rl_zoo3.enjoy", "--algo", "ppo_fade", "--env", "CartPole-v1", "-f", "logs", "--no-render", "-n", "501"]
    assert "Mean reward" in run(*enjoy, cwd=tmp_path, PYTHONPATH=str(site))
    assert re.search(
        r"algos +ppo_fade +.*my-zoo-plugin 0\.1 +ok", run("-m", "zoo_plugins", "list", PYTHONPATH=str(site), cwd=tmp_path)
    )


def test_script_example_runs(tmp_path):
    """The three lines of a plain SB3 script run as they are, with fewer timesteps."""
    (script,) = [block for block in code_blocks("python") if "SeqRecurrentPPO(" in block]
    assert "learn(20_000)" in script
    out = run("-c", script.replace("20_000", "128"), cwd=tmp_path)
    assert re.search(r"total_timesteps +\| 128 ", out)


def test_masking_page_runs(tmp_path):
    """The environment of docs/algos/maskable_ppo_lstm_seq.md trains in the script and the command that stand there."""
    page = (ROOT / "docs" / "algos" / "maskable_ppo_lstm_seq.md").read_text()
    envs, script = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_envs.py").write_text(envs)
    (tmp_path / "recall.yml").write_text(re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)[0].replace("2e4", "1024"))
    assert "learn(20_000)" in script
    assert run("-c", script.replace("20_000", "512"), cwd=tmp_path).startswith("(")
    for command in re.findall(r"^python (-m rl_zoo3.*)$", page, flags=re.MULTILINE):
        out = run(
            *command.split(), cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        )
        assert re.search("Saving to logs/maskable_ppo_lstm_seq/Recall-v0_1|Mean reward", out)


def test_yaml_example_has_valid_keys():
    """Every key of the YAML example means something for ppo_lstm_seq."""
    (block,) = [yaml.safe_load(text) for text in code_blocks("yaml")]
    (hyperparams,) = block.values()
    parameters = set(inspect.signature(SeqRecurrentPPO).parameters)
    checked = Block(hyperparams, "README.md")
    checked.check_keys([*parameters, *ZOO_KEYS, *OWN_KEYS], required=["n_timesteps", "policy"], by_caller=())
    assert checked.values["n_timesteps"] == 100_000


def test_error_example_is_what_is_printed():
    """The error message is the one that the example's mistake gives."""
    block = Block({"vec_env_class": "subprok"}, "my.yml")
    with pytest.raises(registry.PluginError) as error:
        block.pop("vec_env_class", lambda value: registry.resolve("vec_envs", value, zoo.words("vec_envs")))
    assert str(error.value) in README


@pytest.mark.parametrize("script", ["demo.sh", "test.sh"])
def test_each_command_is_a_dozen_lines(script):
    """The two set-up scripts stay short enough to be read."""
    lines = (ROOT / "scripts" / script).read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) <= 12
    assert f"bash scripts/{script}" in README
