"""The zoo's scripts, run as users run them: with the algorithms, buffers and YAML files of plugins."""

import json
import zipfile
from pathlib import Path

import optuna
import pytest
import yaml

from tests.fakes import fake_distribution, run_python

ENV = "PendulumNoVel-v1"
TINY = ["-params", "n_steps:64", "n_envs:2", "batch_size:64", "n_epochs:1"]
SCRIPTS = ["train", "enjoy", "record_video", "load_from_hub", "push_to_hub"]


def run(module, *arguments, **kwargs):
    """Run a module as a script that must succeed; return its output."""
    done = run_python("-m", module, *map(str, arguments), **kwargs)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def saved_config(run_folder):
    (path,) = Path(run_folder).glob("*/config.yml")
    return yaml.load(path.read_text(), yaml.UnsafeLoader)


def timesteps_of(model_path):
    """Read for how many timesteps a saved model was trained."""
    with zipfile.ZipFile(model_path) as archive:
        return json.loads(archive.read("data"))["num_timesteps"]


# --- a new algorithm


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Log folder that holds a run of ppo_lstm_seq."""
    folder = tmp_path_factory.mktemp("cli") / "logs"
    frequencies = ["--eval-freq", 100, "--save-freq", 100, "--eval-episodes", 1]
    run("rl_zoo3.train", "--algo", "ppo_lstm_seq", "--env", ENV, *TINY, "-n", 256, *frequencies, "-f", folder)
    return folder


def test_train(logs):
    """train.py trains an algorithm it has never heard of, and leaves the files of any other run."""
    folder = logs / "ppo_lstm_seq" / f"{ENV}_1"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names >= {f"{ENV}.zip", "best_model.zip", "evaluations.npz", "0.monitor.csv", "1.monitor.csv"}
    assert names >= {"rl_model_100_steps.zip", "rl_model_200_steps.zip"}
    assert names >= {f"{ENV}/{name}" for name in ("vecnormalize.pkl", "config.yml", "args.yml", "command.txt")}
    assert timesteps_of(folder / f"{ENV}.zip") == 256
    config = saved_config(folder)
    assert (config["n_steps"], config["n_envs"], config["normalize"], config["gamma"]) == (64, 2, True, 0.95)


def test_resume(logs, tmp_path):
    """-i goes on with a saved model and its normalization, with another number of environments."""
    agent = logs / "ppo_lstm_seq" / f"{ENV}_1" / f"{ENV}.zip"
    arguments = ["-n", 192, "--eval-freq", -1, "-i", agent, "-f", tmp_path]
    arguments += ["-params", "n_steps:64", "n_envs:3", "batch_size:64", "n_epochs:1"]
    output = run("rl_zoo3.train", "--algo", "ppo_lstm_seq", "--env", ENV, *arguments)
    assert "Loading pretrained agent" in output
    assert "Loading saved VecNormalize stats" in output
    assert timesteps_of(tmp_path / "ppo_lstm_seq" / f"{ENV}_1" / f"{ENV}.zip") == 192


@pytest.mark.parametrize(
    ("flags", "model", "n_episodes"), [([], f"{ENV}.zip", 1), (["--load-best", "--n-envs", 2], "best_model.zip", 0)]
)
def test_enjoy(logs, flags, model, n_episodes):
    """enjoy.py plays with the last and with the best model, in one environment and in several."""
    output = run("rl_zoo3.enjoy", "--algo", "ppo_lstm_seq", "--env", ENV, "-f", logs, "--no-render", "-n", 200, *flags)
    assert f"Loading {logs}/ppo_lstm_seq/{ENV}_1/{model}" in output
    assert "Loading running average" in output
    # With several environments, the zoo counts no episodes
    assert output.count("Episode Reward:") == n_episodes


def test_record_video(logs):
    """record_video.py films the model."""
    run("rl_zoo3.record_video", "--algo", "ppo_lstm_seq", "--env", ENV, "-f", logs, "-n", 10)
    (video,) = (logs / "ppo_lstm_seq" / f"{ENV}_1" / "videos").glob("*.mp4")
    assert video.name.startswith(f"final-model-ppo_lstm_seq-{ENV}")
    assert video.stat().st_size > 0


def test_optimize_and_trial_id(tmp_path):
    """-optimize searches, and --trial-id 0 trains with the first trial's hyperparameters, under those of -params."""
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    common = ["--algo", "ppo_lstm_seq", "--env", ENV, "--storage", storage, "--study-name", "search", "-f", tmp_path]
    search = ["--n-trials", 2, "--n-timesteps", 200, "--eval-episodes", 1, "--no-optim-plots", "--seed", 0]
    output = run("rl_zoo3.train", *common, "-optimize", *search, "-params", "n_envs:1")
    study = optuna.load_study(study_name="search", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 2
    assert f"Writing report to {tmp_path}/ppo_lstm_seq/report_{ENV}_2-trials-200" in output
    assert len(list((tmp_path / "ppo_lstm_seq").glob("report_*.csv"))) == 1

    training = ["-n", 64, "--eval-freq", -1, "--trial-id", 0, "-params", "n_envs:1", "n_steps:64", "n_epochs:1"]
    run("rl_zoo3.train", *common, *training)
    params = study.trials[0].params
    config = saved_config(tmp_path / "ppo_lstm_seq" / f"{ENV}_2")
    assert config["batch_size"] == 2 ** params["batch_size_pow"]
    assert config["learning_rate"] == params["learning_rate"]
    assert config["policy_kwargs"]["lstm_hidden_size"] == 2 ** params["lstm_hidden_size_pow"]
    assert (config["n_steps"], config["n_epochs"], config["sde_sample_freq"]) == (64, 1, 4)


def test_unlisted_environment(tmp_path):
    """An environment that the algorithm's YAML does not list gets its block `default`."""
    arguments = ["--env", "CartPole-v1", "-params", "n_steps:32", "n_epochs:1", "-n", 32, "--eval-freq", -1]
    output = run("rl_zoo3.train", "--algo", "ppo_lstm_seq", *arguments, "-f", tmp_path)
    assert "Using 'default' hyperparameters" in output
    assert timesteps_of(tmp_path / "ppo_lstm_seq" / "CartPole-v1_1" / "CartPole-v1.zip") == 32


def test_help_lists_the_algorithm():
    """Every script of the zoo has the new algorithm among its choices."""
    code = (
        "import contextlib, importlib, io, json, runpy, sys\n"
        "hub = importlib.import_module('huggingface_sb3.push_to_hub')\n"
        # rl_zoo3 2.9.2 imports this function for push_to_hub; sb3-team-hf-integration 3.2 has renamed it
        "hub.generate_metadata = getattr(hub, 'generate_metadata', None)\n"
        "helps = {}\n"
        "for name in sys.argv[1:]:\n"
        "    sys.argv = [name, '--help']\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):\n"
        "        runpy.run_module(f'rl_zoo3.{name}', run_name='__main__', alter_sys=True)\n"
        "    helps[name] = output.getvalue()\n"
        "print(json.dumps(helps))\n"
    )
    done = run_python("-c", code, *SCRIPTS)
    assert done.returncode == 0, done.stderr
    helps = json.loads(done.stdout)
    assert list(helps) == SCRIPTS
    for text in helps.values():
        choices = text.partition("--algo {")[2].partition("}")[0].split(",")
        assert {"ppo", "ppo_lstm", "ppo_lstm_seq"} <= {choice.strip() for choice in choices}


def test_misspelt_key(tmp_path):
    """A misspelt hyperparameter costs one line on stderr and exit status 1: no traceback, no log folder."""
    folder = tmp_path / "logs"
    done = run_python("-m", "rl_zoo3.train", "--algo", "ppo_lstm_seq", "--env", ENV, "-params", "n_step:3", "-f", str(folder))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "n_step" in line]
    assert line.startswith("n_step: 3 in -params: unknown hyperparameter, did you mean 'n_steps'?")
    assert done.stderr.splitlines()[-1] == line
    assert not folder.exists()


