"""Hyperparameter search: trials that share nothing, HER parameters of subclasses, pruning, closing, and --trial-id."""

import functools

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from rl_zoo3 import exp_manager
from stable_baselines3 import DQN as DQNAlgorithm
from stable_baselines3 import HerReplayBuffer

from tests.managers import DQN, HER, LSTM, PPO, GoalMemory, KnobEnv, make_manager
from zoo_plugins import FastHerReplayBuffer, PluginError

STUDY = "the study"
MEMORY = {**HER, "replay_buffer_class": "tests.managers.GoalMemory"}
BUFFERS = {
    "tests.managers.GoalMemory": GoalMemory,
    "HerReplayBuffer": HerReplayBuffer,
    "FastHerReplayBuffer": FastHerReplayBuffer,
}


@pytest.fixture(autouse=True)
def _no_environments():
    KnobEnv.forget()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Address of a storage of studies."""
    return f"sqlite:///{tmp_path_factory.mktemp('optuna') / 'studies.db'}"


@pytest.fixture
def storage(database):
    """Address of a storage without studies, to which the test adds one."""
    yield database
    optuna.delete_study(study_name=STUDY, storage=database)


@pytest.fixture
def constructed(monkeypatch):
    """Collect the keyword arguments of every DQN that is constructed."""
    calls = []
    original = DQNAlgorithm.__init__

    @functools.wraps(original)
    def spy(self, *args, **kwargs):
        calls.append(kwargs)
        original(self, *args, **kwargs)

    monkeypatch.setattr(DQNAlgorithm, "__init__", spy)
    return calls


def tuner(folder, storage, algo="dqn", env="Knob-v0", block=DQN, n_trials=2, **kwargs):
    """Set a search up."""
    arguments = dict(optimize_hyperparameters=True, storage=storage, study_name=STUDY, n_trials=n_trials)
    manager = make_manager(folder, algo, env, block, **{"sampler": "random", "pruner": "none", **arguments, **kwargs})
    assert manager.setup_experiment() is None
    return manager


def optimize(*args, **kwargs):
    """Run a search; return its study."""
    tuner(*args, **kwargs).hyperparameters_optimization()
    return load(args[1])


def load(storage):
    return optuna.load_study(study_name=STUDY, storage=storage)


def states(storage):
    return [trial.state for trial in load(storage).trials]


def sample_with(monkeypatch, algo, sample):
    """Let trials of an algorithm take their hyperparameters from ``sample(trial)``."""
    monkeypatch.setitem(exp_manager.HYPERPARAMS_SAMPLER, algo, lambda trial, n_actions, n_envs, more: sample(trial))
    monkeypatch.setitem(exp_manager.HYPERPARAMS_CONVERTER, algo, dict)


# --- trials share nothing


def test_trials_do_not_share_keyword_arguments(tmp_path, storage, constructed, monkeypatch):
    """Each trial gets its own policy_kwargs and replay_buffer_kwargs: what one changes, the next does not see."""
    block = {**MEMORY, "policy_kwargs": {"net_arch": [4]}, "replay_buffer_kwargs": {"n_sampled_goal": 2}}
    seen = []

    def sample(trial):
        if constructed:  # by the trial before
            constructed[-1]["policy_kwargs"]["net_arch"].append(99)
            constructed[-1]["replay_buffer_kwargs"]["copy_info_dict"] = True
        return {"learning_rate": trial.suggest_float("learning_rate", 0.1, 0.2)}

    sample_with(monkeypatch, "dqn", sample)
    learn = DQNAlgorithm.learn
    monkeypatch.setattr(DQNAlgorithm, "learn", lambda self, *args, **kwargs: seen.append(self) or learn(self, *args, **kwargs))
    optimize(tmp_path, storage, env="BitFlip-v0", block=block)

    assert len(constructed) == len(seen) == 2
    for key in ("policy_kwargs", "replay_buffer_kwargs"):
        assert constructed[0][key] is not constructed[1][key]
    assert constructed[0]["policy_kwargs"]["net_arch"] == [4, 99]
    assert constructed[1]["policy_kwargs"]["net_arch"] == [4]
    assert constructed[1]["replay_buffer_kwargs"] == {"n_sampled_goal": 2}


# --- HER


@pytest.mark.parametrize("name", list(BUFFERS))
def test_her_parameters_are_tuned(tmp_path, storage, constructed, name):
    """HER parameters are sampled for a subclass as for the stock class, beside the user's other arguments."""
    block = {**HER, "replay_buffer_class": name, "replay_buffer_kwargs": {"copy_info_dict": True}}
    study = optimize(tmp_path, storage, env="BitFlip-v0", block=block, n_trials=1)
    (trial,) = study.trials
    assert trial.state is TrialState.COMPLETE
    sampled = {key: trial.params[key] for key in ("n_sampled_goal", "goal_selection_strategy")}
    assert constructed[0]["replay_buffer_kwargs"] == {"copy_info_dict": True, **sampled}
    assert constructed[0]["replay_buffer_class"] is BUFFERS[name]


