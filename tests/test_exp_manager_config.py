"""The experiment manager: what it writes beside the model, configurations of Python code, and numbers as text."""

import copy
import sys
from pathlib import Path

import pytest
import yaml
from rl_zoo3.utils import get_saved_hyperparams
from stable_baselines3.common.utils import ConstantSchedule

from tests.managers import PPO, SAC, GoalMemory, RecordingVecEnv, make_manager, set_up, write_config
from zoo_plugins import PluginError

# --- config.yml

SAVED_BLOCK = {
    **SAC,
    "n_envs": 2,
    "learning_rate": "lin_1e-3",
    "tau": "5e-3",
    "train_freq": [2, "step"],
    "normalize": {"norm_obs": True, "norm_reward": False},
    "gamma": 0.9,
    "env_kwargs": {"g": 9.0},
    "vec_env_class": "tests.managers.RecordingVecEnv",
    "vec_env_kwargs": {"flavour": "mint"},
    "replay_buffer_class": "tests.managers.TaggedReplayBuffer",
    "replay_buffer_kwargs": "dict(tag=3)",
    "policy_kwargs": {"net_arch": [4], "activation_fn": "nn.ReLU"},
}


@pytest.mark.parametrize("kind", ["yml", "py"])
def test_config_keeps_the_own_values(tmp_path, kind):
    """config.yml holds exactly what the user wrote: text stays text, and no object takes its place."""
    if kind == "yml":
        config = write_config(tmp_path, {"Pendulum-v1": SAVED_BLOCK})
    else:
        config = str(tmp_path / "conf.py")
        (tmp_path / "conf.py").write_text(f"hyperparams = {{'Pendulum-v1': {SAVED_BLOCK!r}}}")
    manager = make_manager(tmp_path, "sac", "Pendulum-v1", config=config)
    model, env, _ = set_up(manager)
    text = Path(manager.params_path, "config.yml").read_text()
    assert dict(yaml.load(text, yaml.UnsafeLoader)) == SAVED_BLOCK
    assert "python/name" not in text
    assert (model.replay_buffer.tag, env.venv.flavour, model.tau) == (3, "mint", 0.005)

    hyperparams, stats_path = get_saved_hyperparams(manager.params_path)
    assert stats_path == manager.params_path
    assert hyperparams.pop("normalize_kwargs") == SAVED_BLOCK["normalize"]
    assert hyperparams == SAVED_BLOCK


def test_config_of_classes_can_be_read_back(tmp_path):
    """Classes of a .py conf-file come back from config.yml; enjoy.py gets a text that names HerReplayBuffer."""
    path = tmp_path / "conf.py"
    path.write_text(
        "from tests.managers import HER, GoalMemory, RecordingVecEnv\n"
        "block = dict(HER, replay_buffer_class=GoalMemory, vec_env_class=RecordingVecEnv)\n"
        "hyperparams = {'BitFlip-v0': block}\n"
    )
    manager = make_manager(tmp_path, "dqn", "BitFlip-v0", config=str(path))
    model, _, _ = set_up(manager)
    assert type(model.replay_buffer) is GoalMemory

    saved = yaml.load(Path(manager.params_path, "config.yml").read_text(), yaml.UnsafeLoader)
    assert (saved["replay_buffer_class"], saved["vec_env_class"]) == (GoalMemory, RecordingVecEnv)
    hyperparams, _ = get_saved_hyperparams(manager.params_path)
    assert "HerReplayBuffer" in hyperparams["replay_buffer_class"]
    assert "GoalMemory" in hyperparams["replay_buffer_class"]


def test_params_are_saved(tmp_path):
    """What -params sets is in config.yml, in place of the YAML's value."""
    manager = make_manager(tmp_path, block=PPO, hyperparams={"gamma": 0.5, "n_steps": 64})
    model, _, _ = set_up(manager)
    saved, _ = get_saved_hyperparams(manager.params_path)
    assert (model.gamma, model.n_steps) == (saved["gamma"], saved["n_steps"]) == (0.5, 64)


