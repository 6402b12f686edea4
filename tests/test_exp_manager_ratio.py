"""The experiment manager: how many updates off-policy algorithms make, for any number of environments."""

import json
import zipfile
from pathlib import Path

import numpy as np
import optuna
import pytest
import yaml
from rl_zoo3 import exp_manager, hyperparams_opt
from rl_zoo3.utils import ALGOS, get_saved_hyperparams
from stable_baselines3.common.callbacks import BaseCallback, ProgressBarCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from tests.managers import DQN, HER, PPO, SAC, make_manager
from zoo_plugins import PluginError, UpdateRatioCallback, choices

STUDY = "the study"
OFF_POLICY = {"sac": SAC, "tqc": SAC, "td3": SAC, "ddpg": SAC, "crossq": SAC, "dqn": DQN, "qrdqn": DQN}
# Trains from the first rollout on
TINY = {**DQN, "n_timesteps": 24, "learning_starts": 0, "batch_size": 2, "train_freq": 1, "policy_kwargs": {"net_arch": [4]}}
TINY_HER = {**TINY, "policy": "MultiInputPolicy", "replay_buffer_class": "HerReplayBuffer"}


class OwnCallback(BaseCallback):
    """Callback of a user."""

    def __init__(self, number=0):
        super().__init__()
        self.number = number

    def _on_step(self):
        return True


OWN_CALLBACK = f"{__name__}.OwnCallback"


def train(folder, more, algo="dqn", env="Knob-v0", base=TINY, **kwargs):
    """Train as train.py does; return the manager and the model."""
    manager = make_manager(folder, algo, env, {**base, **more}, **kwargs)
    model, _ = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)
    return manager, model


def path_of(manager):
    return Path(manager.save_path, f"{manager.env_name}.zip")


def saved_in_zip(manager):
    with zipfile.ZipFile(path_of(manager)) as archive:
        return json.loads(archive.read("data"))["gradient_steps"]


def saved_in_config(manager):
    return dict(yaml.load(Path(manager.params_path, "config.yml").read_text(), yaml.UnsafeLoader))


# --- YAML and -params


@pytest.mark.parametrize(
    ("more", "updates", "own"),
    [
        ({"gradient_steps": "n_envs"}, 24, "n_envs"),
        ({"gradient_steps": "2 * n_envs"}, 48, "2 * n_envs"),
        ({"gradient_steps": "n_envs / 3"}, 8, "n_envs / 3"),
        ({"gradient_steps": "2 * n_envs", "train_freq": [2, "step"]}, 24, "2 * n_envs"),
        ({"update_ratio": 0.5}, 12, 1),
        ({"update_ratio": "5e-1", "train_freq": 2}, 12, 1),
        ({"update_ratio": 1}, 24, 1),
    ],
)
@pytest.mark.parametrize("by_params", [False, True], ids=["yaml", "params"])
def test_updates_follow_n_envs(tmp_path, more, updates, own, by_params):
    """What YAML or -params say decides how many updates are made of 24 transitions, with 1 and with 4 environments."""
    for n_envs in (1, 4):
        given = {"hyperparams": more} if by_params else {}
        block = {"n_envs": n_envs} if by_params else {"n_envs": n_envs, **more}
        manager, model = train(tmp_path, block, **given)
        assert model.num_timesteps == 24
        assert model._n_updates == updates
        assert model.gradient_steps == own == saved_in_zip(manager)
        assert more.items() <= saved_in_config(manager).items()


@pytest.mark.parametrize("algo", list(OFF_POLICY))
def test_every_algorithm(tmp_path, algo):
    """All off-policy algorithms of the zoo understand both keys."""
    env = "CartPole-v1" if algo in ("dqn", "qrdqn") else "Pendulum-v1"
    block = {**TINY, "n_envs": 3}
    _, model = train(tmp_path, {"gradient_steps": "n_envs"}, algo, env, block)
    assert (model._n_updates, model.gradient_steps) == (24, "n_envs")
    _, model = train(tmp_path, {"update_ratio": 0.25}, algo, env, block)
    assert model._n_updates == 6


@pytest.mark.parametrize("more", [{}, {"gradient_steps": 2}, {"gradient_steps": -1}, {"gradient_steps": None}])
def test_numbers_are_upstreams(tmp_path, more):
    """A run with plain numbers has no callback of ours."""
    manager, model = train(tmp_path, {**more, "n_envs": 4})
    assert manager.callbacks == manager.specified_callbacks == []
    assert model._n_updates == {-1: 24, 2: 12}.get(more.get("gradient_steps"), 6)


