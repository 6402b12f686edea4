"""Each place of rl_zoo3 that zoo_plugins leans on: a change there must fail here, and not in someone's training run."""

import argparse
import ast
import inspect
import textwrap
from pathlib import Path

import gymnasium as gym
import optuna
import pytest
import rl_zoo3
import yaml
from rl_zoo3 import exp_manager, hyperparams_opt, utils
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import zoo_plugins
from zoo_plugins import choices, registry, zoo
from zoo_plugins.choices import OWN_KEYS, ZOO_KEYS
from zoo_plugins.config import Block
from zoo_plugins.exp_manager import PluginExperimentManager
from zoo_plugins.registry import PluginError
from zoo_plugins.trials import HER_PARAMS

FOLDER = Path(rl_zoo3.__file__).parent
UpstreamManager = PluginExperimentManager.__mro__[1]
VIEWING_SCRIPTS = ("enjoy.py", "record_video.py")


class Memory(HerReplayBuffer):
    """HER under another name."""


class LargeDQN(DQN):
    """Off-policy algorithm of a plugin."""


class LargeSAC(SAC):
    """Another one."""


def source(name):
    """Return the source of a script of the zoo, in normal form."""
    return ast.unparse(ast.parse((FOLDER / name).read_text()))


def method(name):
    """Return the source of a method of the zoo's own experiment manager, in normal form."""
    return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(getattr(UpstreamManager, name)))))


def make_manager(cls=PluginExperimentManager, algo="ppo", **kwargs):
    return cls(argparse.Namespace(), algo, "CartPole-v1", "logs", **kwargs)


def check_block(algo, values):
    """Run all checks of a block of hyperparameters, and return the classes that it names."""
    block = Block(values, f"{algo}.yml")
    choices.check_keys(block, utils.ALGOS[algo])
    block.check_numbers()
    choices.choose_update_ratio(block, utils.ALGOS[algo])
    choices.choose_vec_env(block, DummyVecEnv)
    classes = {
        **choices.choose_policy(block, utils.ALGOS[algo], vars(exp_manager)),
        **choices.choose_buffers(block, vars(exp_manager)),
    }
    assert not {"policy", "policy_kwargs", "replay_buffer_class", "replay_buffer_kwargs"} & set(block.values)
    return classes


# Functions, tables and attributes


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, seams in zoo.SEAMS.items() for name in seams])
def test_seams(module, name):
    """Every function that is wrapped or overridden has the parameters that we pass on."""
    holder = {"rl_zoo3.utils": utils, "rl_zoo3.exp_manager": UpstreamManager}[module]
    function = inspect.unwrap(getattr(holder, name.rpartition(".")[2]))
    assert function.__module__ == module
    expected = zoo.SEAMS[module][name]
    assert tuple(inspect.signature(function).parameters)[: len(expected)] == expected


def test_every_override_is_a_seam():
    """What our manager overrides is checked at run time, before rl_zoo3 is touched."""
    overridden = {name for name in vars(PluginExperimentManager) if name in vars(UpstreamManager)} - {"__module__", "__doc__"}
    seams = {name.rpartition(".")[2] for name in zoo.SEAMS["rl_zoo3.exp_manager"]}
    assert overridden <= seams


def test_missing_seam_is_told(monkeypatch):
    """A function that is gone is told with both versions."""
    monkeypatch.setitem(zoo.SEAMS["rl_zoo3.utils"], "gone", ())
    versions = f"rl_zoo3 {rl_zoo3.__version__} is not the one that zoo_plugins {zoo_plugins.__version__} knows"
    assert zoo._seam_problem(utils) == f"rl_zoo3.utils.gone of {versions}"


@pytest.mark.parametrize(
    ("version", "works"), [("2.9.0", True), ("2.10.1", True), ("2.8.9", False), ("3.0.0a1", False), ("10.0", False)]
)
def test_tested_versions(version, works):
    """rl_zoo3 from 2.9 up to but not including 3.0 is extended, any other left alone."""
    assert (zoo._version_problem(version) is None) == works


