"""TensorPPO on VecEnvs of tensors that tell where each observation comes from."""

import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch.distributions import Distribution

from tests.envs import ImageEnv, LenEnv
from tests.tensor_fakes import TensorLenEnv
from tests.tensor_sims import ImageSim
from zoo_plugins import SequenceRolloutBuffer, TensorPPO
from zoo_plugins.algos import rollout_ends
from zoo_plugins.vec_envs import TensorVecEnv, TensorVecTransposeImage

SMALL = {"n_steps": 8, "batch_size": 10, "n_epochs": 2, "seed": 0, "device": "cpu"}
NO_BOUNDS = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def make(env: Any, policy: Any = "MlpPolicy", **kwargs: Any) -> TensorPPO:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "You have specified a mini-batch size")
        return TensorPPO(policy, env, **{**SMALL, "policy_kwargs": {"net_arch": [8]}, **kwargs})


def value_is_t(env: TensorLenEnv, policy: str = "MlpPolicy", **kwargs: Any) -> TensorPPO:
    """Make a model whose critic predicts the t of an observation, and does not learn."""
    model = make(env, policy, policy_kwargs={"net_arch": []}, learning_rate=0.0, **kwargs)
    with th.no_grad():
        model.policy.value_net.weight.copy_(th.tensor([[0.0, 0.0, 1.0]]))
        model.policy.value_net.bias.zero_()
    return model


def rollout(model: TensorPPO, n_rollouts: int = 1) -> Any:
    model.learn(n_rollouts * model.n_steps * model.n_envs)
    return model.rollout_buffer.rollout


class KeysKept(KVWriter):
    """Keeps the keys that are logged."""

    def __init__(self, keys: set[str]) -> None:
        self.keys = keys

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.keys.update(key_values)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def validation():
    """Have distributions look at their arguments: torch.compile, in a test before, switches that off for good."""
    Distribution.set_default_validate_args(True)


class Steps(BaseCallback):
    """Keeps what callbacks find among the local variables."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.stop_after = stop_after

    def _on_step(self) -> bool:
        self.steps.append({key: self.locals[key] for key in ("infos", "rewards", "dones", "actions", "new_obs")})
        assert Distribution._validate_args  # which is only switched off while the model computes
        return len(self.steps) != self.stop_after


def test_what_is_stored():
    """Observations follow each other, rewards and episode starts are theirs, and actions those that were taken."""
    env = TensorLenEnv(2, lengths=(5, 4), end="terminated")
    model = make(env)
    stored = rollout(model)
    assert stored.observations[:, 0, 2].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert stored.observations[:, 1, 2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert stored.observations[:, 1, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert th.equal(stored.rewards, stored.observations[..., 2])
    assert th.equal(stored.episode_starts, (stored.observations[..., 2] == 0).float())
    # The environment has overwritten what it was given
    assert th.equal(stored.actions[..., 0], th.stack(env.actions))
    assert len(set(stored.actions.flatten().tolist())) == 2

    rollout(model, 2)  # the second rollout goes on where the first one ended
    assert stored.observations[:, 0, 2].tolist() == [3, 0, 1, 2, 3, 4, 0, 1]
    assert stored.episode_starts[:, 0].tolist() == [0, 1, 0, 0, 0, 0, 1, 0]


def test_same_as_step_by_step():
    """What is computed after the rollout is what the policy says when it is asked step by step."""
    env = TensorLenEnv(3, lengths=(5, 2, 1))
    model = make(env, learning_rate=0.0)
    stored = rollout(model)
    th.manual_seed(model.seed)
    other = make(TensorLenEnv(3, lengths=(5, 2, 1)))
    obs = th.as_tensor(other.env.reset())
    for step in range(model.n_steps):
        with th.no_grad():
            actions, values, log_probs = other.policy(obs)
            result = other.env.step_tensors(actions.clone())
            rewards = result.rewards
            for i in result.truncated.nonzero().flatten().tolist():
                rewards[i] += model.gamma * other.policy.predict_values(result.final_obs[i : i + 1])[0, 0]
        assert th.equal(stored.actions[step, :, 0], actions)
        assert th.equal(stored.observations[step], obs)
        th.testing.assert_close(stored.rewards[step], rewards, atol=1e-6, rtol=0)
        th.testing.assert_close(stored.values[step], values[:, 0], atol=1e-6, rtol=0)
        th.testing.assert_close(stored.log_probs[step], log_probs, atol=1e-6, rtol=0)
        obs = result.obs


@pytest.mark.parametrize("kept_bytes", [0, 2**28])
@pytest.mark.parametrize("as_dict", [False, True])
def test_truncated_episodes(as_dict, kept_bytes, monkeypatch):
    """The value of an episode's last observation is added to the last reward: t = 5, not 4 or 0."""
    monkeypatch.setattr(rollout_ends, "KEPT_BYTES", kept_bytes)
    model = value_is_t(TensorLenEnv(2, as_dict=as_dict), "MultiInputPolicy" if as_dict else "MlpPolicy", gamma=0.5)
    assert rollout(model).rewards[:, 0].tolist() == [0, 1, 2, 3, 4 + 0.5 * 5, 0, 1, 2]