# --- what is refused

FORMS = "expected a whole number from 0 on, -1, n_envs, K * n_envs or n_envs / K, with a whole number K from 1 on"
FREQUENCIES = "expected a whole number of steps, at least 1, or [<number>, step] or [<number>, episode]"
EPISODES = "episodes need n_envs: 1, because those of several environments end at different times, not 2; use steps"
WRONG = [
    ({"gradient_steps": "n_env"}, "gradient_steps", FORMS),
    ({"gradient_steps": "2 * n_envs + 1"}, "gradient_steps", FORMS),
    ({"gradient_steps": 1.5}, "gradient_steps", FORMS),
    ({"gradient_steps": -2}, "gradient_steps", FORMS),
    ({"gradient_steps": [1]}, "gradient_steps", FORMS),
    ({"update_ratio": 0}, "update_ratio", "expected a number above 0: updates per collected transition"),
    ({"update_ratio": "n_envs"}, "update_ratio", "expected a number above 0: updates per collected transition"),
    ({"gradient_steps": "n_envs", "update_ratio": 2}, "update_ratio", "gradient_steps is there too, and only one of them"),
    ({"update_ratios": 2}, "update_ratios", "unknown hyperparameter, did you mean 'update_ratio'?"),
    ({"train_freq": [1, "episode"]}, "train_freq", EPISODES),
    ({"train_freq": (2, "episode")}, "train_freq", EPISODES),
    ({"train_freq": [1, "epoch"]}, "train_freq", FREQUENCIES),
    ({"train_freq": [1, ["step"]]}, "train_freq", FREQUENCIES),
    ({"train_freq": "(1, 'episode')"}, "train_freq", FREQUENCIES),
    ({"train_freq": 0}, "train_freq", FREQUENCIES),
    ({"train_freq": [1.5, "step"]}, "train_freq", FREQUENCIES),
]


@pytest.fixture
def made(monkeypatch):
    """Collect the environments that are asked for, instead of making them."""
    calls = []
    monkeypatch.setattr(exp_manager, "make_vec_env", lambda *args, **kwargs: calls.append((args, kwargs)))
    return calls


@pytest.mark.parametrize("by_params", [False, True], ids=["yaml", "params"])
@pytest.mark.parametrize(("more", "key", "text"), WRONG, ids=[str(more) for more, _, _ in WRONG])
def test_mistakes(tmp_path, made, more, key, text, by_params):
    """A mistake is told in one line with its key, value, source and what would be valid, before anything is made."""
    config = tmp_path / "conf.py"  # which can hold tuples
    block = {**TINY, "n_envs": 2} if by_params else {**TINY, "n_envs": 2, **more}
    config.write_text(f"hyperparams = {{'Knob-v0': {block!r}}}\n")
    manager = make_manager(tmp_path, "dqn", "Knob-v0", config=str(config), hyperparams=more if by_params else None)
    with pytest.raises(PluginError) as error:
        manager.setup_experiment()
    message = str(error.value)
    assert message.startswith(f"{key}: {more[key]!r} in {'-params' if by_params else config}: ")
    assert text in message
    assert "\n" not in message
    assert made == []
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("more", [{"update_ratio": 0.5}, {"gradient_steps": "n_envs"}])
def test_on_policy_algorithms_know_neither(tmp_path, made, more):
    """To an on-policy algorithm, both are unknown keys."""
    (key,) = more
    with pytest.raises(PluginError, match=f"^{key}: .*unknown hyperparameter") as error:
        make_manager(tmp_path, "ppo", "Knob-v0", {**PPO, **more}).setup_experiment()
    assert "update_ratio" not in str(error.value).partition("Valid: ")[2]


@pytest.mark.parametrize(
    "train_freq", [(1, "episode"), TrainFreq(1, TrainFrequencyUnit.EPISODE), (1, TrainFrequencyUnit.EPISODE)]
)
def test_train_freq_in_episodes(tmp_path, train_freq):
    """Rollouts of episodes are fine with one environment, in every form that SB3 takes."""
    _, model = train(tmp_path, {"update_ratio": 0.4}, hyperparams={"train_freq": train_freq})
    assert model._n_updates == 10  # of 5 episodes of 5 steps


# --- precedence