def test_shared_tables():
    """One dict of algorithms and one of each search space table serve all scripts, so we extend them in place."""
    assert rl_zoo3.ALGOS is utils.ALGOS is exp_manager.ALGOS
    assert exp_manager.HYPERPARAMS_SAMPLER is hyperparams_opt.HYPERPARAMS_SAMPLER
    assert exp_manager.HYPERPARAMS_CONVERTER is hyperparams_opt.HYPERPARAMS_CONVERTER


def test_upstream_algos():
    """The algorithms of the zoo, found in its source, are those that it has."""
    assert zoo._upstream_algos() == tuple(name for name in utils.ALGOS if name not in zoo.SPECS)
    assert "ppo_lstm_seq" in zoo.SPECS


def test_attributes_of_the_manager():
    """The zoo's manager has the attributes that ours reads and writes, and defaults to its own YAML files."""
    manager = make_manager(UpstreamManager)
    names = "args algo config env_name storage study_name trial_id custom_hyperparams optimize_hyperparameters env_kwargs"
    names += " eval_env_kwargs _eval_env_kwargs_args vec_env_class vec_env_kwargs _is_atari"
    names += " callbacks specified_callbacks continue_training"
    assert [name for name in names.split() if not hasattr(manager, name)] == []
    assert manager.env_name.gym_id == "CartPole-v1"
    assert Path(manager.config) == FOLDER / "hyperparams" / "ppo.yml"
    assert make_manager(UpstreamManager, config="x.yml").config == "x.yml"


# What the scripts do


@pytest.mark.parametrize("script", [*VIEWING_SCRIPTS, "push_to_hub.py"])
def test_viewing_scripts(script):
    """Scripts that only view an agent load the off-policy algorithms of a literal list with a tiny buffer."""
    text = source(script)
    assert "off_policy_algos = ['qrdqn', 'dqn', 'ddpg', 'sac', 'her', 'td3', 'tqc']" in text
    assert "if algo in off_policy_algos:\n        kwargs.update(dict(buffer_size=1))" in text


@pytest.mark.parametrize(
    ("script", "custom_objects"),
    [(script, "'lr_schedule': lambda _: 0.0") for script in VIEWING_SCRIPTS]
    + [("push_to_hub.py", "custom_objects: dict[str, Any] = {}")],
)
def test_viewing_scripts_can_be_recognised(script, custom_objects):
    """They pass custom objects, by which algorithms of plugins recognise them, and training on passes none."""
    assert custom_objects in source(script)
    assert "custom_objects=custom_objects" in source(script)
    assert "custom_objects" not in source("exp_manager.py")


@pytest.mark.parametrize("script", [*VIEWING_SCRIPTS, "push_to_hub.py"])
def test_viewing_scripts_make_the_environment_first(script):
    """They make an environment, load one agent for it, and, but for push_to_hub.py, ask it for actions without masks."""
    text = source(script)
    assert text.count("env = create_test_env(") == text.count("model = ALGOS[algo].load(") == 1
    assert text.index("env = create_test_env(") < text.index("model = ALGOS[algo].load(")
    if script in VIEWING_SCRIPTS:
        assert "model.predict(obs, state=lstm_states, episode_start=" in text
    assert "create_test_env" not in source("exp_manager.py") + source("train.py")


def test_the_zoo_evaluates_with_sb3():
    """Both of its evaluations are SB3's EvalCallback, which our algorithms find among the callbacks of learn()."""
    assert issubclass(exp_manager.TrialEvalCallback, EvalCallback)
    assert "eval_callback = EvalCallback(" in method("create_callbacks")
    assert "eval_callback = TrialEvalCallback(" in method("objective")


def test_enjoy_looks_for_her_by_text():
    """enjoy.py passes the environment, without which HER can't be loaded, if it finds a text."""
    assert "if 'HerReplayBuffer' in hyperparams.get('replay_buffer_class', ''):\n        kwargs['env'] = env" in source(
        "enjoy.py"
    )
    assert "ALGOS[algo].load(model_path, env=env," in source("record_video.py")


@pytest.mark.parametrize("script", VIEWING_SCRIPTS)
def test_env_kwargs_are_read_from_args(script):
    """The viewing scripts read env_kwargs from args.yml, where we save those of the YAML file."""
    assert "if loaded_args['env_kwargs'] is not None:" in source(script)
    assert ("env_kwargs.update(hyperparams['env_kwargs'])" in source(script)) == (script == "enjoy.py")
    assert "vars(self.args)[key]" in method("_save_config")