def test_terminated_episodes():
    """There is nothing to add to the last reward of a terminated episode."""
    stored = rollout(value_is_t(TensorLenEnv(2, end="terminated"), gamma=0.5))
    assert stored.rewards[:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_no_final_obs():
    """Without last observations, nothing is added, and one warning says so."""
    model = value_is_t(TensorLenEnv(2, tells_final_obs=False), gamma=0.5)
    with pytest.warns(UserWarning, match="do not tell the last observations of truncated episodes") as caught:
        stored = rollout(model, 3)
    assert len([warning for warning in caught if "last observations" in str(warning.message)]) == 1
    assert th.equal(stored.rewards, stored.observations[..., 2])


def test_steps_that_reset():
    """A step that only resets an environment is no transition: not learned from, and a border between episodes."""
    model = value_is_t(TensorLenEnv(2, lengths=(3,), resets_by_step=True), gamma=0.5, gae_lambda=1.0)
    stored = rollout(model)
    assert stored.observations[:, 0, 2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert stored.valid[:, 0].tolist() == [True, True, True, False] * 2
    assert stored.episode_starts[:, 0].tolist() == [1, 0, 0, 1] * 2
    assert stored.rewards[:, 0].tolist() == [0, 1, 2 + 0.5 * 3, 0] * 2
    assert stored.returns[:3, 0].tolist() == [0.5 * (1 + 0.5 * 3.5), 1 + 0.5 * 3.5, 3.5]
    n = sum(len(batch.actions) for batch in model.rollout_buffer.get(5))
    assert n == 12


def test_episode_statistics():
    """Returns and lengths of the last episodes are logged, in the order in which they ended."""
    model = make(TensorLenEnv(2, lengths=(1, 2, 3, 4)), n_steps=64, stats_window_size=6)
    rollout(model)
    # Environment 0 has lengths 1 2 3 4 1 2 ..., environment 1 starts with 2: both end episodes until step 64
    lengths = [info["l"] for info in model.ep_info_buffer]
    returns = [info["r"] for info in model.ep_info_buffer]
    ends = sorted((step, env, length) for env in (0, 1) for step, length in ends_of(env) if step <= 64)
    assert lengths == [length for _, _, length in ends][-6:]
    assert returns == [length * (length - 1) / 2 for length in lengths]
    assert all(info["t"] > 0 for info in model.ep_info_buffer)


def ends_of(env: int) -> list[tuple[int, int]]:
    ends, step, episode = [], 0, 0
    while step < 64:
        length = (1, 2, 3, 4)[(episode + env) % 4]
        step, episode = step + length, episode + 1
        ends.append((step, length))
    return ends


class TellingEnv(TensorLenEnv):
    """Episodes of environment 1 are a success, those of environment 0 are not, and of environment 2 nothing is told."""

    def step_tensors(self, actions):
        return super().step_tensors(actions)._replace(success=th.tensor([0, 1, np.nan]))


def test_success_rate():
    """Successes of episodes are logged where they are told."""
    recorded: set[str] = set()
    for env in (TellingEnv(3), TensorLenEnv(3)):
        model = make(env)
        model.set_logger(Logger(None, [KeysKept(recorded)]))
        model.learn(24)
        assert len(model.ep_info_buffer) == 3
        assert list(model.ep_success_buffer) == ([0, 1] if type(env) is TellingEnv else [])
        assert "rollout/success_rate" in recorded


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (NO_BOUNDS, [-np.inf] * 2, [np.inf] * 2),
        (spaces.Box(np.array([-0.1, -np.inf]), np.array([np.inf, 0.2]), dtype=np.float32), [-0.1, -np.inf], [np.inf, 0.2]),
        (spaces.Box(-0.1, 0.1, (2,), np.float32), [-0.1] * 2, [0.1] * 2),
    ],
)
def test_bounds_of_actions(space, low, high):
    """Actions are clipped where there are bounds, and only there; what is stored is what was sampled."""
    env = TensorLenEnv(3, action_space=space)
    model = make(env)
    assert model.action_space == space == env.action_space
    stored = rollout(model).actions
    taken = th.stack(env.actions)
    assert taken.isfinite().all()
    assert th.equal(taken, stored.clamp(th.tensor(low), th.tensor(high)))
    assert stored.abs().max() > 1

    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = TensorPPO.load(file, env=TensorLenEnv(3, action_space=space), device="cpu")
    assert loaded.action_space == space
    obs = th.zeros(3, 3)
    assert th.equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    loaded.learn(24)


