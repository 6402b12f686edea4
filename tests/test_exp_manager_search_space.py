"""Trials with a ``search_space`` in YAML: what is built, what it costs, and what --trial-id and the best block give back."""

import contextlib
import functools
import gc
import io
import math
import multiprocessing
import weakref

import optuna
import pytest
import yaml
from optuna.trial import TrialState
from rl_zoo3 import exp_manager
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from tests.managers import DQN, HER, LSTM, PPO, SAC, GoalMemory, KnobEnv, RecordingVecEnv, layers, make_manager
from zoo_plugins import FastHerReplayBuffer, PluginError
from zoo_plugins.trials import _open_storage

STUDY = "the study"
ARS = dict(policy="LinearPolicy", n_timesteps=32)


@pytest.fixture(autouse=True)
def _no_environments():
    KnobEnv.forget()


@pytest.fixture
def storage(tmp_path):
    return str(tmp_path / "study.log")


@pytest.fixture
def learned(monkeypatch):
    """Collect models, with their constructor's arguments and what they had when they began to learn."""
    found = []
    for name in set(exp_manager.ALGOS.values()):
        original = name.__init__

        @functools.wraps(original)
        def spy(self, *args, original=original, **kwargs):
            if not hasattr(self, "given"):
                self.given = {key: value for key, value in kwargs.items() if key not in ("seed", "verbose", "device")}
            original(self, *args, **kwargs)

        monkeypatch.setattr(name, "__init__", spy)
        learn = name.learn

        def note(self, *args, learn=learn, **kwargs):
            if self not in [model for model, _ in found]:
                found.append((self, {"env": self.env, "n_envs": self.n_envs}))
            return learn(self, *args, **kwargs)

        monkeypatch.setattr(name, "learn", note)
    return found


def search(folder, storage, space, algo="ppo", env="Knob-v0", block=PPO, n_trials=3, **kwargs):
    """Run a search; return its trials and what it printed."""
    arguments = dict(optimize_hyperparameters=True, storage=storage, study_name=STUDY, n_trials=n_trials)
    block = {**block, "search_space": space}
    manager = make_manager(folder, algo, env, block, **{"sampler": "random", "pruner": "none", **arguments, **kwargs})
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert manager.setup_experiment() is None
        manager.hyperparameters_optimization()
    return load(storage).trials, printed.getvalue()


def load(storage):
    return optuna.load_study(study_name=STUDY, storage=_open_storage(storage))


def of_trial(folder, storage, number, algo="ppo", env="Knob-v0", block=PPO, **kwargs):
    manager = make_manager(folder, algo, env, block, storage=storage, study_name=STUDY, trial_id=number, verbose=1, **kwargs)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        model, saved = manager.setup_experiment()
    return model, saved, printed.getvalue()


def pasted(printed, folder, **kwargs):
    """Make a model of the block that was printed, as it is pasted into a file."""
    text = printed[printed.index("# Trial ") :]
    text = text[: text.index("\n\n")]
    (folder / "pasted.yml").write_text(text)
    (env,) = yaml.safe_load(text)
    manager = make_manager(folder, env=env, config=str(folder / "pasted.yml"), **kwargs)
    return manager.setup_experiment()[0]


def comparable(model):
    given = {key: value for key, value in model.given.items() if key not in ("env", "tensorboard_log")}
    for key in ("learning_rate", "clip_range", "delta_std"):
        if callable(given.get(key)):
            given[key] = given[key](1.0)
    return given


# --- plain training