def test_vec_env_flag_is_closed():
    """--vec-env offers two words; another VecEnv can only come from YAML."""
    assert f"choices={list(zoo.WORDS['vec_envs'])}" in source("train.py")


def test_train_asks_the_module_for_its_manager():
    """train.py takes the class from the module when it runs, after we have replaced it."""
    assert "from rl_zoo3.exp_manager import ExperimentManager" in source("train.py")
    assert "exp_manager = ExperimentManager(args, args.algo, env_id, args.log_folder," in source("train.py")


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("objective", "kwargs = self._hyperparams.copy()"),
        ("objective", "'using_her_replay_buffer': kwargs.get('replay_buffer_class') == HerReplayBuffer"),
        ("objective", "'her_kwargs': kwargs.get('replay_buffer_kwargs', {})"),
        ("objective", "HYPERPARAMS_SAMPLER[self.algo](trial, self.n_actions, n_envs, additional_args)"),
        ("objective", "except (AssertionError, ValueError) as e:"),
        ("objective", "callbacks = get_callback_list({'callback': self.specified_callbacks})"),
        ("read_hyperparameters", "if self.storage and self.study_name and self.trial_id:"),
        ("read_hyperparameters", "hyperparams.update(self.custom_hyperparams)"),
        ("read_hyperparameters", "self.load_trial(self.storage, self.study_name, self.trial_id)"),
        ("objective", "kwargs.update(sampled_hyperparams)"),
        ("objective", "eval_callback = TrialEvalCallback(eval_env, trial, "),
        ("objective", "model.learn(self.n_timesteps, callback=callbacks"),
        ("hyperparameters_optimization", "study.optimize(self.objective"),
        (
            "hyperparameters_optimization",
            "optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))",
        ),
        ("_preprocess_hyperparams", "if self.n_timesteps > 0:"),
        ("_preprocess_normalization", "self.normalize_kwargs['gamma'] = hyperparams['gamma']"),
        ("_preprocess_action_noise", "if hyperparams.get('noise_type') is not None:"),
        ("_preprocess_hyperparams", "{'policy_kwargs', 'replay_buffer_class', 'replay_buffer_kwargs'}"),
        ("_preprocess_hyperparams", "hyperparams[kwargs_key] = eval(hyperparams[kwargs_key])"),
        ("_preprocess_hyperparams", "'policy' in hyperparams and '.' in hyperparams['policy']"),
        ("_preprocess_hyperparams", "callbacks = get_callback_list(hyperparams)"),
        ("_preprocess_hyperparams", "self.specified_callbacks = hyperparams['callback']"),
        ("create_callbacks", "self.callbacks.append(ProgressBarCallback())"),
        ("learn", "self.callbacks[0].on_training_end()"),
        ("learn", "except KeyboardInterrupt:"),
        ("create_envs", "self.eval_env_kwargs if eval_env else self.env_kwargs"),
        ("create_envs", "vec_env_cls=self.vec_env_class, vec_env_kwargs=self.vec_env_kwargs"),
        ("hyperparameters_optimization", "trial = study.best_trial"),
        ("hyperparameters_optimization", "study.trials_dataframe().to_csv"),
    ],
)
def test_facts_about_the_manager(name, fact):
    """What our manager works around, or builds on, is still so."""
    assert fact in method(name)


def test_her_parameters_of_a_trial():
    """Upstream samples HER's parameters on request, under the names that we look for, and leaves them at top level."""
    study = optuna.create_study()
    arguments = {"using_her_replay_buffer": True, "her_kwargs": {"a": 1}}
    trial = study.ask()
    sampled = inspect.unwrap(hyperparams_opt.HYPERPARAMS_SAMPLER["sac"])(trial, 1, 1, arguments)
    assert set(sampled["replay_buffer_kwargs"]) == {"a", *HER_PARAMS}
    converted = hyperparams_opt.HYPERPARAMS_CONVERTER["sac"](trial.params)
    assert set(HER_PARAMS) <= set(converted)
    assert "replay_buffer_kwargs" not in converted
    with pytest.raises(ValueError, match="No trials are completed"):
        study.best_trial  # noqa: B018


