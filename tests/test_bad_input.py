"""Mistakes in hyperparameters: told in one line, before any environment or log folder is made."""

import pytest
from rl_zoo3 import exp_manager

from tests.managers import DQN, HER, LSTM, PPO, make_manager, write_config
from zoo_plugins import AlgoSpec, PluginError, zoo

ALGOS = {"ppo": PPO, "dqn": DQN, "ppo_lstm_seq": LSTM}
RECORDING = "tests.managers.RecordingVecEnv"
UNKNOWN = "unknown hyperparameter"

# algorithm, hyperparameters added to a valid block, key to blame, what else the message says
WRONG = [
    # names
    ("ppo", {"vec_env_class": "dumy"}, "vec_env_class", ["did you mean 'dummy'?", "subproc", "my_package.my_module.MyClass"]),
    ("ppo", {"vec_env_class": "sim.exe:"}, "vec_env_class", ["neither 'module:name' nor a dotted path"]),
    ("ppo", {"vec_env_class": 3}, "vec_env_class", ["expected the name of a vec env"]),
    ("ppo", {"vec_env_class": RECORDING[:-2] + "v"}, "vec_env_class", ["did you mean 'RecordingVecEnv'?"]),
    ("ppo", {"vec_env_class": "no_such_module.Env"}, "vec_env_class", ["importing 'no_such_module' failed"]),
    ("ppo", {"vec_env_class": "tests.managers.make_manager"}, "vec_env_class", ["is not a class"]),
    ("ppo", {"vec_env_class": "tests.managers.KnobEnv"}, "vec_env_class", ["VecEnv"]),
    ("dqn", {"replay_buffer_class": "HerReplayBufer"}, "replay_buffer_class", ["did you mean 'HerReplayBuffer'?"]),
    ("dqn", {"replay_buffer_class": "tests.managers.TaggedRolloutBuffer"}, "replay_buffer_class", ["SB3's ReplayBuffer"]),
    ("ppo_lstm_seq", {"rollout_buffer_class": "SequenceBuffer"}, "rollout_buffer_class", ["'SequenceRolloutBuffer'"]),
    ("ppo", {"rollout_buffer_class": "tests.managers.TaggedReplayBuffer"}, "rollout_buffer_class", ["SB3's RolloutBuffer"]),
    ("ppo", {"policy": "MlpPolcy"}, "policy", ["did you mean 'MlpPolicy'?", "CnnPolicy", "my_package.my_module.MyPolicy"]),
    ("ppo_lstm_seq", {"policy": "MlpPolicy"}, "policy", ["did you mean 'MlpLstmPolicy'?", "MultiInputLstmPolicy"]),
    ("ppo", {"policy": "tests.managers.OwnPolcy"}, "policy", ["did you mean 'OwnPolicy'?"]),
    # keys
    ("ppo", {"vec_env_clas": "dummy"}, "vec_env_clas", [UNKNOWN, "did you mean 'vec_env_class'?"]),
    ("ppo", {"n_step": 16}, "n_step", [UNKNOWN, "did you mean 'n_steps'?", "gae_lambda"]),
    ("ppo", {"replay_buffer_class": "HerReplayBuffer"}, "replay_buffer_class", [UNKNOWN, "'rollout_buffer_class'"]),
    ("ppo", {"device": "cuda"}, "device", ["from the command line"]),
    ("ppo", {"seed": 1}, "seed", ["from the command line"]),
    ("ppo", {"env": "CartPole-v1"}, "env", ["from the command line"]),
    # keyword arguments
    ("ppo", {"vec_env_class": RECORDING, "vec_env_kwargs": {"flavor": "x"}}, "vec_env_kwargs", ["did you mean 'flavour'?"]),
    ("ppo", {"vec_env_kwargs": {"start_method": "fork"}}, "vec_env_kwargs", ["DummyVecEnv has no argument 'start_method'"]),
    ("ppo", {"vec_env_class": RECORDING, "vec_env_kwargs": {"env_fns": []}}, "vec_env_kwargs", ["'env_fns'", "flavour"]),
    ("ppo", {"vec_env_kwargs": ["flavour"]}, "vec_env_kwargs", ["expected a map of keyword arguments, not list"]),
    ("ppo", {"vec_env_kwargs": "dict(a=1"}, "vec_env_kwargs", ["expected a map or 'dict(...)'"]),
    ("ppo", {"vec_env_class": RECORDING, "vec_env_kwargs": "dict(flavour=1+1)"}, "vec_env_kwargs", ["'1 + 1'", "code"]),
    ("dqn", {"replay_buffer_kwargs": {"n_envs": 2}}, "replay_buffer_kwargs", ["'n_envs'", "handle_timeout_termination"]),
    ("ppo_lstm_seq", {"rollout_buffer_kwargs": {"gamma": 0.5}}, "rollout_buffer_kwargs", ["no argument 'gamma' to set"]),
    ("ppo", {"rollout_buffer_kwargs": "dict(size=3)"}, "rollout_buffer_kwargs", ["RolloutBuffer has no argument 'size'"]),
    ("ppo", {"policy_kwargs": 3}, "policy_kwargs", ["expected a map of keyword arguments, not int"]),
    ("ppo", {"policy_kwargs": "dict(net_arch=[64]"}, "policy_kwargs", ["expected a map or 'dict(...)'"]),
    ("ppo", {"policy_kwargs": "dict(activation_fn=nn.ReLu)"}, "policy_kwargs", ["did you mean 'ReLU'?"]),
    ("ppo", {"policy_kwargs": {"activation_fn": "n.ReLU"}}, "policy_kwargs", ["n.ReLU"]),
    (
        "ppo",
        {"policy_kwargs": {"features_extractor_class": "tests.managers.TinyExtractr"}},
        "policy_kwargs",
        ["did you mean 'TinyExtractor'?"],
    ),
    (
        "ppo",
        {"policy_kwargs": "dict(net_arch=[8] * 2, features_extractor_class=tests.managers.TinyExtractr)"},
        "policy_kwargs",
        ["TinyExtractr"],
    ),
    # numbers
    ("ppo", {"clip_range_vf": -1}, "clip_range_vf", ["must be positive; leave the key out"]),
    ("ppo", {"clip_range_vf": "-1"}, "clip_range_vf", ["must be positive; leave the key out"]),
    ("ppo", {"learning_rate": "fast"}, "learning_rate", ["expected a number or lin_<number>, as in lin_2.5e-4"]),
    ("ppo", {"learning_rate": "lin_fast"}, "learning_rate", ["lin_<number>"]),
    ("ppo", {"learning_rate": [0.1]}, "learning_rate", ["lin_<number>"]),
    ("ppo", {"clip_range": "lin_0.2_0.1"}, "clip_range", ["lin_<number>"]),
    ("ppo", {"batch_size": 0}, "batch_size", ["expected a whole number, at least 1"]),
    ("ppo", {"n_envs": "0"}, "n_envs", ["expected a whole number, at least 1"]),
    ("ppo", {"n_steps": 1.5}, "n_steps", ["expected a whole number, at least 1"]),
    ("ppo", {"n_epochs": "many"}, "n_epochs", ["expected a whole number, at least 1"]),
    ("dqn", {"buffer_size": -3}, "buffer_size", ["expected a whole number, at least 1"]),
    ("ppo", {"n_timesteps": "many"}, "n_timesteps", ["number"]),
]


