"""The experiment manager: where hyperparameters come from, which VecEnv serves, and which env_kwargs reach it."""

import inspect
from pathlib import Path

import pytest
import yaml
from rl_zoo3 import exp_manager
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    sync_envs_normalization,
)

from tests.fakes import fake_distribution
from tests.managers import DQN, LSTM, PPO, KnobEnv, RecordingVecEnv, layers, make_manager, set_up, write_config
from zoo_plugins.exp_manager import PluginExperimentManager

# --- where hyperparameters come from


def test_the_zoo_uses_our_manager():
    """Every script of the zoo that asks for ExperimentManager gets the subclass that knows the plugins."""
    assert exp_manager.ExperimentManager is PluginExperimentManager
    base = PluginExperimentManager.__mro__[1]
    assert (base.__module__, base.__qualname__) == ("rl_zoo3.exp_manager", "ExperimentManager")


def test_default_yaml_of_a_plugin(tmp_path):
    """Without a conf-file, a plugin algorithm reads its own YAML, and an upstream one the zoo's."""
    own = make_manager(tmp_path, "ppo_lstm_seq", "PendulumNoVel-v1")
    assert own.config.endswith("hyperparams/ppo_lstm_seq.yml")
    hyperparams, _ = own.read_hyperparameters()
    assert hyperparams == yaml.safe_load(Path(own.config).read_text())["PendulumNoVel-v1"]

    upstream = make_manager(tmp_path, "ppo")
    assert upstream.config.endswith("rl_zoo3/hyperparams/ppo.yml")


@pytest.mark.parametrize("positional", [False, True])
def test_given_config_wins(tmp_path, positional):
    """A conf-file, passed by position or by name, takes the place of the plugin's own YAML."""
    path = write_config(tmp_path, {"CartPole-v1": {**LSTM, "n_steps": 7}})
    if positional:
        parameters = inspect.signature(PluginExperimentManager.__mro__[1]).parameters
        between = [parameters[name].default for name in list(parameters)[4 : list(parameters).index("config")]]
        logs = str(tmp_path / "logs")
        manager = exp_manager.ExperimentManager(None, "ppo_lstm_seq", "CartPole-v1", logs, *between, path)
    else:
        manager = make_manager(tmp_path, "ppo_lstm_seq", config=path)
    assert manager.config == path
    assert manager.read_hyperparameters()[0]["n_steps"] == 7


def test_default_block_for_an_unlisted_environment(tmp_path):
    """An environment that is not listed gets the block `default`."""
    config = write_config(tmp_path, {"default": {**PPO, "n_steps": 9}, "Acrobot-v1": PPO})
    assert make_manager(tmp_path, config=config).read_hyperparameters()[0]["n_steps"] == 9


# --- VecEnvs

RECORDING_NAMES = ["tests.managers.RecordingVecEnv", "tests.managers:RecordingVecEnv"]


def classes_in_use(manager):
    """Return the classes of the training and of the evaluation environment, and close both."""
    _, env, eval_env = set_up(manager)
    env.close()
    eval_env.close()
    return layers(env), layers(eval_env)


@pytest.mark.parametrize("name", RECORDING_NAMES)
def test_vec_env_class_of_a_plugin(tmp_path, name):
    """A VecEnv named in YAML serves training with its keyword arguments; evaluation runs on a plain DummyVecEnv."""
    block = {**PPO, "n_envs": 2, "vec_env_class": name, "vec_env_kwargs": {"flavour": "vanilla"}}
    model, env, eval_env = set_up(make_manager(tmp_path, block=block))
    assert layers(env) == [RecordingVecEnv]
    assert (env.num_envs, env.flavour) == (2, "vanilla")
    assert layers(eval_env) == [DummyVecEnv]
    assert model.learn(32).num_timesteps == 32


def test_vec_env_class_as_a_class(tmp_path):
    """A .py conf-file may hold the class itself; its kwargs may be the zoo's "dict(...)" string."""
    path = tmp_path / "conf.py"
    path.write_text(
        "from tests.managers import PPO, RecordingVecEnv\n"
        "block = dict(PPO, vec_env_class=RecordingVecEnv, vec_env_kwargs=\"dict(flavour='mint')\")\n"
        "hyperparams = {'CartPole-v1': block}\n"
    )
    _, env, eval_env = set_up(make_manager(tmp_path, config=str(path)))
    assert (layers(env), env.flavour) == ([RecordingVecEnv], "mint")
    assert layers(eval_env) == [DummyVecEnv]


