"""Action masks in the zoo, whose scripts know none: training, evaluation, trials, enjoy and record_video."""

import runpy
import sys
from pathlib import Path

import numpy as np
import optuna
import pytest
import yaml
from optuna.trial import TrialState
from rl_zoo3 import enjoy, utils
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.managers import LSTM, make_manager
from tests.masked_env import MaskedEnv
from zoo_plugins import MaskableSeqRecurrentPPO, zoo
from zoo_plugins.algos.masking import MaskedModel

ALGO, ENV = "maskable_ppo_lstm_seq", "Masked-v0"  # it raises an error when an invalid action is taken
# Without masks, one of the first actions of the tests would be invalid
BLOCK = {**LSTM, "n_timesteps": 192, "n_envs": 2}


@pytest.fixture(autouse=True)
def _no_environment_to_view():
    yield
    zoo._viewing_env = None


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Log folder of a run, with evaluations in two environments."""
    folder = tmp_path_factory.mktemp("masks")
    block = {**BLOCK, "normalize": True, "policy_kwargs": "dict(lstm_hidden_size=4, rnn_type='gru')"}
    manager = make_manager(folder, ALGO, ENV, block, eval_freq=64, n_eval_episodes=3, n_eval_envs=2)
    model, _ = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)
    return folder / "logs"


def test_training_and_evaluation(logs):
    """Training and its evaluations took no invalid action, and left the usual files."""
    folder = logs / ALGO / f"{ENV}_1"
    assert np.load(folder / "evaluations.npz")["ep_lengths"].tolist() == [[5] * 3] * 3
    assert (folder / "best_model.zip").is_file()
    config = yaml.load((folder / ENV / "config.yml").read_text(), yaml.UnsafeLoader)
    assert config["policy_kwargs"] == "dict(lstm_hidden_size=4, rnn_type='gru')"


def run_script(monkeypatch, module, *arguments):
    """Run a script of the zoo in this process."""
    monkeypatch.setattr(sys, "argv", [module, *map(str, arguments)])
    if module == "enjoy":
        enjoy.enjoy()
    else:
        runpy.run_module(f"rl_zoo3.{module}", run_name="__main__")


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("flags", [["--stochastic"], ["--load-best"]])
def test_enjoy(logs, monkeypatch, capsys, flags, n_envs):
    """enjoy.py takes no invalid action, and has forgotten its environment afterwards."""
    run_script(
        monkeypatch, "enjoy", "--algo", ALGO, "--env", ENV, "-f", logs, "-n", 200, "--no-render", "--n-envs", n_envs, *flags
    )
    assert n_envs > 1 or "40 Episodes" in capsys.readouterr().out
    assert zoo._viewing_env is None


def test_record_video(logs, monkeypatch, tmp_path):
    """record_video.py takes no invalid action either."""
    run_script(monkeypatch, "record_video", "--algo", ALGO, "--env", ENV, "-f", logs, "-n", 40, "--stochastic", "-o", tmp_path)
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_enjoy_would_take_invalid_actions(logs, monkeypatch):
    """The two tests above say something: without the masks, the environment complains."""
    monkeypatch.setattr(MaskableSeqRecurrentPPO, "with_masks_of", lambda self, env: self)
    with pytest.raises(AssertionError, match="invalid action"):
        run_script(monkeypatch, "enjoy", "--algo", ALGO, "--env", ENV, "-f", logs, "-n", 200, "--no-render", "--stochastic")


def test_continue(logs, tmp_path):
    """-i goes on with a trained agent, masks and GRU included."""
    trained = str(logs / ALGO / f"{ENV}_1" / f"{ENV}.zip")
    block = {**BLOCK, "policy_kwargs": "dict(rnn_type='gru')"}
    manager = make_manager(tmp_path, ALGO, ENV, block, trained_agent=trained, eval_freq=64)
    model, _ = manager.setup_experiment()
    assert model.num_timesteps == 192
    manager.learn(model)
    assert model.rollout_buffer.action_masks is not None
    assert model._n_updates == 12


def test_search(tmp_path, monkeypatch):
    """Trials of a search train and are evaluated with masks."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    flags = dict(optimize_hyperparameters=True, storage=storage, study_name="masks", sampler="random", pruner="none")
    manager = make_manager(tmp_path, ALGO, ENV, {**BLOCK, "n_timesteps": 64}, n_trials=2, n_evaluations=2, **flags)
    assert manager.setup_experiment() is None
    manager.hyperparameters_optimization()
    trials = optuna.load_study(study_name="masks", storage=storage).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2  # an AssertionError would have pruned them
    assert "lstm_hidden_size_pow" in trials[0].params
    loaded = make_manager(tmp_path, ALGO, ENV, BLOCK).load_trial(storage, "masks", 1)
    assert loaded["batch_size"] == 2 ** trials[1].params["batch_size_pow"]


# --- Seams


@pytest.fixture
def model_path(tmp_path):
    """A saved model."""
    path = tmp_path / "model.zip"
    MaskableSeqRecurrentPPO("MlpLstmPolicy", MaskedEnv(), policy_kwargs={"lstm_hidden_size": 4}, device="cpu").save(path)
    return path


def test_a_viewed_agent_asks_the_viewing_environment(model_path):
    """An agent that is loaded to be looked at gets the environment that was made just before; only the first one does."""
    cls = utils.ALGOS[ALGO]
    assert issubclass(cls, MaskableSeqRecurrentPPO)
    assert (cls.__module__, cls.__qualname__) == (MaskableSeqRecurrentPPO.__module__, "MaskableSeqRecurrentPPO")
    viewing = {"custom_objects": {"lr_schedule": lambda _: 0.0}}
    assert type(cls.load(model_path, **viewing)) is cls
    env = utils.create_test_env(ENV, hyperparams={}, should_render=False)
    model = cls.load(model_path, **viewing)
    assert type(model) is MaskedModel
    assert vars(model)["masking_env"] is env
    assert type(cls.load(model_path, **viewing)) is cls


def test_a_trained_agent_does_not(model_path):
    """An agent that is loaded to go on learning is the model itself, and not the next one to look at either."""
    cls = utils.ALGOS[ALGO]
    utils.create_test_env(ENV, hyperparams={}, should_render=False)
    assert type(cls.load(model_path, env=DummyVecEnv([MaskedEnv]))) is cls
    assert zoo._viewing_env is None


def test_other_algorithms_are_left_alone():
    """An algorithm without masks is offered as it is."""
    assert "with_masks_of" not in dir(utils.ALGOS["ppo_lstm_seq"])
    assert zoo._with_masks_for_viewing(utils.ALGOS["ppo_lstm_seq"]) is utils.ALGOS["ppo_lstm_seq"]


def test_default_hyperparameters(tmp_path):
    """An environment that is not listed gets the default block of the algorithm's own YAML."""
    manager = make_manager(tmp_path, ALGO, ENV)
    assert Path(manager.config).name == "maskable_ppo_lstm_seq.yml"
    assert manager.setup_experiment()[0].policy.lstm_actor.hidden_size == 256