@pytest.fixture
def made(monkeypatch):
    """Collect the environments that are asked for, instead of making them."""
    calls = []
    monkeypatch.setattr(exp_manager, "make_vec_env", lambda *args, **kwargs: calls.append((args, kwargs)))
    return calls


def refusal(folder, made, **arguments):
    """Set an experiment up that must be refused; return the message, once it is clear that nothing was made."""
    with pytest.raises(PluginError) as error:
        make_manager(folder, **{"eval_freq": 10, **arguments}).setup_experiment()
    assert made == []
    assert not (folder / "logs").exists()
    assert isinstance(error.value, SystemExit)
    assert isinstance(error.value, ValueError)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("by_params", [False, True], ids=["yaml", "params"])
@pytest.mark.parametrize(("algo", "more", "key", "texts"), WRONG, ids=[str(more) for _, more, _, _ in WRONG])
def test_wrong_hyperparameter(tmp_path, made, algo, more, key, texts, by_params):
    """A wrong hyperparameter is named with its value, its source, and what would be valid."""
    if by_params:
        message = refusal(tmp_path, made, algo=algo, block=ALGOS[algo], hyperparams=more)
        source = "-params"
    else:
        message = refusal(tmp_path, made, algo=algo, block={**ALGOS[algo], **more})
        source = str(tmp_path / "conf.yml")
    value = list(more.values())[-1]
    assert message.startswith(f"{key}:")
    assert f" in {source}: " in message
    assert str(value) in message
    assert all(text in message for text in texts), message


