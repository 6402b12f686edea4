"""TensorVecEnv is a VecEnv: SB3's contract, callbacks and algorithms."""

import copy
import functools
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.wrappers import TimeLimit, TransformReward
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecVideoRecorder

from tests.tensor_sims import CountingSim, Syncs, on_device
from zoo_plugins import RayVecEnv, TensorVecEnv, registry
from zoo_plugins.envs.tensor_cart_pole import CartPole, TensorCartPole
from zoo_plugins.vec_envs import StepsTensors, TensorInfos, TensorStep
from zoo_plugins.vec_envs.numpy_face import steps_tensors


class Replay(gym.Env):
    """One environment of a batch that was recorded: what a VecEnv of such environments has to return."""

    def __init__(self, batch, env, first, steps):
        self.observation_space, self.action_space = batch.single_observation_space, batch.single_action_space
        self.env, self.first, self.steps, self.t = env, first, steps, -1

    def reset(self, *, seed=None, options=None):
        obs = self.first if self.t < 0 else self.steps[self.t].obs
        return obs[self.env].numpy(), {}

    def step(self, action):
        self.t += 1
        step = self.steps[self.t]
        over = bool(step.terminated[self.env] | step.truncated[self.env])
        obs = step.final_obs if over else step.obs
        flags = bool(step.terminated[self.env]), bool(step.truncated[self.env])
        return obs[self.env].numpy(), step.rewards[self.env].item(), *flags, {}


def same(left, right):
    """Compare what two VecEnvs returned, but for the time, and the last digits of returns, which are summed as float32."""
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.flags.writeable
        return left.shape == right.shape and (left == right).all()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left if key != "t")
    return type(left) is type(right) and left == (pytest.approx(right, rel=1e-6) if isinstance(right, float) else right)


@pytest.mark.parametrize("env_id", ["TensorCartPole-v1", "TensorPendulum-v1", "TensorAcrobot-v1"])
def test_same_as_dummy_vec_env(env_id):
    """The NumPy face returns what a DummyVecEnv of monitored environments returns, types included."""
    n_envs, n_steps = 6, 60
    kwargs = dict(num_envs=n_envs, max_episode_steps=13, device="cpu")
    recorded, ours = TensorVecEnv(env_id, **kwargs), TensorVecEnv(env_id, **kwargs)
    recorded.action_space.seed(1)
    actions = [np.stack([recorded.action_space.sample() for _ in range(n_envs)]) for _ in range(n_steps)]
    recorded.seed(3)
    first = recorded.reset_tensors()
    steps = [recorded.step_tensors(th.as_tensor(action)) for action in actions]
    replays = [functools.partial(Replay, recorded.batch, env, first, steps) for env in range(n_envs)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # replays have no render mode
        theirs = DummyVecEnv([lambda make=make: Monitor(make()) for make in replays])

    assert ours.seed(3) == theirs.seed(3)
    assert same(ours.reset(), theirs.reset())
    n_ends = 0
    for action in actions:
        left, right = ours.step(action), theirs.step(action)
        assert all(same(*pair) for pair in zip(left[:3], right[:3], strict=True))
        assert len(left[3]) == len(right[3])
        assert all(same(*pair) for pair in zip(left[3], right[3], strict=True))
        assert ours.reset_infos == theirs.reset_infos
        n_ends += left[2].sum()
    assert n_ends >= 4 * n_envs


def test_time_limits():
    """TimeLimit.truncated and episode statistics are gymnasium's and Monitor's."""
    vec_env = TensorVecEnv("TensorPendulum-v1", num_envs=2, device="cpu", max_episode_steps=3)
    vec_env.reset()
    total = 0
    for t in range(3):
        _, rewards, dones, infos = vec_env.step(np.zeros((2, 1), np.float32))
        total += rewards[1]
        assert dones.all() == (t == 2)
    assert infos[1]["TimeLimit.truncated"] is True
    assert infos[1]["episode"]["r"] == pytest.approx(total, rel=1e-5)
    assert infos[1]["episode"]["l"] == 3
    assert infos[1]["episode"]["t"] > 0


def test_tensors_stay_on_the_device():
    """The tensor face neither waits nor asks for NumPy; the faces share episodes."""
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=3, device="cpu", max_episode_steps=4)
    assert isinstance(vec_env, StepsTensors)
    vec_env.seed(0)
    vec_env.reset()
    vec_env.step(np.zeros(3, np.int64))
    with Syncs() as syncs:
        steps = [vec_env.step_tensors(on_device(th.ones(3, dtype=th.int64))) for _ in range(3)]
    assert syncs.waiting == []
    assert all(isinstance(step, TensorStep) for step in steps)
    assert steps[-1].truncated.all()
    assert steps[-1].episode_lengths.tolist() == [4, 4, 4]