def test_unbounded_numpy_env():
    """Unbounded actions work with environments on the CPU too."""
    model = make(DummyVecEnv([lambda: LenEnv((5,), action_space=NO_BOUNDS)] * 2)).learn(32)
    assert model.action_space == NO_BOUNDS


def test_squashed_actions():
    """Squashed actions are scaled to the bounds, which must exist."""
    space = spaces.Box(np.array([0.0, -3.0], np.float32), np.array([2.0, -1.0], np.float32))
    env = TensorLenEnv(3, action_space=space)
    kwargs = {"use_sde": True, "policy_kwargs": {"squash_output": True, "net_arch": [8]}}
    stored = rollout(make(env, **kwargs)).actions
    expected = PPO("MlpPolicy", DummyVecEnv([lambda: LenEnv((5,), action_space=space)]), device="cpu", **kwargs)
    for taken, sampled in zip(env.actions, stored, strict=True):
        np.testing.assert_allclose(taken, expected.policy.unscale_action(sampled.numpy()), atol=1e-6)
    with pytest.raises(ValueError, match="squash_output needs an action space with bounds"):
        make(TensorLenEnv(3, action_space=NO_BOUNDS), **kwargs)


def test_multi_binary_actions_are_integers():
    """The environment is given actions of the action space's type, though the distribution's are floats."""
    env = TensorLenEnv(3, action_space=spaces.MultiBinary(4))
    rollout(make(env))
    assert {actions.dtype for actions in env.actions} == {th.int8}


def test_local_variables_of_callbacks():
    """Callbacks are called at every vector step, and read infos as ever."""
    callback = Steps()
    model = make(TensorLenEnv(2, lengths=(5,))).learn(16, callback)
    assert callback.n_calls == len(callback.steps) == 8
    assert model.num_timesteps == 16
    infos = [step["infos"] for step in callback.steps]
    assert [len(info) for info in infos] == [2] * 8
    assert infos[4][1]["episode"] == {"r": 10.0, "l": 5, "t": 0.0}
    np.testing.assert_array_equal(infos[4][1]["terminal_observation"], [1, 0, 5])
    assert infos[4][1]["TimeLimit.truncated"]
    assert "episode" not in infos[3][1]
    assert callback.steps[4]["rewards"].tolist() == [4, 4]
    assert callback.steps[4]["dones"].tolist() == [True, True]


def test_callback_stops():
    """A callback that returns False ends training within a rollout."""
    model = make(TensorLenEnv(2)).learn(32, Steps(stop_after=3))
    assert model.num_timesteps == 6
    assert model._n_updates == 0


def test_validation_is_restored_after_errors():
    """Distributions check their arguments again when something has gone wrong."""
    model = make(TensorLenEnv(2, action_space=spaces.MultiDiscrete([2, 2])))
    model.policy.action_net.forward = None  # not callable
    with pytest.raises(TypeError):
        model.learn(16)
    assert Distribution._validate_args