@pytest.mark.parametrize(
    ("block", "command_line", "overruled"),
    [
        ({}, {}, ""),
        ({"gradient_steps": 1}, {}, "update_ratio"),
        ({"update_ratio": 1}, {}, "gradient_steps"),
        ({"update_ratio": 1}, {"gradient_steps": 2}, "update_ratio"),
        ({"gradient_steps": 1}, {"update_ratio": 2}, "gradient_steps"),
        ({"gradient_steps": 1, "update_ratio": 1}, {}, ""),
        ({"gradient_steps": 1, "update_ratio": 1}, {"update_ratio": 2}, "gradient_steps"),
        ({}, {"gradient_steps": 1, "update_ratio": 1}, ""),
        ({"update_ratio": 1}, {"update_ratio": None}, ""),
        ({"update_ratio": 1}, {"update_ratio": None, "gradient_steps": 3}, "update_ratio"),
    ],
)
def test_overruled_key(block, command_line, overruled):
    """The command line wins over the file; two rules in one place are left there, to be refused."""
    assert choices.overruled_key(block, command_line) == overruled


@pytest.mark.parametrize(
    ("in_yaml", "in_params", "updates"),
    [
        ({"update_ratio": 0.5}, {"gradient_steps": "2 * n_envs"}, 48),
        ({"update_ratio": 0.5}, {"gradient_steps": 3}, 18),
        ({"gradient_steps": "2 * n_envs"}, {"update_ratio": 0.5}, 12),
        ({"gradient_steps": 3}, {"update_ratio": 0.5}, 12),
    ],
)
def test_command_line_wins(tmp_path, in_yaml, in_params, updates):
    """A rule on the command line replaces that of the file, also in config.yml, which can be used again."""
    manager, model = train(tmp_path, {**in_yaml, "n_envs": 4}, hyperparams=in_params)
    assert model._n_updates == updates
    config = saved_in_config(manager)
    assert {key: config[key] for key in choices.UPDATE_RULES if key in config} == in_params


# --- callbacks


@pytest.mark.parametrize(
    ("own", "numbers"),
    [
        (None, []),
        (OWN_CALLBACK, [0]),
        ({OWN_CALLBACK: {"number": 3}}, [3]),
        ([OWN_CALLBACK, {OWN_CALLBACK: {"number": 3}}], [0, 3]),
    ],
)
def test_callbacks_of_the_user(tmp_path, own, numbers):
    """The user's own callbacks stay, in training and in config.yml, in every form that the zoo takes."""
    manager, model = train(tmp_path, {"callback": own, "gradient_steps": "n_envs", "n_envs": 2})
    ours, *others = manager.callbacks
    assert type(ours) is UpdateRatioCallback
    assert [callback.number for callback in others] == numbers
    assert saved_in_config(manager)["callback"] == own
    assert model._n_updates == 24


def test_callback_that_the_user_names(tmp_path):
    """An UpdateRatioCallback among the user's own callbacks has the last word."""
    own = {"zoo_plugins.callbacks.UpdateRatioCallback": {"update_ratio": 0.5}}
    _, model = train(tmp_path, {"callback": own, "gradient_steps": "n_envs", "n_envs": 2})
    assert (model._n_updates, model.gradient_steps) == (12, "n_envs")


def test_progress_bar_is_the_first_callback(tmp_path):
    """The zoo closes the progress bar of an interrupted training by ending the first callback."""
    manager = make_manager(tmp_path, "dqn", "Knob-v0", {**TINY, "gradient_steps": "n_envs"}, show_progress=True)
    manager.setup_experiment()
    assert [type(callback) for callback in manager.callbacks] == [ProgressBarCallback, UpdateRatioCallback]


def test_interrupted_training_is_saved_with_the_own_value(tmp_path, monkeypatch):
    """The model that the zoo saves after Ctrl-C in the middle of an update has the user's own value."""

    def interrupt(self, gradient_steps, batch_size):
        raise KeyboardInterrupt

    monkeypatch.setattr(ALGOS["dqn"], "train", interrupt)
    manager, _ = train(tmp_path, {"gradient_steps": "2 * n_envs", "n_envs": 3})
    data, _, _ = load_from_zip_file(path_of(manager), device="cpu")
    assert data["num_timesteps"] == 3
    assert data["gradient_steps"] == "2 * n_envs"
    assert "_replaced_gradient_steps" not in data


# --- HER