def test_infos_are_made_when_read():
    """4096 environments have no dict each unless someone reads it; what is written into one stays."""
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=4096, device="cpu", max_episode_steps=2)
    vec_env.reset()
    vec_env.step(np.zeros(4096, np.int64))
    infos = vec_env.step(np.zeros(4096, np.int64))[3]
    assert isinstance(infos, TensorInfos)
    assert len(infos) == 4096
    assert infos._dicts == {}
    infos[7]["terminal_observation"] = "mine"
    infos[-1] = {"mine": True}
    assert infos[7]["terminal_observation"] == "mine"
    assert list(infos._dicts) == [7, 4095]
    assert infos[4095] == {"mine": True}
    assert [info.get("mine") for info in infos[4093:]] == [None, None, True]
    assert len(np.array([info["TimeLimit.truncated"] for info in infos[:5]])) == 5
    with pytest.raises(IndexError):
        infos[4096]


def test_infos_behave_as_a_list():
    """They are compared, copied, pickled and shown as a list of dicts."""
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=2, device="cpu")
    vec_env.reset()
    infos = vec_env.step(np.zeros(2, np.int64))[3]
    expected = [{"TimeLimit.truncated": False}] * 2
    assert infos == expected
    assert copy.deepcopy(infos) == pickle.loads(pickle.dumps(infos)) == expected
    assert repr(infos) == repr(expected)
    assert np.array(infos).shape == (2,)


def test_attributes_and_methods():
    """They are the batch's, told for each of the environments that are asked."""
    vec_env = TensorVecEnv("TensorPendulum-v1", num_envs=3, device="cpu")
    assert vec_env.get_attr("g") == [10.0] * 3
    vec_env.set_attr("g", 5.0)
    assert vec_env.get_attr("g", indices=[0, 2]) == [5.0] * 2
    vec_env.set_attr("g", 6.0, indices=range(3))
    with pytest.raises(ValueError, match="g: environments of one batch share their attributes"):
        vec_env.set_attr("g", 7.0, indices=0)
    assert vec_env.get_attr("g", indices=1) == [6.0]
    assert vec_env.has_attr("max_episode_steps")
    assert not vec_env.has_attr("no_such_thing")
    assert [obs.shape for obs in vec_env.env_method("observe", indices=1)] == [(3, 3)]
    assert vec_env.env_is_wrapped(Monitor) == [True] * 3
    assert vec_env.env_is_wrapped(TimeLimit, indices=[1]) == [False]
    vec_env.close()


def test_images():
    """Images are tiled; of very many environments, the first ones are shown."""
    pytest.importorskip("pygame")
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=40, device="cpu", render_mode="rgb_array")
    vec_env.reset()
    assert vec_env.render_mode == "rgb_array"
    assert len(vec_env.get_images()) == 16
    assert vec_env.render("rgb_array").shape == (4 * 400, 4 * 600, 3)
    vec_env.close()
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=2, device="cpu")
    with pytest.warns(UserWarning, match="render mode is None"):
        assert vec_env.get_images() == [None, None]


def test_video(tmp_path):
    """VecVideoRecorder writes a video."""
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    vec_env = TensorVecEnv("TensorPendulum-v1", num_envs=2, device="cpu", render_mode="rgb_array")
    recorder = VecVideoRecorder(vec_env, str(tmp_path), lambda step: step == 0, video_length=5)
    recorder.reset()
    for _ in range(6):
        recorder.step(np.zeros((2, 1), np.float32))
    recorder.close()
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 0


@pytest.mark.parametrize(
    ("algorithm", "env_id", "kwargs"),
    [
        (PPO, "TensorCartPole-v1", dict(n_steps=32, batch_size=32, n_epochs=1)),
        (A2C, "TensorPendulumNoVel-v1", dict(use_sde=True)),
        (SAC, "TensorPendulum-v1", dict(learning_starts=40, batch_size=16)),
        (DQN, "TensorAcrobot-v1", dict(learning_starts=40, batch_size=16)),
        (SAC, "TensorMountainCarContinuous-v0", dict(learning_starts=40, batch_size=16, use_sde=True)),
    ],
)
def test_stock_algorithms(algorithm, env_id, kwargs, tmp_path):
    """SB3's algorithms and EvalCallback run on it, and the same seed gives the same weights."""
    weights = []
    for _ in range(2):
        vec_env = TensorVecEnv(env_id, num_envs=4, device="cpu", max_episode_steps=15)
        eval_env = TensorVecEnv(env_id, num_envs=2, device="cpu", max_episode_steps=15)
        model = algorithm("MlpPolicy", vec_env, seed=1, device="cpu", **kwargs)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*Monitor.*")
            model.learn(160, callback=EvalCallback(eval_env, eval_freq=20, log_path=str(tmp_path), verbose=0))
        assert model.ep_info_buffer[0]["l"] <= 15
        assert np.load(tmp_path / "evaluations.npz")["ep_lengths"].max() <= 15
        weights.append(model.policy.state_dict())
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