def test_callbacks_of_sb3(tmp_path):
    """Evaluation, checkpoints and the progress bar work, with a NumPy environment for evaluation."""
    model = make(TensorLenEnv(2))
    eval_env = DummyVecEnv([lambda: LenEnv((5,))])
    with pytest.warns(UserWarning, match="not of the same type"):
        model.learn(
            64,
            [
                EvalCallback(eval_env, n_eval_episodes=2, eval_freq=8, best_model_save_path=str(tmp_path), verbose=0),
                CheckpointCallback(8, str(tmp_path)),
            ],
            progress_bar=True,
        )
    assert {"best_model.zip", "rl_model_16_steps.zip"} <= {path.name for path in tmp_path.iterdir()}
    assert PPO.load(tmp_path / "best_model.zip", device="cpu").num_timesteps == 16


def test_logs():
    """The logger is given what PPO gives it."""
    keys = []
    for cls, env in ((PPO, make_vec_env(lambda: LenEnv((5,)), 2)), (TensorPPO, TensorLenEnv(2))):
        recorded: set[str] = set()
        model = cls("MlpPolicy", env, **SMALL | {"batch_size": 8})
        logger = Logger(None, [KeysKept(recorded)])
        model.set_logger(logger)
        model.learn(32)
        keys.append(recorded)
    assert keys[0] == keys[1]
    assert {"train/explained_variance", "rollout/ep_rew_mean", "time/fps"} < keys[1]
    assert [info["r"] for info in model.ep_info_buffer] == [10] * 6


@pytest.mark.parametrize("as_dict", [False, True])
def test_save_and_load(as_dict, tmp_path):
    """A saved model opens as PPO, and one saved by PPO as TensorPPO, with the same actions; both go on learning."""
    policy = "MultiInputPolicy" if as_dict else "MlpPolicy"
    model = make(TensorLenEnv(2, as_dict=as_dict), policy, target_kl=0.1, clip_range_vf=0.2).learn(32)
    obs = {"env": np.ones((4, 2), np.float32), "t": np.ones((4, 1), np.float32)} if as_dict else np.ones((4, 3), np.float32)
    expected = model.predict(obs, deterministic=True)[0]
    model.save(tmp_path / "tensor")
    stock = PPO.load(tmp_path / "tensor", device="cpu")
    np.testing.assert_array_equal(stock.predict(obs, deterministic=True)[0], expected)
    stock = PPO.load(tmp_path / "tensor", env=TensorLenEnv(3, as_dict=as_dict), device="cpu").learn(24)
    stock.save(tmp_path / "stock")

    loaded = TensorPPO.load(tmp_path / "stock", env=TensorLenEnv(5, as_dict=as_dict), device="cpu")
    np.testing.assert_array_equal(loaded.predict(obs)[0].shape, stock.predict(obs)[0].shape)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], stock.predict(obs, deterministic=True)[0])
    assert loaded.learn(40, reset_num_timesteps=False).num_timesteps == 24 + 40
    loaded.set_parameters(model.get_parameters())
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], expected)
    loaded.learn(40)


def test_predict_takes_and_gives_tensors():
    """Tensors in, tensors out; NumPy arrays in, NumPy arrays out; with the same actions."""
    for space in (spaces.Discrete(3), spaces.Box(-0.1, 0.1, (2,), np.float32), spaces.MultiDiscrete([2, 3])):
        model = make(TensorLenEnv(2, action_space=space))
        obs = th.randn(4, 3)
        actions, state = model.predict(obs, deterministic=True)
        assert isinstance(actions, th.Tensor)
        assert state is None
        assert actions.shape == (4, *space.shape)
        arrays, _ = model.predict(obs.numpy(), deterministic=True)
        assert isinstance(arrays, np.ndarray)
        np.testing.assert_array_equal(actions, arrays)
    model = make(TensorLenEnv(2, as_dict=True), "MultiInputPolicy")
    assert isinstance(model.predict({"env": th.zeros(2, 2), "t": th.zeros(2, 1)})[0], th.Tensor)