@pytest.mark.parametrize("key", ["n_timesteps", "policy"])
def test_missing_hyperparameter(tmp_path, made, key):
    """A block without what nothing works without is refused."""
    block = {name: value for name, value in PPO.items() if name != key}
    message = refusal(tmp_path, made, block=block)
    assert message == f"{key}: in {tmp_path / 'conf.yml'}: it is missing"


def test_misspelt_argument_of_a_her_buffer(tmp_path, made):
    """The arguments of a named replay buffer are those of its own class."""
    more = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": {"n_sample_goal": 2}}
    message = refusal(tmp_path, made, algo="dqn", env="BitFlip-v0", block={**HER, **more})
    assert message.startswith("replay_buffer_kwargs: {'n_sample_goal': 2} in ")
    assert "HerReplayBuffer has no argument 'n_sample_goal' to set, did you mean 'n_sampled_goal'?" in message


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("- CartPole-v1\n", ["expected a map of environment ids to hyperparameters, not list"]),
        ("", ["expected a map of environment ids to hyperparameters, not NoneType"]),
        ("CartPole-v1: 3\n", ["CartPole-v1: 3", "expected a map of hyperparameters"]),
        ("CartPole-v1:\n", ["CartPole-v1: None", "expected a map of hyperparameters"]),
        ("CartPole-v1: {a: 1\n", ["is not YAML", "line 2"]),
        ("CartPole-v1:\n\tn_steps: 3\n", ["is not YAML", "line 2"]),
        ("CartPole-v0: {n_steps: 3}\n", ["neither for 'CartPole-v1' nor 'default'", "did you mean 'CartPole-v0'?"]),
        ("1: {n_steps: 3}\n", ["neither for 'CartPole-v1' nor 'default'"]),
        ("CartPole-v1: !!python/object:os.system {}\n", ["is not YAML", "python/object"]),
    ],
)
def test_wrong_file(tmp_path, made, text, fragments):
    """A file that is no map of environments to hyperparameters is named, with what is wrong in it."""
    path = tmp_path / "own.yml"
    path.write_text(text)
    message = refusal(tmp_path, made, config=str(path))
    assert str(path) in message
    assert all(fragment in message for fragment in fragments), message


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        ("{folder}/missing.yml", "FileNotFoundError"),
        ("{folder}/missing.py", "FileNotFoundError"),
        ("{folder}/empty.py", "KeyError: 'hyperparams'"),
        ("no_such_package", "ModuleNotFoundError"),
        ("json", "AttributeError"),
    ],
)
def test_unreadable_config(tmp_path, made, config, fragment):
    """A file or package that is missing, or holds no hyperparameters, is named with the cause."""
    (tmp_path / "empty.py").touch()
    config = config.format(folder=tmp_path)
    message = refusal(tmp_path, made, config=config)
    assert message.startswith(f"can't read hyperparameters from {config}: {fragment}")


def test_algorithm_without_search_space(tmp_path, made):
    """-optimize with an algorithm that can't be tuned names those that can."""
    block = {"policy": "MlpPolicy", "n_timesteps": 10}
    message = refusal(tmp_path, made, algo="crossq", env="Pendulum-v1", block=block, optimize_hyperparameters=True)
    assert message.startswith("algorithm 'crossq' has no search space for -optimize. Valid: ")
    assert "ppo_lstm_seq" in message


def test_plugin_without_hyperparameters(tmp_path, made, monkeypatch):
    """A plugin algorithm without a YAML of its own needs --conf-file."""
    monkeypatch.setitem(zoo.SPECS, "ppo", AlgoSpec("stable_baselines3:PPO"))
    assert refusal(tmp_path, made) == "algorithm 'ppo' comes without hyperparameters: pass --conf-file"


def test_the_valid_blocks_are_accepted(tmp_path):
    """What the refused blocks are made from is valid: nothing but the mistake keeps them from running."""
    for algo, block in ALGOS.items():
        manager = make_manager(tmp_path, algo, config=write_config(tmp_path, {"default": block}))
        assert manager.setup_experiment()[0].num_timesteps == 0