# --- the explicit door


def test_explicit_door(tmp_path):
    """`python -m zoo_plugins train` has the plugins where ZOO_PLUGINS=0 keeps them from `python -m rl_zoo3.train`."""
    arguments = ["--algo", "ppo_lstm_seq", "--env", ENV, *TINY, "-n", "128", "--eval-freq", "-1", "-f", str(tmp_path / "logs")]
    off = {"ZOO_PLUGINS": "0"}
    done = run_python("-m", "rl_zoo3.train", *arguments, env=off)
    assert done.returncode == 2
    assert "invalid choice: 'ppo_lstm_seq'" in done.stderr
    assert not (tmp_path / "logs").exists()

    run("zoo_plugins", "train", *arguments, env=off)
    assert timesteps_of(tmp_path / "logs" / "ppo_lstm_seq" / f"{ENV}_1" / f"{ENV}.zip") == 128


@pytest.fixture
def broken_plugin(tmp_path):
    """Folder with a plugin that leaves a trace, and raises, when it is imported."""
    source = f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise RuntimeError('broken')\n"
    entry_points = {"algos": {"bad_algo": "bad_plugin:Algo", "ppo": "bad_plugin:Ppo"}, "buffers": {"Bad": "bad_plugin:Bad"}}
    return fake_distribution(tmp_path, "bad-plugin", entry_points=entry_points, modules={"bad_plugin": source})


def test_list(broken_plugin):
    """`python -m zoo_plugins list` shows a table of all plugins, and imports none of them."""
    lines = run("zoo_plugins", "list", path=broken_plugin).splitlines()
    assert lines[1].split() == ["GROUP", "NAME", "TARGET", "DISTRIBUTION", "STATUS"]
    rows = {(row[0], row[1]): row[2:] for row in (line.split(maxsplit=5) for line in lines[2:])}
    assert rows["algos", "ppo_lstm_seq"][0] == "zoo_plugins.specs:PPO_LSTM_SEQ"
    assert rows["algos", "ppo_lstm_seq"][-1] == "ok"
    assert rows["buffers", "SequenceRolloutBuffer"][-1] == "ok"
    assert rows["algos", "bad_algo"] == ["bad_plugin:Algo", "bad-plugin", "1.0", "ok"]
    assert rows["algos", "ppo"][-1] == "the name 'ppo' is taken by the zoo itself"
    assert not (broken_plugin / "imported").exists()