@pytest.mark.parametrize("algo", ["sac", "dqn"])
def test_updates_of_a_trial(algo):
    """Upstream's own samplers and converters give a number of updates per rollout that n_envs does not change."""
    sampler = inspect.unwrap(hyperparams_opt.HYPERPARAMS_SAMPLER[algo])
    converter = inspect.unwrap(hyperparams_opt.HYPERPARAMS_CONVERTER[algo])
    assert sampler.__module__ == converter.__module__ == "rl_zoo3.hyperparams_opt"
    trial = optuna.create_study().ask()
    sampled = sampler(trial, 1, 4, {"using_her_replay_buffer": False, "her_kwargs": {}})
    expected = max(trial.params["train_freq"] // trial.params.get("subsample_steps", 1), 1)
    assert sampled["gradient_steps"] == converter(trial.params)["gradient_steps"] == expected


@pytest.mark.parametrize("own", ["tests.managers.KnobEnv", {"tests.managers.KnobEnv": {"length": 3}}])
def test_callbacks_by_name(own):
    """A callback is named in a list, with or without keyword arguments, and made anew each time."""
    first, second = (utils.get_callback_list({"callback": [own]})[0] for _ in range(2))
    assert first.length == (3 if isinstance(own, dict) else 5)
    assert first is not second


# Words and keys


def test_words():
    """Our words are those that the zoo understands, no more and no fewer, and mean the same classes."""
    assert zoo.words("vec_envs") == {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
    for word, cls in zoo.words("vec_envs").items():
        assert make_manager(UpstreamManager, vec_env_type=word).vec_env_class is cls
    buffers = {
        name: value
        for name, value in vars(exp_manager).items()
        if isinstance(value, type) and issubclass(value, ReplayBuffer | RolloutBuffer)
    }
    assert zoo.words("buffers") == buffers
    assert {group: zoo.reserved_names(group) for group in ("vec_envs", "buffers")} == {
        "vec_envs": ("dummy", "subproc"),
        "buffers": ("HerReplayBuffer",),
    }


@pytest.mark.parametrize("key", ZOO_KEYS)
def test_zoo_keys(key):
    """Each key that we take for the zoo's is read by it, and none of ours is."""
    texts = source("exp_manager.py") + source("utils.py")
    assert f"'{key}'" in texts
    assert [own for own in OWN_KEYS if f"'{own}'" in texts] == []


@pytest.mark.parametrize("algo", [name for name in utils.ALGOS if name not in zoo.SPECS])
def test_no_block_of_the_zoo_is_refused(algo):
    """Every block of the zoo's own YAML files passes all checks."""
    blocks = yaml.safe_load((FOLDER / "hyperparams" / f"{algo}.yml").read_text())
    assert len(blocks) > 1
    for env_id, values in blocks.items():
        if (algo, env_id) != ("ppo_lstm", "default"):  # see the next test
            assert "policy" in check_block(algo, values)


def test_block_that_the_zoo_can_not_run():
    """The one block that is refused names a policy that its algorithm does not have, upstream either."""
    block = Block(yaml.safe_load((FOLDER / "hyperparams" / "ppo_lstm.yml").read_text())["default"], "ppo_lstm.yml")
    with pytest.raises(PluginError, match="RecurrentPPO has no policy 'MlpPolicy', did you mean 'MlpLstmPolicy'"):
        choices.choose_policy(block, RecurrentPPO, {})
    with pytest.raises(ValueError, match="Policy MlpPolicy unknown"):
        RecurrentPPO(block.values["policy"], "CartPole-v1")


def test_files_of_the_zoo():
    """There is one YAML file for each algorithm, and her.yml, which the zoo itself no longer reads."""
    names = {file.stem for file in FOLDER.glob("hyperparams/*.yml")}
    assert names - set(utils.ALGOS) == {"her"}
    assert set(zoo._upstream_algos()) <= names
    assert "this file is no longer used" in (FOLDER / "hyperparams" / "her.yml").read_text()


# What we put in place


def test_extending_twice_changes_nothing(monkeypatch):
    """Extending a module again leaves every function, class and table as it is."""
    monkeypatch.setattr(zoo, "_given_up", None)  # whatever happens here, the other tests are none the wiser

    def snapshot():
        tables = (utils.ALGOS, exp_manager.HYPERPARAMS_SAMPLER, exp_manager.HYPERPARAMS_CONVERTER, zoo.SPECS)
        return [dict(table) for table in tables], utils.get_saved_hyperparams, exp_manager.ExperimentManager

    before = snapshot()
    zoo.extend(utils)
    zoo.extend(exp_manager)
    assert snapshot() == before
    assert exp_manager.ExperimentManager is PluginExperimentManager


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (HerReplayBuffer, "stable_baselines3.her.her_replay_buffer.HerReplayBuffer"),
        ("HerReplayBuffer", "HerReplayBuffer"),
        (Memory, f"{__name__}.Memory (HerReplayBuffer)"),
        (f"{__name__}.Memory", f"{__name__}.Memory (HerReplayBuffer)"),
        (f"{__name__}:Memory", f"{__name__}:Memory (HerReplayBuffer)"),
        (ReplayBuffer, "stable_baselines3.common.buffers.ReplayBuffer"),
        (None, None),
    ],
)
def test_saved_replay_buffer_class(tmp_path, value, text):
    """enjoy.py finds a text that names HerReplayBuffer if, and only if, the class is one; the file stays as it is."""
    file = tmp_path / "config.yml"
    file.write_text(yaml.dump({"replay_buffer_class": value, "gamma": 0.9}))
    before = file.read_text()
    hyperparams, stats_path = rl_zoo3.get_saved_hyperparams(str(tmp_path), norm_reward=True, test_mode=True)
    assert hyperparams == {"replay_buffer_class": text, "gamma": 0.9, "normalize": False}
    assert stats_path == str(tmp_path)
    assert file.read_text() == before