@pytest.mark.parametrize("name", ["HerReplayBuffer", "tests.managers.GoalMemory"])
def test_updates_of_her_wait(tmp_path, name):
    """With HER, a learning_starts that is too small for the first episodes delays updates, where SB3 would fail."""
    block = {
        **TINY_HER,
        "replay_buffer_class": name,
        "n_envs": 4,
        "learning_starts": 2,
        "env_kwargs": {"n_bits": 8, "max_steps": 3},
    }
    manager = make_manager(tmp_path, "dqn", "BitFlip-v0", block)
    model, _ = manager.setup_experiment()
    trained = []
    model.train = lambda gradient_steps, batch_size: trained.append((model.num_timesteps, gradient_steps))
    with pytest.warns(UserWarning, match="no episode has ended in 4 transitions"):
        manager.learn(model)
    assert trained == [(12, 1), (16, 1), (20, 1), (24, 1)]
    assert [type(callback) for callback in manager.callbacks] == [UpdateRatioCallback]


# --- resume and enjoy


@pytest.mark.parametrize(
    ("first", "then", "updates"),
    [
        ({"gradient_steps": "2 * n_envs"}, {"gradient_steps": "2 * n_envs"}, 48),
        ({"gradient_steps": "2 * n_envs"}, {}, 48),  # the saved agent's own
        ({"update_ratio": 0.5}, {"update_ratio": 0.5}, 12),
        ({"gradient_steps": "n_envs"}, {"gradient_steps": 3}, 36),
        ({"gradient_steps": "n_envs"}, {"update_ratio": 0.25}, 6),
        ({"gradient_steps": 3}, {}, 36),
    ],
)
def test_resume_with_other_environments(tmp_path, first, then, updates):
    """-i goes on with another number of environments, by the rule of the file or, without one, of the agent."""
    manager, model = train(tmp_path, {**first, "n_envs": 4})
    before = model._n_updates
    resumed, model = train(tmp_path, then, trained_agent=str(path_of(manager)), hyperparams={"n_envs": 2})
    assert (model.n_envs, model.num_timesteps) == (2, 24)
    assert model._n_updates - before == updates
    expected = then.get("gradient_steps", first.get("gradient_steps", 1))
    assert model.gradient_steps == expected == saved_in_zip(resumed)


def test_resume_with_noise(tmp_path):
    """-i makes the noise of the saved agent fit the environments."""
    block = {**TINY, "n_envs": 4}
    noise = {"noise_type": "normal", "noise_std": 0.5}
    manager, _ = train(tmp_path, noise, "td3", "Pendulum-v1", block)
    _, model = train(tmp_path, {"n_envs": 2}, "td3", "Pendulum-v1", block, trained_agent=str(path_of(manager)))
    assert model.action_noise.n_envs == 2


def test_agent_is_viewed(tmp_path):
    """enjoy loads an agent whose file has a text, and asks it for actions."""
    manager, _ = train(tmp_path, {"gradient_steps": "n_envs", "n_envs": 2})
    hyperparams, _ = get_saved_hyperparams(manager.params_path)
    assert hyperparams["gradient_steps"] == "n_envs"
    objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    model = ALGOS["dqn"].load(path_of(manager), custom_objects=objects, device="cpu", buffer_size=1)
    assert model.predict(np.zeros(2, np.float32), deterministic=True)[0] in (0, 1)
    assert model.gradient_steps == "n_envs"


# --- Optuna


