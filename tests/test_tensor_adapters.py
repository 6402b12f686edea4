"""Gymnasium's vector environments and EnvPool as VecEnvs of tensors."""

import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.ray_envs import OrderedEnv, RandomEnv
from zoo_plugins import EnvPoolVecEnv, GymVectorVecEnv
from zoo_plugins.envs.tensor_cart_pole import TensorCartPole


def cart_pole():
    return Monitor(gym.make("CartPole-v1", max_episode_steps=20))


def same(left, right):
    """Compare nested observations and infos, with the types of arrays."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and (left == right).all()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    "make",
    [
        cart_pole,
        lambda: Monitor(gym.make("Pendulum-v1", max_episode_steps=5)),
        lambda: Monitor(gym.make("Acrobot-v1", max_episode_steps=7)),
    ],
)
def test_same_as_dummy_vec_env(make, mode):
    """Functions that make environments give the trajectories of a DummyVecEnv."""
    ours, theirs = GymVectorVecEnv([make] * 3, vectorization_mode=mode, device="cpu"), DummyVecEnv([make] * 3)
    ours.action_space.seed(1)
    assert ours.seed(7) == theirs.seed(7)
    assert same(ours.reset(), theirs.reset())
    for _ in range(40):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        left, right = ours.step(actions), theirs.step(actions)
        assert all(same(*pair) for pair in zip(left[:3], right[:3], strict=True))
        for info, expected in zip(left[3], right[3], strict=True):
            if "episode" in expected:
                assert expected.pop("episode")["l"] == info.pop("episode")["l"]
            assert same(info, expected)
    ours.close()


@pytest.mark.parametrize("space", ["dict", "image", "box64"])
def test_spaces(space):
    """Observations of other spaces, and last ones among them, are a DummyVecEnv's; so are infos that only some have."""
    makes = [lambda: RandomEnv(space, "box")] * 3
    ours = GymVectorVecEnv(makes, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = DummyVecEnv(makes)
    ours.seed(1)
    theirs.seed(1)
    assert same(ours.reset(), theirs.reset())
    assert ours.reset_infos == theirs.reset_infos
    for _ in range(30):
        actions = np.zeros((3, 2), np.float32)
        left, right = ours.step(actions), theirs.step(actions)
        assert same(left[0], right[0])
        assert ours.reset_infos == theirs.reset_infos
        for info, expected in zip(left[3], right[3], strict=True):
            assert same(info.get("terminal_observation", 0), expected.get("terminal_observation", 0))
            assert same(info.get("array", 0), expected.get("array", 0))


def episodes(mode):
    """Run four episodes with a kind of automatic reset: when they end, their length, and their last observation."""
    vec_env = GymVectorVecEnv(SyncVectorEnv([cart_pole] * 2, autoreset_mode=mode), device="cpu")
    vec_env.seed(3)
    vec_env.reset_tensors()
    ends, n_steps = [], 0
    while len(ends) < 4:
        step = vec_env.step_tensors(th.ones(2, dtype=th.int64))
        n_steps += int(step.valid is None or step.valid[0])
        if step.terminated[0]:
            ends.append((n_steps, step.episode_lengths[0].item(), step.final_obs[0].tolist()))
    assert (step.valid is not None) == (mode is AutoresetMode.NEXT_STEP)
    return ends


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_all_automatic_resets(mode):
    """The same episodes come from each kind of automatic reset; steps that only reset do not count."""
    expected = episodes(AutoresetMode.SAME_STEP)
    assert all(abs(last[2]) > 0.2 for *_, last in expected)
    assert episodes(mode) == expected


def test_registered_vector_environment():
    """Gymnasium's own CartPole of many spends steps on resets: tensors leave them out, and SB3 is refused."""
    vec_env = GymVectorVecEnv("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point", device="cpu")
    vec_env.seed(0)
    vec_env.reset_tensors()
    lengths, counted, over = [], np.zeros(4, int), th.zeros(4, dtype=th.bool)
    for _ in range(60):
        step = vec_env.step_tensors(th.ones(4, dtype=th.int64))
        assert (step.valid == ~over).all()
        assert (step.rewards == step.valid.float()).all()
        over = step.terminated | step.truncated
        counted += step.valid.numpy()
        for env in over.nonzero().flatten().tolist():
            lengths.append((counted[env], step.episode_lengths[env].item()))
            counted[env] = 0
    assert len(lengths) > 15
    assert all(ours == told for ours, told in lengths)
    with pytest.raises(ValueError, match=r"CartPoleVectorEnv spends a step .*choose SAME_STEP"):
        vec_env.reset()


def test_made_by_sb3():
    """make_vec_env makes it, with wrappers for single environments; the registered form takes those that it has itself."""
    vec_env = make_vec_env(
        "CartPole-v1",
        3,
        wrapper_class=lambda env: TransformObservation(env, lambda obs: obs * 0, env.observation_space),
        vec_env_cls=GymVectorVecEnv,
        vec_env_kwargs=dict(device="cpu"),
    )
    assert (vec_env.reset() == 0).all()
    assert len(vec_env.get_images()) == 3
    assert isinstance(vec_env.batch.sim.unwrapped, SyncVectorEnv)
    kwargs = dict(device="cpu", vectorization_mode="vector_entry_point")
    vec_env = make_vec_env("TensorCartPole-v1", 3, vec_env_cls=GymVectorVecEnv, vec_env_kwargs=kwargs)
    assert isinstance(vec_env.batch.sim.unwrapped, TensorCartPole)
    assert vec_env.reset().shape == (3, 4)


def test_attributes_and_methods_of_environments():
    """Attributes and methods are those of each environment, as far as its vector environment can tell."""
    vec_env = GymVectorVecEnv([lambda env=env: OrderedEnv(env) for env in range(3)], device="cpu")
    vec_env.reset()
    assert [obs[0] for obs in vec_env.get_attr("observation", indices=[2, 0])] == [2, 0]
    vec_env.env_method("order", "raise", at="nothing", indices=1)
    assert [len(orders) for orders in vec_env.get_attr("orders")] == [0, 1, 0]
    assert vec_env.get_attr("length") == [5, 5, 5]
    processes = GymVectorVecEnv([OrderedEnv] * 2, vectorization_mode="async", device="cpu")
    assert isinstance(processes.batch.sim.unwrapped, AsyncVectorEnv)
    assert len(set(processes.env_method("pid"))) == 2
    with pytest.raises(ValueError, match="pid: environments in processes are called all together"):
        processes.env_method("pid", indices=0)
    processes.close()


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ("CartPole-v1", dict(vectorization_mode="thread"), "'thread' is none of sync, async, vector_entry_point"),
        ([cart_pole], dict(g=9), "env_fns make environments themselves: they can't be given g"),
        (SyncVectorEnv([cart_pole]), dict(g=9), "is made already: it can't be given g"),
        ("Pendulum-v1", dict(vectorization_mode="vector_entry_point"), "Pendulum-v1 has no batched form"),
    ],
)
def test_bad_arguments(env, kwargs, message):
    """Arguments that mean nothing are refused."""
    with pytest.raises(ValueError, match=message):
        GymVectorVecEnv(env, device="cpu", **kwargs)