def test_plain_training_ignores_it(tmp_path, learned):
    """Training takes no notice of the block, but keeps it in config.yml."""
    space = {"learning_rate": {"low": "1e-5", "high": "1e-2", "log": True}, "n_envs": {"choices": [4]}}
    manager = make_manager(tmp_path, "ppo", "Knob-v0", {**PPO, "search_space": space})
    model, saved = manager.setup_experiment()
    assert model.n_envs == 1
    assert "search_space" not in model.given
    assert saved["search_space"] == space
    manager.learn(model)
    config = yaml.load((tmp_path / "logs/ppo/Knob-v0_1/Knob-v0/config.yml").read_text(), yaml.UnsafeLoader)
    assert config["search_space"] == space


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize(
    ("algo", "block", "space", "told"),
    [
        (
            "ppo",
            PPO,
            {"lerning_rate": {"choices": [1]}},
            r"search_space.lerning_rate: .* unknown parameter, did you mean 'learning_rate'\? Valid: ",
        ),
        ("ppo", PPO, {"net_arch": {"choices": [[1]]}}, r"did you mean 'policy_kwargs.net_arch'\?"),
        (
            "ppo_lstm",
            LSTM,
            {"policy_kwargs.lstm_hiden_size": {"low": 1, "high": 2}},
            r"search_space.policy_kwargs.lstm_hiden_size: 1 in .*: RecurrentActorCriticPolicy has no argument "
            r"'lstm_hiden_size' to set, did you mean 'lstm_hidden_size'\?",
        ),
        ("ppo", PPO, {"n_timesteps": {"choices": [1]}}, "search_space.n_timesteps: .* unknown parameter"),
        ("ppo", PPO, {"seed": {"choices": [1]}}, "search_space.seed: .* unknown parameter"),
        ("ppo", PPO, {"update_ratio": {"choices": [1]}}, "search_space.update_ratio: .* unknown parameter"),
        (
            "ppo",
            PPO,
            {"batch_size": {"low": -5, "high": 8}},
            "search_space.batch_size: -5 in .*conf.yml: expected a whole number, at least 1",
        ),
        ("ppo", PPO, {"n_envs": {"choices": [2, 1.5]}}, "search_space.n_envs: 1.5 in .*: expected a whole number, at least 1"),
        (
            "ppo",
            PPO,
            {"learning_rate": {"choices": ["fast"]}},
            "search_space.learning_rate: 'fast' in .*: expected a number or lin_",
        ),
        (
            "ppo",
            PPO,
            {"vec_env_class": {"choices": ["dummy", "subprok"]}},
            r"search_space.vec_env_class: 'subprok' in .*: unknown vec env 'subprok', did you mean 'subproc'\?",
        ),
        ("ppo", PPO, {"vec_env_kwargs.start": {"choices": [1]}}, "DummyVecEnv has no argument 'start' to set"),
        (
            "sac",
            SAC,
            {"update_ratio": {"low": 0, "high": 1}},
            "search_space.update_ratio: 0.0 in .*: expected a number above 0",
        ),
        (
            "sac",
            SAC,
            {"gradient_steps": {"choices": ["n_env"]}},
            "search_space.gradient_steps: 'n_env' in .*: expected a whole number",
        ),
        ("sac", SAC, {"noise_type": {"choices": ["normal"]}}, "search_space.noise_type: 'normal' in .*: noise_std is missing"),
        (
            "sac",
            SAC,
            {"update_ratio": {"choices": [1]}, "gradient_steps": {"choices": [1]}},
            "search_space.update_ratio: .* gradient_steps is there too, and only one of them can be given",
        ),
        (
            "dqn",
            HER,
            {"replay_buffer_class": {"choices": ["HerReplayBufer"]}},
            r"search_space.replay_buffer_class: .* did you mean 'HerReplayBuffer'\?",
        ),
        (
            "ppo_lstm_seq",
            LSTM,
            {"policy_kwargs.rnn_type": {"choices": ["lstm", "gruu"]}},
            r"search_space.policy_kwargs.rnn_type: 'gruu' in .*: rnn_type: unknown value 'gruu', did you mean 'gru'\?",
        ),
    ],
)
def test_mistakes(tmp_path, algo, block, space, told, optimize):
    """They are told before any environment or folder is made, whether it is a search or not."""
    env = "BitFlip-v0" if block is HER else "Knob-v0"
    manager = make_manager(tmp_path, algo, env, {**block, "search_space": space}, optimize_hyperparameters=optimize)
    with pytest.raises(PluginError, match=told) as error:
        manager.setup_experiment()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "logs").exists()
    assert KnobEnv.opened == []