@pytest.mark.parametrize("algo", sorted(set(hyperparams_opt.HYPERPARAMS_SAMPLER)))
def test_samplers_and_converters_agree(algo):
    """Trials of off-policy algorithms have the zoo's updates times n_envs, sampled and loaded; others are left alone."""
    is_off_policy = issubclass(ALGOS[algo], OffPolicyAlgorithm)
    sampler, converter = hyperparams_opt.HYPERPARAMS_SAMPLER[algo], hyperparams_opt.HYPERPARAMS_CONVERTER[algo]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(5):
        trial = study.ask()
        sampled = sampler(trial, 1, 4, {"using_her_replay_buffer": False, "her_kwargs": {}})
        converted = converter(trial.params)
        assert ("gradient_steps" in sampled) == is_off_policy
        if is_off_policy:
            k = max(trial.params["train_freq"] // trial.params.get("subsample_steps", 1), 1)
            assert sampled["gradient_steps"] == converted["gradient_steps"] == f"{k} * n_envs"
            assert sampled["train_freq"] == converted["train_freq"] == trial.params["train_freq"]


@pytest.fixture
def learned(monkeypatch):
    """Collect (model, callbacks, updates) of every DQN that learns."""
    calls = []
    cls = ALGOS["dqn"]
    learn = cls.learn

    def spy(self, total_timesteps, callback=None, **kwargs):
        result = learn(self, total_timesteps, callback=callback, **kwargs)
        calls.append((self, callback, self._n_updates))
        return result

    monkeypatch.setattr(cls, "learn", spy)
    return calls


def optimize(folder, more, base=TINY, env="Knob-v0", n_trials=2, **kwargs):
    """Run a search, and return its storage and its trials."""
    storage = f"sqlite:///{folder / 'study.db'}"
    search = dict(optimize_hyperparameters=True, storage=storage, study_name=STUDY, n_trials=n_trials)
    search |= dict(sampler="random", pruner="none", **kwargs)
    manager = make_manager(folder, "dqn", env, {**base, **more}, **search)
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    return storage, optuna.load_study(study_name=STUDY, storage=storage).trials


def due(train_freq, k, n_envs=4, total=24):
    """Count updates: ``k * n_envs`` after each rollout."""
    return -(-total // (train_freq * n_envs)) * k * n_envs


@pytest.mark.parametrize("more", [{}, {"gradient_steps": 7}])
def test_trials_follow_n_envs(tmp_path, learned, more):
    """Each trial makes the updates of its own ratio for all environments, by a callback of its own; --trial-id does too."""
    storage, trials = optimize(tmp_path, {**more, "n_envs": 4})
    assert len({id(callbacks[0]) for _, callbacks, _ in learned}) == len(trials) == 2
    for trial, (model, callbacks, n_updates) in zip(trials, list(learned), strict=True):
        k = max(trial.params["train_freq"] // trial.params["subsample_steps"], 1)
        assert model.gradient_steps == f"{k} * n_envs"
        assert type(callbacks[0]) is UpdateRatioCallback
        # A trial does not learn from its last rollout
        whole = due(trial.params["train_freq"], k)
        assert n_updates == whole - 4 * k

        flags = dict(storage=storage, study_name=STUDY, trial_id=trial.number)
        manager, again = train(tmp_path, {**more, "n_envs": 4}, **flags)
        assert again.gradient_steps == saved_in_config(manager)["gradient_steps"] == f"{k} * n_envs"
        assert again._n_updates == whole


def test_trials_with_an_update_ratio(tmp_path, learned):
    """The user's update_ratio wins over the ratio of trials, whose train_freq stays; --trial-id does the same."""
    more = {"update_ratio": 0.5, "n_envs": 4, "callback": OWN_CALLBACK}
    storage, trials = optimize(tmp_path, more)
    for trial, (model, callbacks, n_updates) in zip(trials, list(learned), strict=True):
        assert model.train_freq.frequency == trial.params["train_freq"]
        last_rollout = 4 * trial.params["train_freq"]
        assert n_updates == (24 - last_rollout) // 2
        assert [type(callback).__name__ for callback in callbacks[:2]] == ["UpdateRatioCallback", "OwnCallback"]

        flags = dict(storage=storage, study_name=STUDY, trial_id=trial.number)
        manager, again = train(tmp_path, more, **flags)
        assert (again._n_updates, again.train_freq) == (24 // 2, model.train_freq)
        config = saved_in_config(manager)
        assert config["update_ratio"] == 0.5
        assert "gradient_steps" not in config

        _, again = train(tmp_path, more, **flags, hyperparams={"gradient_steps": 1})
        assert again._n_updates == due(trial.params["train_freq"], 1, n_envs=4) // 4


def test_trials_with_her(tmp_path, learned):
    """Trials with HER wait for their first episode too, and HER's parameters are sampled and loaded back."""
    more = {"replay_buffer_class": "tests.managers.GoalMemory", "n_envs": 2, "n_timesteps": 60}
    more["env_kwargs"] = {"n_bits": 8, "max_steps": 13}
    with pytest.warns(UserWarning, match="no episode has ended"):
        storage, (trial,) = optimize(tmp_path, more, {**HER, **TINY_HER}, "BitFlip-v0", n_trials=1)
    assert trial.state is optuna.trial.TrialState.COMPLETE
    assert {"n_sampled_goal", "goal_selection_strategy"} <= set(trial.params)
    flags = dict(storage=storage, study_name=STUDY, trial_id=0)
    model, _ = make_manager(tmp_path, "dqn", "BitFlip-v0", {**TINY_HER, **more}, **flags).setup_experiment()
    assert model.replay_buffer.n_sampled_goal == trial.params["n_sampled_goal"]
    assert model.gradient_steps == learned[0][0].gradient_steps