@pytest.mark.parametrize("kwargs", [None, "dict(copy_info_dict=True)", "dict(copy_info_dict=bool(1))"])
def test_her_parameters_in_other_notations(tmp_path, storage, constructed, kwargs):
    """HER parameters are sampled with no arguments from the user, and with those in a text of data or code."""
    block = MEMORY if kwargs is None else {**MEMORY, "replay_buffer_kwargs": kwargs}
    study = optimize(tmp_path, storage, env="BitFlip-v0", block=block, n_trials=1)
    assert {"n_sampled_goal", "goal_selection_strategy"} <= set(study.trials[0].params)
    others = {} if kwargs is None else {"copy_info_dict": True}
    assert others.items() <= constructed[0]["replay_buffer_kwargs"].items()
    assert constructed[0]["replay_buffer_kwargs"]["n_sampled_goal"] == study.trials[0].params["n_sampled_goal"]


def test_her_parameters_only_for_her(tmp_path, storage):
    """No other replay buffer is given HER parameters."""
    block = {**DQN, "replay_buffer_class": "tests.managers.TaggedReplayBuffer", "replay_buffer_kwargs": {"tag": 1}}
    study = optimize(tmp_path, storage, block=block, n_trials=1)
    assert study.trials[0].state is TrialState.COMPLETE
    assert "n_sampled_goal" not in study.trials[0].params


@pytest.mark.parametrize("kwargs", [{"copy_info_dict": True}, "dict(copy_info_dict=True)"])
@pytest.mark.parametrize("name", list(BUFFERS))
def test_her_trial_is_loaded(tmp_path, storage, name, kwargs):
    """--trial-id puts the HER parameters of the trial into replay_buffer_kwargs, beside the user's other arguments."""
    block = {**HER, "replay_buffer_class": name, "replay_buffer_kwargs": kwargs}
    (trial,) = optimize(tmp_path, storage, env="BitFlip-v0", block=block, n_trials=1).trials
    manager = make_manager(tmp_path, "dqn", "BitFlip-v0", block, storage=storage, study_name=STUDY, trial_id=0)
    model, saved = manager.setup_experiment()
    sampled = {key: trial.params[key] for key in ("n_sampled_goal", "goal_selection_strategy")}
    assert type(model.replay_buffer) is BUFFERS[name]
    assert model.replay_buffer.n_sampled_goal == sampled["n_sampled_goal"]
    assert model.replay_buffer.goal_selection_strategy.name.lower() == sampled["goal_selection_strategy"]
    assert model.replay_buffer.copy_info_dict is True
    assert saved["replay_buffer_kwargs"] == {"copy_info_dict": True, **sampled}
    assert manager.load_trial(storage, STUDY, 0)["replay_buffer_kwargs"] == {"copy_info_dict": True, **sampled}
    assert manager.load_trial(storage, STUDY, 0, convert=False) == trial.params