# --- configurations of Python code


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that imports a package of hyperparameters with the given dict."""

    def make(source):
        (tmp_path / "own_hyperparams.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "own_hyperparams", raising=False)
        return __import__("own_hyperparams")

    yield make
    sys.modules.pop("own_hyperparams", None)


def test_package_is_not_changed_by_runs(tmp_path, package):
    """Neither the dicts of a package of hyperparameters nor what they hold change, whatever the command line says."""
    module = package(
        "from stable_baselines3.common.vec_env import DummyVecEnv\n"
        "from tests.managers import PPO\n"
        "kwargs = {'net_arch': {'pi': [4], 'vf': [4]}}\n"
        "hyperparams = {'Knob-v0': dict(PPO, policy_kwargs=kwargs, vec_env_class=DummyVecEnv, gamma=0.9,\n"
        "               normalize={'norm_obs': True}, env_kwargs={'length': 3}, learning_rate='lin_1e-3')}\n"
    )
    block = module.hyperparams["Knob-v0"]
    objects = [module.hyperparams, block, *block.values(), module.kwargs["net_arch"]["pi"]]
    snapshot = copy.deepcopy(module.hyperparams)
    flags = dict(hyperparams={"gamma": 0.5, "n_epochs": 2}, env_kwargs={"colour": "blue"})
    model, env, _ = set_up(make_manager(tmp_path, env="Knob-v0", config="own_hyperparams", **flags))
    model.learn(16)

    assert (model.gamma, model.n_epochs, env.get_attr("colour")) == (0.5, 2, ["blue"])
    assert module.hyperparams == snapshot
    block = module.hyperparams["Knob-v0"]
    now = [module.hyperparams, block, *block.values(), module.kwargs["net_arch"]["pi"]]
    assert all(new is old for new, old in zip(now, objects, strict=True))


def test_package_is_not_changed_by_a_failure(tmp_path, package):
    """A run that fails leaves the dict of a package of hyperparameters as it was, too."""
    module = package("from tests.managers import PPO\nhyperparams = {'CartPole-v1': dict(PPO)}\n")
    manager = make_manager(tmp_path, config="own_hyperparams", hyperparams={"n_step": 3})
    with pytest.raises(PluginError, match="n_step"):
        manager.setup_experiment()
    assert module.hyperparams == {"CartPole-v1": PPO}


def test_shared_dict_of_a_py_file_is_not_changed(tmp_path, package):
    """A .py conf-file may import the very dict of another module: it stays as it is."""
    module = package("from tests.managers import PPO\nBLOCK = dict(PPO, learning_rate=0.1)\n")
    path = tmp_path / "conf.py"
    path.write_text("from own_hyperparams import BLOCK\nhyperparams = {'CartPole-v1': BLOCK}\n")
    model, _, _ = set_up(make_manager(tmp_path, config=str(path), hyperparams={"gamma": 0.5}))
    assert model.gamma == 0.5
    assert module.BLOCK == {**PPO, "learning_rate": 0.1}


def test_one_dict_for_two_algorithms(tmp_path, package):
    """One policy_kwargs dict serves SAC, which writes into what it gets, and then DQN."""
    module = package(
        "from tests.managers import DQN, SAC\n"
        "KWARGS = {'net_arch': [4]}\n"
        "hyperparams = {'Pendulum-v1': dict(SAC, policy_kwargs=KWARGS), 'CartPole-v1': dict(DQN, policy_kwargs=KWARGS)}\n"
    )
    for algo, env in (("sac", "Pendulum-v1"), ("dqn", "CartPole-v1")):
        model, _, _ = set_up(make_manager(tmp_path, algo, env, config="own_hyperparams"))
        assert model.policy.net_arch == [4]
    assert module.KWARGS == {"net_arch": [4]}


@pytest.mark.parametrize(
    ("base", "entry"),
    [
        ("stable_baselines3.common.vec_env:DummyVecEnv", "vec_env_class=Own"),
        ("stable_baselines3.common.buffers:RolloutBuffer", "rollout_buffer_class=Own"),
        ("stable_baselines3.common.policies:ActorCriticPolicy", "policy=Own"),
        ("tests.managers:TinyExtractor", "policy_kwargs=dict(features_extractor_class=Own)"),
    ],
)
def test_class_inside_a_py_file_is_refused(tmp_path, base, entry):
    """A class that only exists inside the conf-file is refused in one line: no other process could load the model."""
    module, _, name = base.partition(":")
    path = tmp_path / "conf.py"
    path.write_text(
        f"from {module} import {name}\nfrom tests.managers import PPO\nclass Own({name}): ...\n"
        f"hyperparams = {{'CartPole-v1': {{**PPO, **dict({entry})}}}}\n"
    )
    with pytest.raises(PluginError, match=r"Own can't be imported from elsewhere; move it to a module") as error:
        make_manager(tmp_path, config=str(path)).setup_experiment()
    message = str(error.value)
    assert message.startswith(entry.partition("=")[0] + ":")
    assert str(path) in message
    assert "\n" not in message
    assert not (tmp_path / "logs").exists()


# --- numbers


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 0.0001), (" 2.5e-1", 0.25), ("1E-2", 0.01), (".5", 0.5), ("1", 1.0), ("lin_1e-4", None)]
)
def test_learning_rate_as_text(tmp_path, text, value):
    """What YAML takes for text, because 1e-4 has no decimal point, is read as the number it looks like."""
    model, _, _ = set_up(make_manager(tmp_path, block={**PPO, "learning_rate": text}))
    if value is None:
        assert (model.lr_schedule(1.0), model.lr_schedule(0.5)) == (0.0001, 0.00005)
    else:
        assert isinstance(model.learning_rate, ConstantSchedule)
        assert model.lr_schedule(0.5) == value


def test_numbers_as_text_for_any_key(tmp_path):
    """Every hyperparameter, and every entry of our maps of keyword arguments, may be number-like text."""
    config = tmp_path / "conf.yml"
    config.write_text(
        "CartPole-v1:\n  policy: MlpPolicy\n  n_timesteps: 1e3\n  n_envs: 2e0\n  buffer_size: 2e2\n  learning_starts: 1e2\n"
        "  gamma: 5e-1\n  batch_size: 3.2e1\n  replay_buffer_class: tests.managers.TaggedReplayBuffer\n"
        "  replay_buffer_kwargs: {tag: 2e0}\n  vec_env_class: tests.managers.RecordingVecEnv\n"
        "  vec_env_kwargs: {flavour: 1e-4}\n"
    )
    assert yaml.safe_load(config.read_text())["CartPole-v1"]["n_timesteps"] == "1e3"
    manager = make_manager(tmp_path, "dqn", config=str(config))
    model, env, _ = set_up(manager)
    assert (manager.n_timesteps, env.num_envs, model.buffer_size, model.learning_starts) == (1000, 2, 200, 100)
    assert (model.gamma, model.batch_size, model.replay_buffer.tag, env.flavour) == (0.5, 32, 2, 0.0001)
