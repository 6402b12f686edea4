"""The zoo with ppo_tensor, and with ``vec_env_class: tensor`` for other algorithms."""

from pathlib import Path

import numpy as np
import optuna
import pytest
import yaml
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO as PPOAlgorithm
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    sync_envs_normalization,
)

from tests.envs import ImageEnv
from tests.managers import PPO, make_manager, set_up
from tests.tensor_fakes import TensorLenEnv
from tests.test_cli import run, saved_config, timesteps_of
from tests.test_zoo_contract import check_block
from zoo_plugins import TensorPPO, TensorSequenceRolloutBuffer
from zoo_plugins.registry import PluginError
from zoo_plugins.search_spaces import convert_ppo_tensor_params, sample_ppo_tensor_params
from zoo_plugins.specs import PPO_TENSOR
from zoo_plugins.vec_envs import TensorVecEnv, TensorVecFrameStack, TensorVecNormalize
from zoo_plugins.vec_envs.tensor_twins import with_tensor_wrappers

FILE = Path(__file__).parents[1] / "hyperparams" / "ppo_tensor.yml"
FILES = [FILE, FILE.with_stem("ppo_tensor_4096")]
BLOCKS = [(file, env_id) for file in FILES for env_id in yaml.safe_load(file.read_text())]
TENSOR = {**PPO, "n_envs": 4, "vec_env_class": "tensor"}
# SB3's EvalCallback would like to evaluate on tensors too
pytestmark = pytest.mark.filterwarnings("ignore:Training and eval env are not of the same type")


def test_file_in_use():
    """An editable install reads the very file that one edits."""
    assert PPO_TENSOR.load().hyperparams.samefile(FILE)
    assert ALGOS["ppo_tensor"] is TensorPPO


@pytest.mark.parametrize(("file", "env_id"), BLOCKS, ids=lambda value: getattr(value, "stem", value))
def test_blocks_are_accepted(file, env_id):
    """Every block passes all checks of the algorithm."""
    assert "policy" in check_block("ppo_tensor", yaml.safe_load(file.read_text())[env_id])


@pytest.mark.parametrize("algo", ["ppo_tensor", "ppo"])
def test_training(tmp_path, algo):
    """Training is on tensors, in wrappers for tensors, and evaluation on a DummyVecEnv, whose statistics follow."""
    manager = make_manager(tmp_path, algo, "TensorPendulum-v1", {**TENSOR, "normalize": "dict(gamma=0.9)", "frame_stack": 2})
    model, env, eval_env = set_up(manager)
    assert type(env) is TensorVecFrameStack
    assert type(env.venv) is TensorVecNormalize
    assert type(env.unwrapped) is TensorVecEnv
    assert (env.venv.gamma, env.venv.training, env.num_envs) == (0.9, True, 4)
    assert type(eval_env.unwrapped) is DummyVecEnv
    manager.learn(model)
    sync_envs_normalization(env, eval_env)
    normalize = eval_env.venv
    assert type(normalize) is VecNormalize
    np.testing.assert_allclose(normalize.obs_rms.mean, np.asarray(env.venv.obs_rms.mean), atol=1e-6)
    assert normalize.obs_rms.count > 32
    manager.save_trained_model(model)


def test_seed(tmp_path):
    """The same seed gives the same agent."""
    weights = []
    for _ in range(2):
        manager = make_manager(tmp_path, "ppo_tensor", "TensorCartPole-v1", TENSOR, seed=5)
        model, _, eval_env = set_up(manager)
        manager.learn(model)
        weights.append(model.policy.parameters_to_vector())
        eval_env.close()
    np.testing.assert_array_equal(*weights)


def test_environment_wrappers_are_refused(tmp_path):
    """A wrapper of each environment can't be applied to a batch, and is never left out."""
    block = {**TENSOR, "env_wrapper": "gymnasium.wrappers.RescaleActionV0"}
    block["env_wrapper"] = [{"gymnasium.wrappers.RescaleAction": {"min_action": -1.0, "max_action": 1.0}}]
    with pytest.raises((PluginError, ValueError), match="can't apply RescaleAction to a batch of environments"):
        set_up(make_manager(tmp_path, "ppo_tensor", "TensorPendulum-v1", block))


def test_stock_environments(tmp_path):
    """Without tensors, the environments are those of the zoo."""
    manager = make_manager(tmp_path, "ppo_tensor", "CartPole-v1", {**PPO, "normalize": True})
    model, env, _ = set_up(manager)
    assert type(env) is VecNormalize
    manager.learn(model)


def test_wrappers_with_and_without_a_twin():
    """Wrappers are replaced from the inside to the first one without a twin; others stay as they are."""

    class Own(VecNormalize):
        pass

    def wrapped(env):
        return VecFrameStack(Own(VecNormalize(env)), 2)

    env = with_tensor_wrappers(wrapped(TensorLenEnv(2)))
    assert [type(env), type(env.venv), type(env.venv.venv)] == [VecFrameStack, Own, TensorVecNormalize]
    env.reset()
    env.step(np.zeros(2, int))
    plain = VecTransposeImage(DummyVecEnv([ImageEnv]))
    assert with_tensor_wrappers(plain) is plain
    already = TensorVecNormalize(TensorLenEnv(2))
    assert with_tensor_wrappers(already) is already