def test_her_trial_is_loaded_beside_code(tmp_path, storage):
    """--trial-id keeps the user's other arguments when they are code, which only upstream evaluates."""
    block = {**HER, "replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": "dict(copy_info_dict=bool(1))"}
    (trial,) = optimize(tmp_path, storage, env="BitFlip-v0", block=block, n_trials=1).trials
    manager = make_manager(tmp_path, "dqn", "BitFlip-v0", block, storage=storage, study_name=STUDY, trial_id=0)
    model, _ = manager.setup_experiment()
    assert model.replay_buffer.n_sampled_goal == trial.params["n_sampled_goal"]
    assert model.replay_buffer.copy_info_dict is True


# --- trials that fail


def fail_in_constructor(trial):
    return {"batch_size": 1}  # PPO: "`batch_size` must be greater than 1"


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_failed_constructor_leaves_nothing_open(tmp_path, storage, monkeypatch, n_jobs):
    """A constructor that refuses sampled values prunes its trial and leaves no environment open, in threads too."""
    sample_with(monkeypatch, "ppo", fail_in_constructor)
    block = {**PPO, "n_envs": 3}
    with pytest.raises(PluginError, match=r"no trial finished \(4 pruned\)"):
        optimize(tmp_path, storage, "ppo", block=block, n_trials=4, n_jobs=n_jobs)
    assert states(storage) == [TrialState.PRUNED] * 4
    assert len(KnobEnv.opened) == 1 + 4 * 3
    assert KnobEnv.still_open() == []


def test_failing_trials_close_their_own_environments(tmp_path, storage, monkeypatch):
    """A trial that fails beside another one in a second thread closes its environments, not those of the other."""
    sample_with(monkeypatch, "ppo", lambda trial: fail_in_constructor(trial) if trial.number % 2 else {"batch_size": 16})
    learn = exp_manager.ALGOS["ppo"].learn

    def learn_while_open(self, *args, **kwargs):
        result = learn(self, *args, **kwargs)
        env = self.env.get_attr("unwrapped")[0]
        assert env in KnobEnv.still_open()
        return result

    monkeypatch.setattr(exp_manager.ALGOS["ppo"], "learn", learn_while_open)
    study = optimize(tmp_path, storage, "ppo", block=PPO, n_trials=8, n_jobs=2)
    expected = {0: TrialState.COMPLETE, 1: TrialState.PRUNED}
    assert [trial.state for trial in study.trials] == [expected[number % 2] for number in range(8)]
    assert KnobEnv.still_open() == []


@pytest.mark.parametrize("kind", [FloatingPointError, AssertionError, ValueError])
def test_failed_learning_prunes(tmp_path, storage, monkeypatch, kind):
    """Errors that impossible hyperparameters cause while learning prune the trial, and the search goes on."""
    learn = DQNAlgorithm.learn
    calls = []

    def fail_once(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 1:
            raise kind("no number")
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(DQNAlgorithm, "learn", fail_once)
    study = optimize(tmp_path, storage)
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.COMPLETE]
    assert KnobEnv.still_open() == []


def test_plugin_error_stops_the_search(tmp_path, storage, monkeypatch):
    """A mistake of the user or of a plugin is none of the trial: it stops the search and is told as it is."""

    def sample(trial):
        raise PluginError("the plugin is broken")

    sample_with(monkeypatch, "dqn", sample)
    with pytest.raises(PluginError, match=r"^the plugin is broken$"):
        optimize(tmp_path, storage, n_trials=3)
    assert states(storage) == [TrialState.FAIL]
    assert KnobEnv.still_open() == []