def test_block_on_the_command_line(tmp_path):
    """-params can give the block, or none, and can't fix what it searches."""
    block = {**PPO, "search_space": {"gamma": 3}}
    manager = make_manager(tmp_path, "ppo", "Knob-v0", block, hyperparams={"search_space": None})
    manager.setup_experiment()
    assert not manager.search_space
    manager = make_manager(tmp_path, "ppo", "Knob-v0", PPO, hyperparams={"search_space": {"gamma": 3}})
    with pytest.raises(PluginError, match=r"search_space\.gamma: 3 in -params: expected a map"):
        manager.setup_experiment()
    block = {**PPO, "search_space": {"gamma": {"choices": [0.5]}}}
    manager = make_manager(tmp_path, "ppo", "Knob-v0", block, hyperparams={"gamma": 0.7})
    with pytest.raises(PluginError, match=r"search_space\.gamma: .* it is in -params too: leave one of them out"):
        manager.setup_experiment()


# --- what trials are built from

KNOBS = {
    "learning_rate": {"low": "1e-5", "high": "1e-2", "log": True},
    "batch_size": {"choices": [4, 8]},
    "n_envs": {"choices": [2, 3]},
    "n_steps": {"low": 8, "high": 16, "step": 8},
    "gamma": {"low": 0, "high": 1},
    "normalize": {"choices": [True, "dict(norm_obs=False)"]},
    "frame_stack": {"choices": [2, 3]},
    "env_kwargs.length": {"low": 3, "high": 6},
    "vec_env_class": {"choices": ["tests.managers.RecordingVecEnv"]},
    "vec_env_kwargs.flavour": {"choices": ["sweet", "sour"]},
    "policy_kwargs.net_arch": {"choices": [[3], [3, 3]]},
    "policy_kwargs.activation_fn": {"choices": ["nn.ELU", "nn.ReLU"]},
}


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_everything_at_once(tmp_path, storage, learned, replace, n_jobs):
    """
    Each trial has its own values, and nothing of those of another.

    The best trial's block and --trial-id build what the trial has built, trial 0 too.
    """
    base = {**PPO, "policy_kwargs": "dict(ortho_init=False)", "env_kwargs": {"reward": 2.0}, "n_timesteps": 40}
    trials, printed = search(tmp_path, storage, {**KNOBS, "replace": replace}, block=base, n_trials=4, n_jobs=n_jobs)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    assert len(learned) == 4
    assert KnobEnv.still_open() == []
    by_values = {}
    for model, had in learned:
        by_values[model.given["learning_rate"](1.0)] = (model, had)
    for trial in trials:
        params = trial.params
        model, had = by_values[params["learning_rate"]]
        env = had["env"]
        assert had["n_envs"] == params["n_envs"]
        assert model.given["n_steps"] == params["n_steps"]
        assert model.given["gamma"] == params["gamma"]
        assert 0 < params["gamma"] < 1
        policy_kwargs = model.given["policy_kwargs"]
        assert policy_kwargs["net_arch"] == yaml.safe_load(params["policy_kwargs.net_arch"])
        assert f"nn.{policy_kwargs['activation_fn'].__name__}" == params["policy_kwargs.activation_fn"]
        # The sampler's policy_kwargs take the place of the file's, as upstream; a search space alone adds to them
        assert policy_kwargs.get("ortho_init") is (False if replace else None)
        assert set(params) == set(KNOBS) if replace else "ent_coef" in params
        assert not {"n_steps_pow", "batch_size_pow", "one_minus_gamma", "net_arch", "activation_fn"} & set(params)
        assert layers(env) == [VecFrameStack, VecNormalize, RecordingVecEnv]
        assert env.observation_space.shape == (2 * params["frame_stack"],)
        assert env.venv.norm_obs is (params["normalize"] is True)
        assert env.venv.gamma == params["gamma"]
        assert env.unwrapped.flavour == params["vec_env_kwargs.flavour"]
        assert {(e.unwrapped.length, e.unwrapped.reward) for e in env.unwrapped.envs} == {(params["env_kwargs.length"], 2.0)}

        again, saved, shown = of_trial(tmp_path, storage, trial.number, block=base)
        assert comparable(again) == comparable(model)
        assert again.n_envs == had["n_envs"]
        assert layers(again.env) == layers(env)
        assert "search_space" not in saved
        assert saved["env_kwargs"] == {"reward": 2.0, "length": params["env_kwargs.length"]}
        assert comparable(pasted(shown, tmp_path)) == comparable(model)
    best = max(trials, key=lambda trial: trial.value)
    assert f"# Trial {best.number}: {best.value:.6g} after 40 timesteps\nKnob-v0:\n" in printed
    assert comparable(pasted(printed, tmp_path)) == comparable(by_values[best.params["learning_rate"]][0])