def test_learning_in_numpy():
    """Stock SAC learns on a gymnasium id."""
    vec_env = GymVectorVecEnv("Pendulum-v1", num_envs=2, device="cpu")
    SAC("MlpPolicy", vec_env, learning_starts=20, batch_size=8, device="cpu").learn(50)


@pytest.fixture(scope="module")
def envpool():
    """EnvPool, if there is one for this platform."""
    return pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'zoo-plugins[envpool]'")


class Outside:
    """Gymnasium's CartPole, to tell which state follows an observation."""

    def __init__(self):
        self.env = gym.make("CartPole-v1").unwrapped
        self.env.reset()

    def after(self, obs, action):
        self.env.state = np.asarray(obs, np.float64)
        self.env.steps_beyond_terminated = None
        return self.env.step(int(action))[:3]


def test_envpool_itself(envpool):
    """What the adapter leans on: the step that ends an episode returns its last observation, and a reset may follow it."""
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=0, max_episode_steps=500)
    before, _ = pool.reset()
    outside, ended = Outside(), 0
    while ended < 5:
        before = before.copy()
        obs, rewards, terminated, truncated, info = pool.step(np.ones(3, np.int32))
        np.testing.assert_array_equal(info["env_id"], [0, 1, 2])
        for env in range(3):
            expected, reward, over = outside.after(before[env], 1)
            np.testing.assert_allclose(obs[env], expected, atol=1e-5)
            assert (rewards[env], terminated[env], truncated[env]) == (reward, over, False)
        before = obs.copy()
        for env in np.flatnonzero(terminated):
            fresh, info = pool.reset(np.array([env], np.int32))
            assert info["env_id"] == [env]
            assert (np.abs(fresh) <= 0.05).all()
            before[env] = fresh[0]
            ended += 1
    pool.close()