def test_list_as_json(broken_plugin):
    """`list --json` says the same to programs."""
    plugins = json.loads(run("zoo_plugins", "list", "--json", path=broken_plugin))
    own = {plugin["name"]: plugin for plugin in plugins if plugin["distribution"] == "zoo-plugins"}
    assert {"ppo_lstm_seq", "SequenceRolloutBuffer", "SequenceDictRolloutBuffer"} <= set(own)
    assert all(plugin["problem"] is None for plugin in own.values())
    assert own["ppo_lstm_seq"]["target"] == "zoo_plugins.specs:PPO_LSTM_SEQ"
    others = {plugin["name"]: plugin["problem"] for plugin in plugins if plugin["distribution"] == "bad-plugin"}
    assert others == {"bad_algo": None, "Bad": None, "ppo": "the name 'ppo' is taken by the zoo itself"}
    assert not (broken_plugin / "imported").exists()


@pytest.mark.parametrize("arguments", [["dance"], [], ["list", "--yaml"]])
def test_unknown_command(arguments):
    """A command that does not exist, none, or one with an unknown flag ends with exit status 2."""
    done = run_python("-m", "zoo_plugins", *arguments)
    assert done.returncode == 2
    assert "usage: python -m zoo_plugins" in done.stderr
    assert "Traceback" not in done.stderr


# --- plugins of third parties


def test_off_policy_algorithm_of_a_third_party(tmp_path):
    """A third party's off-policy algorithm trains with its own YAML, and enjoy.py gives it a buffer of one transition."""
    source = (
        "from stable_baselines3 import DQN\n"
        "from zoo_plugins import AlgoSpec\n"
        "class LoudDQN(DQN):\n"
        "    def _setup_model(self):\n"
        "        super()._setup_model()\n"
        "        print(f'LoudDQN: buffer_size={self.buffer_size}, {self.replay_buffer.buffer_size} rows')\n"
        "LOUD = AlgoSpec('loud.zoo:LoudDQN', hyperparams='loud:loud_dqn.yml')\n"
    )
    entry_points = {"algos": {"loud_dqn": "loud.zoo:LOUD"}}
    folder = fake_distribution(tmp_path, "loud", entry_points=entry_points, modules={"loud.zoo": source})
    block = {"policy": "MlpPolicy", "n_timesteps": 60, "buffer_size": 500, "learning_starts": 20}
    (folder / "loud" / "loud_dqn.yml").write_text(yaml.safe_dump({"default": block}))
    common = ["--algo", "loud_dqn", "--env", "CartPole-v1", "-f", tmp_path / "logs"]

    output = run("rl_zoo3.train", *common, "--eval-freq", -1, path=folder)
    assert "LoudDQN: buffer_size=500, 500 rows" in output
    assert timesteps_of(tmp_path / "logs" / "loud_dqn" / "CartPole-v1_1" / "CartPole-v1.zip") >= 60
    output = run("rl_zoo3.enjoy", *common, "--no-render", "-n", 20, path=folder)
    assert "LoudDQN: buffer_size=1, 1 rows" in output
    assert "buffer_size=500" not in output


@pytest.mark.parametrize("notation", ["class in .py", "dotted path in YAML"])
def test_own_her_buffer(tmp_path, notation):
    """A HER buffer whose name does not tell is given its environment by enjoy.py, in both notations."""
    source = (
        "import gymnasium as gym\n"
        "from stable_baselines3 import HerReplayBuffer\n"
        "gym.register('OwnBits-v0', entry_point='stable_baselines3.common.envs:BitFlippingEnv', kwargs={'n_bits': 3})\n"
        "class GoalMemory(HerReplayBuffer): ...\n"
    )
    folder = fake_distribution(tmp_path, "own-bits", modules={"own_bits": source})
    block = {"policy": "MultiInputPolicy", "n_timesteps": 40, "buffer_size": 50, "learning_starts": 10}
    if notation == "class in .py":
        config = tmp_path / "conf.py"
        config.write_text(
            "from own_bits import GoalMemory\n"
            f"hyperparams = {{'OwnBits-v0': dict({block!r}, replay_buffer_class=GoalMemory)}}\n"
        )
    else:
        config = tmp_path / "conf.yml"
        config.write_text(yaml.safe_dump({"OwnBits-v0": {**block, "replay_buffer_class": "own_bits.GoalMemory"}}))
    common = ["--algo", "dqn", "--env", "OwnBits-v0", "--gym-packages", "own_bits", "-f", tmp_path / "logs"]

    run("rl_zoo3.train", *common, "--conf-file", config, "--eval-freq", -1, path=folder)
    output = run("rl_zoo3.enjoy", *common, "--no-render", "-n", 30, path=folder)
    assert "Success rate:" in output