@pytest.mark.parametrize(
    ("algo", "block", "source"), [("ppo", PPO, "observation"), ("ppo_lstm_seq", LSTM, "observation"), ("dqn", DQN, "reward")]
)
def test_environment_of_nan(tmp_path, storage, algo, block, source):
    """When NaN, in learning or evaluation, prunes every trial, one line says so, and the study is still in the storage."""
    block = {**block, "env_kwargs": {source: float("nan")}}
    with pytest.raises(PluginError) as error:
        optimize(tmp_path, storage, algo, block=block)
    assert str(error.value) == f"no trial finished (2 pruned): nothing to report; study {STUDY!r} is kept in {storage}"
    assert isinstance(error.value, SystemExit)
    assert states(storage) == [TrialState.PRUNED] * 2
    assert KnobEnv.still_open() == []


def test_search_of_our_algorithm(tmp_path, storage):
    """A search for ppo_lstm_seq writes its report, and --trial-id gives back the very hyperparameters of a trial."""
    built = []
    manager = tuner(tmp_path, storage, "ppo_lstm_seq", block=LSTM, n_trials=1)
    cls = exp_manager.ALGOS["ppo_lstm_seq"]
    original = cls.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "__init__", lambda self, *args, **kwargs: built.append(kwargs) or original(self, *args, **kwargs))
        manager.hyperparameters_optimization()
    (trial,) = load(storage).trials
    assert trial.state is TrialState.COMPLETE
    assert len(list((tmp_path / "logs" / "ppo_lstm_seq").glob("report_Knob-v0_1-trials-32-random-none_*.csv"))) == 1

    loaded = make_manager(tmp_path, "ppo_lstm_seq", block=LSTM).load_trial(storage, STUDY)
    assert {key: built[0][key] for key in loaded} == loaded


# --- --trial-id


@pytest.fixture
def two_trials(storage):
    """Storage that holds a study of DQN with two finished trials, of which the second is the best one."""
    study = optuna.create_study(study_name=STUDY, storage=storage, direction="maximize")
    distributions = {
        "one_minus_gamma": FloatDistribution(0, 1),
        "learning_rate": FloatDistribution(0, 1),
        "batch_size_pow": IntDistribution(2, 11),
        "net_arch": CategoricalDistribution(["small", "medium", "big"]),
    }
    for number in range(2):
        params = {
            "one_minus_gamma": 0.25 * (number + 1),
            "learning_rate": 0.1,
            "batch_size_pow": 4 + number,
            "net_arch": "small",
        }
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=number))
    return storage


@pytest.mark.parametrize(("trial_id", "gamma", "batch_size"), [(0, 0.75, 16), (1, 0.5, 32), (None, 0.99, 8)])
def test_trial_id(tmp_path, two_trials, trial_id, gamma, batch_size):
    """Every trial can be loaded, 0 too; without --trial-id, storage and study are ignored."""
    flags = dict(storage=two_trials, study_name=STUDY, trial_id=trial_id)
    model, saved = make_manager(tmp_path, "dqn", block={**DQN, "batch_size": 8}, **flags).setup_experiment()
    assert (model.gamma, model.batch_size) == (gamma, batch_size)
    assert saved["batch_size"] == batch_size


@pytest.mark.parametrize("trial_id", [0, 1])
def test_precedence(tmp_path, two_trials, trial_id):
    """YAML < trial < -params."""
    block = {**DQN, "batch_size": 8, "learning_rate": 0.9, "tau": 0.5, "gamma": 0.3}
    flags = dict(storage=two_trials, study_name=STUDY, trial_id=trial_id, hyperparams={"learning_rate": 0.7})
    manager = make_manager(tmp_path, "dqn", block=block, **flags)
    model, saved = manager.setup_experiment()
    assert model.tau == saved["tau"] == 0.5  # only in YAML
    assert model.batch_size == saved["batch_size"] == 16 * 2**trial_id  # YAML and trial
    assert model.lr_schedule(1.0) == saved["learning_rate"] == 0.7  # all three