def test_envpool_episodes(envpool):
    """Each transition is one of CartPole, none is spent on a reset, and last observations are the last."""
    vec_env = EnvPoolVecEnv("CartPole-v1", num_envs=4, device="cpu", max_episode_steps=12, check_finite="reset")
    assert vec_env.get_attr("max_episode_steps") == [12] * 4
    vec_env.seed(3)
    outside, lengths = Outside(), []
    before = vec_env.reset()
    counted = np.zeros(4, int)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(2, size=4)
        obs, rewards, dones, infos = vec_env.step(actions)
        counted += 1
        for env in range(4):
            expected, reward, over = outside.after(before[env], actions[env])
            last = infos[env]["terminal_observation"] if dones[env] else obs[env]
            np.testing.assert_allclose(last, expected, atol=1e-5)
            assert rewards[env] == reward
            assert dones[env] == (over or counted[env] == 12)
            # EnvPool tells no terminal state of a step that also is the last one
            assert infos[env]["TimeLimit.truncated"] == (counted[env] == 12)
            if dones[env]:
                assert infos[env]["episode"]["l"] == counted[env]
                assert (np.abs(obs[env]) <= 0.05).all()
                lengths.append(counted[env])
                counted[env] = 0
        before = obs
    assert len(lengths) > 15
    vec_env.close()


def test_envpool_seeds(envpool):
    """Seeds make runs repeatable, and options are refused."""
    vec_env = EnvPoolVecEnv("Pendulum-v1", num_envs=3, device="cpu")
    runs = []
    for seed in (1, 1, 2**40):
        vec_env.seed(seed)
        runs.append([vec_env.reset(), *(vec_env.step(np.zeros((3, 1), np.float32))[0] for _ in range(3))])
    assert all((left == right).all() for left, right in zip(runs[0], runs[1], strict=True))
    assert (runs[0][0] != runs[2][0]).any()
    vec_env.set_options({"low": 0})
    with pytest.raises(ValueError, match="EnvPool's environments have no options: low"):
        vec_env.reset()


def test_envpool_made_by_sb3(envpool):
    """The zoo's way to name an environment finds EnvPool's of the same name; stock PPO learns on it."""
    vec_env = make_vec_env(
        lambda **kwargs: gym.make("CartPole-v1", max_episode_steps=9, **kwargs),
        n_envs=4,
        seed=2,
        vec_env_cls=EnvPoolVecEnv,
        vec_env_kwargs=dict(device="cpu", num_threads=1),
    )
    model = PPO("MlpPolicy", vec_env, n_steps=32, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(256)
    assert max(info["l"] for info in model.ep_info_buffer) == 9


def test_no_such_task(envpool):
    """A name that EnvPool does not know, and a batch that is none, are refused."""
    with pytest.raises(ValueError, match="EnvPool has no task 'CartPol-v1'"):
        EnvPoolVecEnv("CartPol-v1", device="cpu")
    with pytest.raises(ValueError, match="batch_size: all environments are stepped together"):
        EnvPoolVecEnv("CartPole-v1", num_envs=4, device="cpu", batch_size=2)


def test_envpool_is_missing(monkeypatch):
    """What to install is said."""
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"EnvPool is not installed: pip install 'zoo-plugins\[envpool\]'"):
        EnvPoolVecEnv("CartPole-v1", device="cpu")