def test_learn_twice():
    """A second learn() resets the environments; one that goes on does not."""
    env = TensorLenEnv(2, lengths=(100,))
    model = make(env).learn(16)
    assert env.t.tolist() == [8, 8]
    model.learn(16, reset_num_timesteps=False)
    assert env.t.tolist() == [16, 16]
    model.learn(16)
    assert env.t.tolist() == [8, 8]
    assert model.rollout_buffer.rollout.episode_starts[0].tolist() == [1, 1]


def test_same_seed_same_weights():
    """Training is repeatable."""
    first, second = (make(TensorLenEnv(3)).learn(96).policy.parameters_to_vector() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_images():
    """Images of environments in NumPy, with channels last, are transposed as by SB3."""
    model = make(make_vec_env(ImageEnv, 2), "CnnPolicy", policy_kwargs={"features_extractor_kwargs": {"features_dim": 8}})
    model.learn(16)
    stored = model.rollout_buffer.rollout.observations
    assert stored.shape == (8, 2, 1, 36, 36)
    assert stored.dtype is th.uint8


@pytest.mark.parametrize("as_dict", [False, True])
def test_images_in_tensors(as_dict):
    """Images of tensors with channels last are transposed too, and stay tensors: each pixel is where it belongs."""
    env = TensorVecEnv(ImageSim((5, 5), end="truncated", as_dict=as_dict), device="cpu")
    policy, features = ("MultiInputPolicy", "cnn_output_dim") if as_dict else ("CnnPolicy", "features_dim")
    model = make(env, policy, policy_kwargs={"features_extractor_kwargs": {features: 8}})
    assert type(model.env) is TensorVecTransposeImage
    stored = rollout(model).observations
    stored = stored["image"] if as_dict else stored
    assert stored.shape == (8, 2, 3, 37, 36)
    assert stored.dtype is th.uint8
    places = th.arange(37 * 36 * 3).view(37, 36, 3).permute(2, 0, 1) % 50
    for step, t in enumerate([0, 1, 2, 3, 4, 0, 1, 2]):
        assert th.equal(stored[step, 1], (places + 60 + t).to(th.uint8))
    assert isinstance(model.predict(model.env.reset_tensors())[0], th.Tensor)


class OwnPolicy(ActorCriticPolicy):
    """A policy with a forward pass of its own."""

    calls = 0

    def forward(self, obs, deterministic=False):
        type(self).calls += 1
        return super().forward(obs, deterministic)

    def evaluate_actions(self, obs, actions):
        type(self).calls += 100
        return super().evaluate_actions(obs, actions)


def test_own_policy_is_asked():
    """What a policy overrides is called."""
    OwnPolicy.calls = 0
    make(TensorLenEnv(2), OwnPolicy).learn(16)
    assert OwnPolicy.calls == 8 + 100 * 2 * 2  # 2 epochs of 2 minibatches


def test_other_device():
    """Environments elsewhere are refused; by default, the model is where they are."""
    env = TensorLenEnv(2)
    env.device = th.device("meta")
    with pytest.raises(ValueError, match="the environments are on device meta, the algorithm on cpu"):
        make(env).learn(16)
    assert make(TensorLenEnv(2), device="auto").device == th.device("cpu")


def test_numpy_wrapper_around_tensors():
    """SB3's wrapper of a VecEnv of tensors is not bypassed: its NumPy arrays are used, with a warning that this is slow."""
    env = VecNormalize(TensorLenEnv(2))
    with pytest.warns(UserWarning, match="VecNormalize turns the tensors of TensorLenEnv into NumPy arrays"):
        stored = rollout(make(env))
    assert stored.observations.abs().max() < 4
    assert env.obs_rms.count > 16


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"compile": "yes"}, "compile must be one of none, default, cudagraph, not 'yes'"),
        ({"rollout_buffer_class": SequenceRolloutBuffer}, "must be a TensorRolloutBuffer, not SequenceRolloutBuffer"),
    ],
)
def test_wrong_arguments(kwargs, message):
    """Wrong arguments are told at once."""
    with pytest.raises(ValueError, match=message):
        make(TensorLenEnv(2), **kwargs)


def test_divergence():
    """A loss, or parameters, that are not finite end training with a ValueError, so that the zoo prunes a trial."""
    with pytest.raises(ValueError, match="training diverged"):
        make(TensorLenEnv(2), learning_rate=1e30).learn(16)