@pytest.mark.parametrize(
    ("algo", "block", "env", "space"),
    [
        ("a2c", {key: PPO[key] for key in ("policy", "n_timesteps")}, "Knob-v0", {"n_steps": {"choices": [2, 3]}}),
        ("trpo", {**PPO, "n_epochs": None}, "Knob-v0", {"n_steps": {"choices": [8]}, "batch_size": {"low": 4, "high": 8}}),
        (
            "ppo_lstm",
            LSTM,
            "Knob-v0",
            {"policy_kwargs.lstm_hidden_size": {"low": 2, "high": 8, "step": 2}, "n_steps": {"choices": [8]}},
        ),
        (
            "ppo_lstm_seq",
            LSTM,
            "Knob-v0",
            {
                "policy_kwargs.rnn_type": {"choices": ["gru"]},
                "sampling": {"choices": ["sequences"]},
                "max_seq_length": {"choices": [None, 4]},
            },
        ),
        ("ppo_tensor", PPO, "Knob-v0", {"policy_kwargs.net_arch": {"choices": [[4]]}, "n_envs": {"choices": [2]}}),
        ("ars", ARS, "Knob-v0", {"n_delta": {"low": 1, "high": 4}, "n_envs": {"choices": [1]}}),
        ("dqn", DQN, "Knob-v0", {"target_update_interval": {"low": 5, "high": 9}, "train_freq": {"choices": [2, 4]}}),
        ("qrdqn", DQN, "Knob-v0", {"policy_kwargs.n_quantiles": {"low": 3, "high": 5}}),
        ("sac", SAC, "Pendulum-v1", {"tau": {"low": 0.1, "high": 0.2}, "ent_coef": {"choices": ["auto", 0.1]}}),
        ("tqc", SAC, "Pendulum-v1", {"top_quantiles_to_drop_per_net": {"choices": [0, 1]}}),
        ("td3", SAC, "Pendulum-v1", {"noise_type": {"choices": ["normal", None]}, "noise_std": {"low": 0.1, "high": 0.2}}),
        ("ddpg", SAC, "Pendulum-v1", {"noise_std": {"low": 0.6, "high": 0.7}}),
        ("crossq", SAC, "Pendulum-v1", {"learning_rate": {"low": 1e-4, "high": 1e-3, "log": True}}),
        (
            "dqn",
            HER,
            "BitFlip-v0",
            {
                "replay_buffer_class": {"choices": ["FastHerReplayBuffer", "tests.managers.GoalMemory"]},
                "replay_buffer_kwargs.n_sampled_goal": {"low": 6, "high": 9},
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_any_algorithm(tmp_path, storage, learned, algo, block, env, space):
    """A search space beside the sampler of each algorithm, or for one without; --trial-id gives back what was trained."""
    block = {key: value for key, value in block.items() if value is not None}
    trials, printed = search(tmp_path, storage, space, algo, env, block, n_trials=2)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    assert "# Trial " in printed
    for trial, (model, _) in zip(trials, list(learned), strict=True):
        again, _, shown = of_trial(tmp_path, storage, trial.number, algo, env, block)
        noise, other = model.given.get("action_noise"), again.given.get("action_noise")
        assert repr(noise) == repr(other)
        ours, theirs = comparable(model), comparable(again)
        for found in (ours, theirs):
            found.pop("action_noise", None)
        assert ours == theirs
        theirs = comparable(pasted(shown, tmp_path, algo=algo))
        theirs.pop("action_noise", None)
        assert ours == theirs
        for name in space:
            assert name in trial.params
    if algo == "dqn" and block is not DQN and "replay_buffer_class" in space:
        assert {type(model.replay_buffer) for model, _ in learned} <= {FastHerReplayBuffer, GoalMemory}
        assert all(
            model.replay_buffer.n_sampled_goal == t.params["replay_buffer_kwargs.n_sampled_goal"]
            for t, (model, _) in zip(trials, learned, strict=False)
        )


@pytest.mark.parametrize("file", [{"gradient_steps": 7}, {"update_ratio": 3.0}, {}])
@pytest.mark.parametrize(
    ("rule", "value", "per_transition"), [("update_ratio", 0.5, 0.5), ("gradient_steps", "2 * n_envs", 2.0)]
)
def test_update_ratio_whatever_n_envs(tmp_path, storage, learned, file, rule, value, per_transition):
    """The ratio that a search space gives stays, with any n_envs, over what the file says; --trial-id does the same."""
    base = {**DQN, "learning_starts": 0, "batch_size": 4, "n_timesteps": 24, **file}
    space = {rule: {"choices": [value]}, "n_envs": {"choices": [1, 2, 4]}, "train_freq": {"choices": [1]}}
    trials, _ = search(tmp_path, storage, space, "dqn", block=base, n_trials=5, sampler="random", seed=3)
    assert len({trial.params["n_envs"] for trial in trials}) > 1
    for trial, (model, had) in zip(trials, list(learned), strict=True):
        assert had["n_envs"] == trial.params["n_envs"]
        assert model.num_timesteps == 24
        # A trial does not learn from its last rollout
        assert model._n_updates == math.floor((24 - had["n_envs"]) * per_transition)
        manager = make_manager(tmp_path, "dqn", "Knob-v0", base, storage=storage, study_name=STUDY, trial_id=trial.number)
        again, saved = manager.setup_experiment()
        manager.learn(again)
        assert again._n_updates == 24 * per_transition
        assert saved[rule] == value
        assert not ({"gradient_steps", "update_ratio"} - {rule}) & set(saved)


# --- studies


def test_study_of_another_search_space(tmp_path, storage, learned):
    """It is refused before anything runs, and stays as it was; the same one goes on."""
    space = {"gamma": {"low": 0.5, "high": 0.9}}
    search(tmp_path, storage, space, n_trials=1)
    assert len(load(storage).trials) == 1
    before = (tmp_path / "study.log").read_bytes()
    folders = sorted((tmp_path / "logs/ppo").iterdir())
    KnobEnv.forget()
    for other in (
        {"gamma": {"low": 0.5, "high": 0.8}},
        {**space, "replace": True},
        {**space, "n_envs": {"choices": [1]}},
        None,
    ):
        told = rf"study '{STUDY}' exists with another search space: {{'replace': False, 'gamma'.*, and not .*: choose another"
        with pytest.raises(PluginError, match=told):
            search(tmp_path, storage, other, n_trials=1)
    assert (tmp_path / "study.log").read_bytes() == before
    assert len(learned) == 1
    assert KnobEnv.opened == []
    assert sorted((tmp_path / "logs/ppo").iterdir()) == folders
    search(tmp_path, storage, {"gamma": {"high": "9e-1", "low": "5e-1"}}, n_trials=1)
    assert len(load(storage).trials) == 2


def test_study_without_search_space(tmp_path, storage):
    """A study of the sampler alone does not go on with a block, either."""
    search(tmp_path, storage, None, n_trials=1)
    with pytest.raises(PluginError, match=r"exists with another search space: None, and not {'replace'"):
        search(tmp_path, storage, {"gamma": {"low": 0.5, "high": 0.9}}, n_trials=1)


@pytest.mark.parametrize(
    ("study", "number", "told"),
    [
        ("another", 0, "--study-name: there is no study 'another' in "),
        (STUDY, 7, f"--trial-id: study '{STUDY}' has no trial 7. Valid: 0 to 1"),
        (STUDY, -1, f"--trial-id: study '{STUDY}' has no trial -1"),
    ],
)
def test_no_such_trial(tmp_path, storage, study, number, told):
    missing = str(tmp_path / "missing.log")
    flags = dict(study_name=study, trial_id=number)
    with pytest.raises(PluginError, match=f"--storage: there is no file {missing}"):
        make_manager(tmp_path, "ppo", "Knob-v0", PPO, storage=missing, **flags).setup_experiment()
    assert not (tmp_path / "missing.log").exists()
    search(tmp_path, storage, None, n_trials=2)
    manager = make_manager(tmp_path, "ppo", "Knob-v0", PPO, storage=storage, **flags)
    with pytest.raises(PluginError, match=told):
        manager.setup_experiment()


# --- what trials cost


@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo", "ppo_lstm", "ppo_lstm_seq", "ppo_tensor"])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_budget(tmp_path, storage, learned, algo, n_envs):
    """A trial whose rollouts are longer than it is ends with its last timestep, after its last evaluation."""
    block = LSTM if "lstm" in algo else PPO
    block = {key: value for key, value in block.items() if key not in ("n_epochs", "batch_size")} | {"n_envs": n_envs}
    trials, _ = search(tmp_path, storage, {"n_steps": {"choices": [2048]}}, algo, block=block, n_trials=1, n_evaluations=4)
    assert learned[0][0].num_timesteps == {1: 32, 3: 33}[n_envs]
    assert trials[0].state is TrialState.COMPLETE
    # The zoo evaluates every 32 // 4 // n_envs steps
    assert list(trials[0].intermediate_values) == {1: [1, 2, 3, 4], 3: [1, 2, 3, 4, 5]}[n_envs]


def test_budget_of_whole_rollouts(tmp_path, storage, learned):
    """A trial learns from all rollouts but the last one, after which nothing is evaluated."""
    search(tmp_path, storage, {"n_steps": {"choices": [8]}, "n_epochs": {"choices": [3]}}, n_trials=1)
    assert (learned[0][0].num_timesteps, learned[0][0]._n_updates) == (32, 9)


@pytest.mark.parametrize("n_startup_trials", [0, 10])
def test_nan_ends_a_trial_at_the_first_evaluation(tmp_path, storage, learned, n_startup_trials):
    """Whatever the pruner waits for."""
    block = {**DQN, "env_kwargs": {"reward": float("nan")}}
    with pytest.raises(PluginError, match=r"no trial finished \(2 pruned\)"):
        search(
            tmp_path,
            storage,
            None,
            "dqn",
            block=block,
            n_trials=2,
            n_evaluations=4,
            pruner="median",
            n_startup_trials=n_startup_trials,
        )
    assert [model.num_timesteps for model, _ in learned] == [8, 8]
    assert [trial.state for trial in load(storage).trials] == [TrialState.PRUNED] * 2
    assert KnobEnv.still_open() == []


def test_pruner_ends_a_trial(tmp_path, storage, learned, monkeypatch):
    """A trial that evaluation finds worse than the others ends there, and costs no more."""
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda self: self.number > 0)
    trials, _ = search(tmp_path, storage, {"n_steps": {"choices": [2048]}}, n_trials=3, n_evaluations=4)
    assert [model.num_timesteps for model, _ in learned] == [32, 8, 8]
    assert [trial.state for trial in trials] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]


def test_nothing_is_left_of_trials(tmp_path, storage, monkeypatch):
    """
    Of trials that end well, are pruned, or fail in a constructor, there is no environment, process, model or callback left.

    Each process of an environment ends with its trial.
    """
    alive, children = [], []
    init = exp_manager.ALGOS["ppo"].__init__

    def spy(self, *args, **kwargs):
        children.append(len(multiprocessing.active_children()))
        alive.append(weakref.ref(self))
        alive.append(weakref.ref(kwargs["env"]))
        init(self, *args, **kwargs)

    monkeypatch.setattr(exp_manager.ALGOS["ppo"], "__init__", spy)
    learn = exp_manager.ALGOS["ppo"].learn

    def note(self, *args, callback, **kwargs):
        alive.extend(weakref.ref(one) for one in callback)
        if len(alive) > 12:
            raise FloatingPointError("too much")
        return learn(self, *args, callback=callback, **kwargs)

    monkeypatch.setattr(exp_manager.ALGOS["ppo"], "learn", note)
    block = {**PPO, "vec_env_class": "subproc", "vec_env_kwargs": {"start_method": "fork"}}
    space = {"batch_size": {"choices": [1, 8]}, "n_envs": {"choices": [1, 2]}}
    trials, _ = search(tmp_path, storage, space, block=block, n_trials=8, seed=1)
    ends = {(trial.params["batch_size"], trial.state.name) for trial in trials}
    assert ends == {(8, "COMPLETE"), (1, "PRUNED"), (8, "PRUNED")}
    gc.collect()
    assert [found() for found in alive if found() is not None] == []
    assert children == [trial.params["n_envs"] for trial in trials]
    assert multiprocessing.active_children() == []
    assert KnobEnv.still_open() == []