def test_vec_env_class_by_registered_name(tmp_path, monkeypatch):
    """The name of an entry point in zoo_plugins.vec_envs is a word for vec_env_class."""
    entry_points = {"vec_envs": {"fake_sim": RECORDING_NAMES[1]}}
    monkeypatch.syspath_prepend(fake_distribution(tmp_path, "fake-sim", entry_points=entry_points))
    _, env, eval_env = set_up(make_manager(tmp_path, block={**PPO, "vec_env_class": "fake_sim"}))
    assert (layers(env), layers(eval_env)) == ([RecordingVecEnv], [DummyVecEnv])


@pytest.mark.parametrize(
    ("word", "kwargs", "cls"), [("dummy", {}, DummyVecEnv), ("subproc", {"start_method": "fork"}, SubprocVecEnv)]
)
@pytest.mark.parametrize("flag", ["dummy", "subproc"])
def test_vec_env_words_of_the_zoo(tmp_path, word, kwargs, cls, flag):
    """`dummy` and `subproc` in YAML serve training and evaluation, as the flag --vec-env does, and win over it."""
    block = {**PPO, "vec_env_class": word, "vec_env_kwargs": kwargs}
    assert classes_in_use(make_manager(tmp_path, block=block, vec_env_type=flag)) == ([cls], [cls])


def test_vec_env_flag_stays(tmp_path):
    """Without vec_env_class in YAML, --vec-env decides, and vec_env_kwargs go to its class."""
    block = {**PPO, "vec_env_kwargs": {"start_method": "fork"}}
    manager = make_manager(tmp_path, block=block, vec_env_type="subproc")
    assert classes_in_use(manager) == ([SubprocVecEnv], [SubprocVecEnv])


def test_same_wrappers_for_training_and_evaluation(tmp_path):
    """Both environments wear the same wrappers, so that the statistics of training can be copied to evaluation."""
    block = {**PPO, "vec_env_class": RECORDING_NAMES[0], "normalize": True, "frame_stack": 2, "gamma": 0.9}
    model, env, eval_env = set_up(make_manager(tmp_path, block=block))
    assert layers(env) == [VecFrameStack, VecNormalize, RecordingVecEnv]
    assert layers(eval_env) == [VecFrameStack, VecNormalize, DummyVecEnv]
    assert (env.venv.gamma, env.venv.norm_reward, eval_env.venv.norm_reward) == (0.9, True, False)
    model.learn(32)
    assert eval_env.venv.obs_rms.count < 1
    sync_envs_normalization(env, eval_env)
    assert eval_env.venv.obs_rms.count > 32
    assert (eval_env.venv.obs_rms.mean == env.venv.obs_rms.mean).all()


# --- env_kwargs


@pytest.mark.parametrize(
    ("yaml_kwargs", "flags", "colours", "saved"),
    [
        ({"colour": "green"}, {}, ("green", "green"), {"colour": "green"}),
        ({"colour": "green"}, {"env_kwargs": {"colour": "blue"}}, ("blue", "blue"), {"colour": "blue"}),
        ({"colour": "green"}, {"eval_env_kwargs": {"colour": "pink"}}, ("green", "pink"), {"colour": "green"}),
        (
            {"colour": "green"},
            {"env_kwargs": {"colour": "blue"}, "eval_env_kwargs": {"colour": "pink"}},
            ("blue", "pink"),
            {"colour": "blue"},
        ),
        (None, {"env_kwargs": {"colour": "blue"}}, ("blue", "blue"), {"colour": "blue"}),
        (None, {}, ("red", "red"), None),
    ],
)
def test_env_kwargs(tmp_path, yaml_kwargs, flags, colours, saved):
    """env_kwargs of YAML reach training and evaluation, flags win, and args.yml keeps what training used."""
    block = PPO if yaml_kwargs is None else {**PPO, "env_kwargs": yaml_kwargs}
    manager = make_manager(tmp_path, env="Knob-v0", block=block, **flags)
    _, env, eval_env = set_up(manager)
    assert (env.get_attr("colour"), eval_env.get_attr("colour")) == ([colours[0]], [colours[1]])
    args = yaml.load(Path(manager.params_path, "args.yml").read_text(), yaml.UnsafeLoader)
    assert args["env_kwargs"] == saved


# --- a whole run


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_learning(tmp_path, algo):
    """A whole run trains for n_timesteps, saves the model, and closes the training environments."""
    KnobEnv.forget()
    block = {"dqn": DQN, "ppo": PPO}[algo]
    manager = make_manager(tmp_path, algo, "Knob-v0", {**block, "n_envs": 2, "vec_env_class": RECORDING_NAMES[0]})
    model, _ = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)
    assert model.num_timesteps == 32
    assert (tmp_path / "logs" / algo / "Knob-v0_1" / "Knob-v0.zip").is_file()
    assert len(KnobEnv.opened) == 2
    assert KnobEnv.still_open() == []