def test_saved_hyperparams_without_replay_buffer(tmp_path):
    """A folder without a replay buffer class, or no folder, is read as upstream reads it."""
    (tmp_path / "config.yml").write_text(yaml.dump({"gamma": 0.9}))
    assert rl_zoo3.get_saved_hyperparams(str(tmp_path)) == ({"gamma": 0.9, "normalize": False}, str(tmp_path))
    assert rl_zoo3.get_saved_hyperparams(str(tmp_path / "no")) == ({}, None)


@pytest.fixture(params=[(LargeDQN, "CartPole-v1"), (LargeSAC, "Pendulum-v1")], ids=["dqn", "sac"])
def load(request, tmp_path):
    """Save a model of an off-policy plugin; return a function that loads it and tells the size of its buffer."""
    cls, env = request.param
    viewed = zoo._with_small_buffer_for_viewing(cls)
    assert (viewed.__module__, viewed.__qualname__, viewed.__name__) == (__name__, cls.__name__, cls.__name__)
    assert issubclass(viewed, cls)
    viewed("MlpPolicy", env, buffer_size=50, device="cpu").save(tmp_path / "model")

    def load_model(**kwargs):
        model = viewed.load(tmp_path / "model", env=gym.make(env), device="cpu", **kwargs)
        assert isinstance(model, viewed)
        assert model.replay_buffer.buffer_size == model.buffer_size
        return model.buffer_size

    return load_model


def test_small_buffer_for_viewing(load):
    """An off-policy plugin is viewed with a buffer of one transition, and trained on with its own."""
    schedule = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0}
    assert load(custom_objects=schedule) == 1
    assert load(custom_objects=schedule, buffer_size=7) == 7
    assert load(custom_objects={"learning_rate": 0.0}) == 50
    assert load() == 50


def test_small_buffer_for_the_hub(load):
    """push_to_hub.py, whose custom objects are empty, loads an off-policy plugin with a buffer of one transition too."""
    assert load(custom_objects={}) == 1


def test_on_policy_needs_no_small_buffer():
    """An on-policy algorithm is offered as it is."""
    assert zoo._with_small_buffer_for_viewing(PPO) is PPO
    assert utils.ALGOS["ppo_lstm_seq"] is registry.import_object("zoo_plugins.algos:SeqRecurrentPPO")