def test_learning():
    """PPO learns CartPole on it, and is evaluated on gymnasium's."""
    vec_env = TensorVecEnv("TensorCartPole-v1", num_envs=8, device="cpu")
    model = PPO("MlpPolicy", vec_env, n_steps=64, batch_size=128, n_epochs=8, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(20_000)
    reward, _ = evaluate_policy(model, Monitor(gym.make("CartPole-v1")), n_eval_episodes=10)
    assert reward > 150
    reward, _ = evaluate_policy(model, vec_env, n_eval_episodes=16)
    assert reward > 150


def by_spec(**kwargs):
    """Make an environment as the zoo does."""
    return gym.spec("TensorCartPole-v1").make(**kwargs)


@pytest.mark.parametrize("env_id", ["TensorCartPole-v1", by_spec])
def test_functions_that_make_environments(env_id, tmp_path):
    """make_vec_env and the zoo, which bring functions that make single environments, get one batch with their arguments."""
    vec_env = make_vec_env(
        env_id,
        n_envs=5,
        seed=3,
        monitor_dir=str(tmp_path),
        env_kwargs=dict(max_episode_steps=7, mask_velocity=True),
        vec_env_cls=TensorVecEnv,
        vec_env_kwargs=dict(device="cpu", dtype="float64"),
    )
    assert isinstance(vec_env.batch, TensorCartPole)
    assert vec_env.generator is vec_env.batch.generator
    assert (vec_env.num_envs, vec_env.batch.max_episode_steps, vec_env.batch.dtype) == (5, 7, th.float64)
    assert vec_env.render_mode == (None if env_id is by_spec else "rgb_array")
    first = vec_env.reset()
    vec_env.seed(3)
    assert (vec_env.reset() == first).all()
    assert (first[:, [1, 3]] == 0).all()
    vec_env.close()


def test_time_limit_of_the_zoo(monkeypatch):
    """The zoo replaces gymnasium's TimeLimit by a subclass, which is understood, too."""
    monkeypatch.setattr(gym.wrappers, "TimeLimit", type("PatchedTimeLimit", (TimeLimit,), {}))
    vec_env = make_vec_env(
        "TensorCartPole-v1",
        2,
        env_kwargs=dict(max_episode_steps=7),
        vec_env_cls=TensorVecEnv,
        vec_env_kwargs=dict(device="cpu"),
    )
    assert vec_env.batch.max_episode_steps == 7


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [(lambda env: TransformReward(env, abs), "TransformReward"), (type("MyMonitor", (Monitor,), {}), "MyMonitor")],
)
def test_wrappers_of_single_environments(wrapper, name):
    """Those that have no form for a batch are refused, with the list of those that have one, whatever they inherit from."""
    with pytest.raises(
        ValueError, match=f"can't apply {name} .*only Monitor, TimeLimit, OrderEnforcing, PassiveEnvChecker are"
    ):
        make_vec_env("TensorCartPole-v1", 2, wrapper_class=wrapper, vec_env_cls=TensorVecEnv)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("TensorCartPol-v1", r"TensorCartPol.*Did you mean TensorCartPole-v1\?"),
        ("TensorCartPole-v7", "TensorCartPole"),
        ("MountainCarContinuous-v0", r"has no batched form .*Did you mean TensorMountainCarContinuous-v0\?"),
        ("CartPole-v1", r"does not say .*final_obs.*GymVectorVecEnv .*gym_vector.*Did you mean TensorCartPole-v1\?"),
        ([], "at least one environment"),
        ([CartPole], "CartPole was made without an id"),
    ],
)
def test_no_such_batch(env, message):
    """What can't be had in a batch is refused by name, with a close match if there is one."""
    with pytest.raises(ValueError, match=message):
        TensorVecEnv(env, device="cpu")


def test_batch_objects():
    """A batch that was made before is taken as it is, on its device, or copied to another one."""
    batch = TensorCartPole(3)
    vec_env = TensorVecEnv(batch, device="cpu")
    assert vec_env.batch is batch
    checked = TensorVecEnv(batch, device="cpu", check_finite="raise")
    for either in (vec_env, checked):
        either.seed(0)
    assert (vec_env.reset() == checked.reset()).all()
    assert checked.batch.sim is batch
    assert checked.generator is None
    assert vec_env.num_envs == checked.num_envs == 3


@pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")
def test_who_steps_tensors():
    """SB3's wrappers show methods of what is inside: they must not pass for VecEnvs of tensors."""
    vec_env = TensorVecEnv(CountingSim(), device="cpu")
    assert steps_tensors(vec_env)
    assert hasattr(VecMonitor(vec_env), "step_tensors")
    assert not steps_tensors(VecMonitor(vec_env))


@pytest.mark.parametrize("name", ["tensor", "gym_vector", "envpool"])
def test_registered(name):
    """The zoo finds them by their words."""
    found = registry.resolve("vec_envs", name, {})
    assert issubclass(found, TensorVecEnv)
    assert not issubclass(found, RayVecEnv)