def test_statistics_of_a_saved_agent(tmp_path):
    """A wrapper that was loaded keeps its statistics and settings when it is replaced."""
    saved = VecNormalize(TensorLenEnv(2), clip_obs=3.0)
    saved.reset()
    for _ in range(20):
        saved.step(np.zeros(2, int))
    saved.save(tmp_path / "vecnormalize.pkl")
    twin = with_tensor_wrappers(VecNormalize.load(tmp_path / "vecnormalize.pkl", TensorLenEnv(2)))
    assert type(twin) is TensorVecNormalize
    assert twin.clip_obs == 3.0
    np.testing.assert_allclose(np.asarray(twin.obs_rms.mean), saved.obs_rms.mean, atol=1e-6)
    assert float(twin.ret_rms.count) == pytest.approx(saved.ret_rms.count)


@pytest.mark.parametrize("n_envs", [1, 8, 64, 4096, 2**17])
def test_search_space(n_envs):
    """A trial's parameters give the sampled hyperparameters back; rollouts do not grow with the environments."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        sampled = sample_ppo_tensor_params(trial, 2, n_envs, {})
        assert convert_ppo_tensor_params(trial.params) == sampled
        assert 8 * n_envs <= sampled["n_steps"] * n_envs <= max(2**16, 8 * 2 * n_envs)
        assert sampled["batch_size"] >= min(n_envs, 64)
        study.tell(trial, 0.0)


def test_recurrent_commands(tmp_path):
    """ppo_lstm_seq trains on tensors, evaluates on a DummyVecEnv, is enjoyed, and goes on with an agent."""
    arguments = ["--algo", "ppo_lstm_seq", "--env", "TensorPendulumNoVel-v1"]
    tiny = ["-params", "n_steps:16", "n_envs:4", "batch_size:64", "n_epochs:1"]
    run("rl_zoo3.train", *arguments, *tiny, "-n", 128, "--eval-freq", 60, "-f", tmp_path)
    folder = tmp_path / "ppo_lstm_seq" / "TensorPendulumNoVel-v1_1"
    assert timesteps_of(folder / "TensorPendulumNoVel-v1.zip") == 128
    assert saved_config(folder)["vec_env_class"] == "tensor"
    assert (folder / "best_model.zip").exists()
    run("rl_zoo3.enjoy", *arguments, "-f", tmp_path, "--no-render", "-n", 50)
    run("rl_zoo3.train", *arguments, *tiny, "-n", 128, "-i", folder / "TensorPendulumNoVel-v1.zip", "-f", tmp_path)


def test_recurrent_training(tmp_path):
    """Rollouts of ppo_lstm_seq are tensors, in wrappers for tensors."""
    block = {"policy": "MlpLstmPolicy", "n_timesteps": 64, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "n_envs": 4}
    manager = make_manager(
        tmp_path, "ppo_lstm_seq", "TensorPendulumNoVel-v1", block | {"vec_env_class": "tensor", "normalize": True}
    )
    model, env, _ = set_up(manager)
    assert type(env) is TensorVecNormalize
    assert type(model.rollout_buffer) is TensorSequenceRolloutBuffer
    manager.learn(model)
    assert model.num_timesteps == 64


def test_commands(tmp_path):
    """train, enjoy, record_video, going on with an agent, and -optimize work; the agent opens as PPO."""
    arguments = ["--algo", "ppo_tensor", "--env", "TensorCartPole-v1"]
    tiny = ["-params", "n_steps:16", "n_envs:4", "batch_size:64", "n_epochs:1", "normalize:True"]
    run("rl_zoo3.train", *arguments, *tiny, "-n", 256, "--eval-freq", 100, "--save-freq", 100, "-f", tmp_path)
    folder = tmp_path / "ppo_tensor" / "TensorCartPole-v1_1"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names >= {"TensorCartPole-v1.zip", "best_model.zip", "evaluations.npz", "TensorCartPole-v1/vecnormalize.pkl"}
    assert timesteps_of(folder / "TensorCartPole-v1.zip") == 256
    assert saved_config(folder)["vec_env_class"] == "tensor"
    run("rl_zoo3.enjoy", *arguments, "-f", tmp_path, "--no-render", "-n", 50)
    run("rl_zoo3.record_video", *arguments, "-f", tmp_path, "-n", 10)
    (video,) = (folder / "videos").glob("final-model-ppo_tensor-TensorCartPole-v1*.mp4")
    assert video.stat().st_size > 0
    PPOAlgorithm.load(folder / "best_model.zip", device="cpu")
    run("rl_zoo3.train", *arguments, *tiny, "-n", 128, "-i", folder / "TensorCartPole-v1.zip", "-f", tmp_path)
    search = ["-optimize", "--n-trials", 2, "--n-evaluations", 1, "--n-startup-trials", 2]
    run("rl_zoo3.train", *arguments, "-params", "n_envs:4", "-n", 128, *search, "-f", tmp_path)
