"""RayVecEnv is a VecEnv: the same trajectories as DummyVecEnv, and SB3's contract."""

import functools
import warnings
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.ray_envs import SPACES, LargeEnv, OrderedEnv, RandomEnv
from zoo_plugins import RayVecEnv

pytestmark = pytest.mark.usefixtures("local_ray")
ZEROS = np.zeros((3, 2), np.float32)


@pytest.fixture(scope="module")
def ordered(local_ray):
    """Environments 0 and 1 in one worker, environment 2 in another; wrapped, and able to render."""
    env_fns = [functools.partial(_wrapped, env_id) for env_id in range(3)]
    vec_env = RayVecEnv(env_fns, envs_per_worker=2)
    yield vec_env
    vec_env.close()


def _wrapped(env_id):
    return TimeLimit(OrderedEnv(env_id, render_mode="rgb_array"), 100)


def same(left, right):
    """Compare nested observations or infos, types of arrays included."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return all(same(left[key], right[key]) for key in left if key != "t" or not isinstance(left[key], float))
    if isinstance(left, list | tuple):
        assert len(left) == len(right)
        return all(same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.flags.writeable
        np.testing.assert_array_equal(left, right)
        return True
    return left == right


def assert_same_trajectories(env_fns, envs_per_worker, n_steps=60):
    """Step a RayVecEnv and a DummyVecEnv with the same seed and actions."""
    with closing(RayVecEnv(env_fns, envs_per_worker=envs_per_worker)) as ours, closing(DummyVecEnv(env_fns)) as theirs:
        ours.action_space.seed(1)
        assert ours.seed(7) == theirs.seed(7)
        assert same(ours.reset(), theirs.reset())
        for _ in range(n_steps):
            actions = [ours.action_space.sample() for _ in env_fns]
            if ours.action_space.shape is not None:
                actions = np.array(actions, ours.action_space.dtype)
            left, right = ours.step(actions), theirs.step(actions)
            assert same(left, right)
            assert same(ours.reset_infos, theirs.reset_infos)


@pytest.mark.parametrize(
    ("space", "action_space", "n_envs", "envs_per_worker"),
    [
        ("box", None, 1, 1),
        ("box64", "multi_binary", 3, 3),
        ("dict", None, 3, 2),
        ("tuple", None, 3, 3),
        ("discrete", "image", 2, 1),
        ("image", "multi_discrete", 7, 4),
        ("multi_discrete", "box64", 2, 2),
    ],
)
def test_same_as_dummy_vec_env(space, action_space, n_envs, envs_per_worker):
    """Observations, rewards, ends, infos and infos of resets are those of a DummyVecEnv, types included."""
    assert_same_trajectories([lambda: RandomEnv(space, action_space)] * n_envs, envs_per_worker)


def test_same_as_dummy_vec_env_with_monitor():
    """The same with SB3's usual wrapper and gymnasium's own."""
    assert_same_trajectories([lambda: Monitor(gym.make("CartPole-v1", max_episode_steps=20))] * 3, envs_per_worker=2)


def test_seeds_options_and_reset_infos(ordered):
    """Seeds and options are used once, by the next explicit reset; automatic resets have neither."""
    dummy = DummyVecEnv([functools.partial(_wrapped, env_id) for env_id in range(3)])
    told = []
    for vec_env in (ordered, dummy):
        vec_env.reset()
        vec_env.set_options({"k": 1})
        assert vec_env.seed(7) == [7, 8, 9]
        vec_env.reset()
        told.append([list(vec_env.reset_infos)])
        vec_env.set_options([{"k": 2}, {}, {"k": 3}])
        for _ in range(5):
            vec_env.step(ZEROS.copy())
        told[-1].append(list(vec_env.reset_infos))
        vec_env.reset()
        told[-1].append(list(vec_env.reset_infos))
    assert told[0] == told[1]
    assert told[0][0] == [{"seed": 7 + env, "options": {"k": 1}} for env in range(3)]
    assert told[0][1] == [{"seed": None, "options": None}] * 3
    assert [info["options"] for info in told[0][2]] == [{"k": 2}, None, {"k": 3}]


def test_arrays_are_the_callers(ordered):
    """Environments may change their action and what they were sent; the caller may change all it got, and keeps it."""
    ordered.reset()
    actions = np.full((3, 2), 0.8, np.float32)
    target = np.zeros(2)
    ordered.env_method("set_wrapper_attr", "target", target)
    observations, rewards, dones, infos = ordered.step(actions)
    assert (actions == np.float32(0.8)).all()
    assert (target == 0).all()
    np.testing.assert_array_equal(ordered.get_attr("target"), np.ones((3, 2)))
    np.testing.assert_array_equal(observations[:, 2], [1, 1, 1])
    rewards *= 0.1
    observations[0] = 0
    dones[:] = True
    kept = observations.copy()
    ordered.step(actions * 0.5)
    np.testing.assert_array_equal(observations, kept)
    # An action that an environment keeps is not overwritten by the next one
    for of_env in ordered.get_attr("actions"):
        np.testing.assert_allclose(of_env[-2:], [[0.4, 0.4], [0.2, 0.2]], rtol=1e-6)
    for _ in range(3):
        observations, _, dones, infos = ordered.step(actions)
    assert dones.all()
    for env, info in enumerate(infos):
        # The environment has one array, which shows the first observation by now
        assert info["terminal_observation"].tolist() == [env, observations[env, 1] - 1, 5]
        info["terminal_observation"] += 1
    assert ordered.step(actions)[3] == [{"TimeLimit.truncated": False}] * 3


def test_attributes_and_methods(ordered):
    """They are found through wrappers, for any choice of environments, in the order of the choice."""
    assert ordered.get_attr("length") == [5, 5, 5]
    assert ordered.env_method("order", "0", at="nothing") == [None] * 3
    assert [ids[0] for ids in ordered.get_attr("observation", indices=[-1, 0])] == [2, 0]
    pids = ordered.env_method("pid")
    assert pids[0] == pids[1] != pids[2]
    assert ordered.env_method("pid", indices=2) == [pids[2]]
    assert ordered.has_attr("target")
    assert not ordered.has_attr("tarjet")
    ordered.set_attr("difficulty", 3, indices=[1])
    assert not ordered.has_attr("difficulty")
    assert ordered.get_attr("difficulty", indices=1) == [3]
    with pytest.raises(AttributeError, match=r"environment 0 .*tarjet"):
        ordered.get_attr("tarjet")
    with pytest.raises(IndexError):
        ordered.get_attr("target", indices=3)
    assert ordered.env_is_wrapped(TimeLimit) == [True] * 3
    assert ordered.env_is_wrapped(Monitor, indices=[0]) == [False]


def test_images(ordered):
    """Each environment renders; render() tiles the images."""
    ordered.reset()
    assert [image[0, 0, 0] for image in ordered.get_images()] == [0, 1, 2]
    assert ordered.render_mode == "rgb_array"
    assert ordered.render("rgb_array").shape == (8, 12, 3)
    with pytest.warns(UserWarning, match="render mode"):
        assert ordered.render("human_or_so") is None


def test_no_render_mode():
    """Without a render mode there are no images, and a warning."""
    vec_env = RayVecEnv([OrderedEnv] * 2)
    assert vec_env.render_mode is None
    with pytest.warns(UserWarning, match="render mode is None"):
        assert vec_env.get_images() == [None, None]
    vec_env.close()


def test_actions_of_other_types(ordered):
    """Lists, and arrays of another type, arrive as they are; a wrong number of them is refused."""
    ordered.reset()
    ordered.step([np.full(2, 0.5), np.full(2, 0.5, np.float16), np.full(2, 0.5, np.float32)])
    types = [actions[-1].dtype for actions in ordered.get_attr("actions")]
    assert types == [np.float64, np.float16, np.float32]
    with pytest.raises(ValueError, match="2 actions for 3 environments"):
        ordered.step(ZEROS[:2])
    ordered.step(ZEROS)


def test_calls_out_of_turn():
    """What can't be answered is refused, and closing twice, or while waiting, is not."""
    vec_env = RayVecEnv([OrderedEnv] * 2)
    vec_env.reset()
    with pytest.raises(RuntimeError, match="without step_async"):
        vec_env.step_wait()
    vec_env.step_async(ZEROS[:2])
    with pytest.raises(RuntimeError, match="step_wait"):
        vec_env.get_attr("target")
    assert vec_env.reset()[:, 2].tolist() == [0, 0]  # gives up the step
    assert vec_env.step(ZEROS[:2])[0][:, 2].tolist() == [1, 1]
    vec_env.step_async(ZEROS[:2])
    vec_env.close()
    vec_env.close()
    with pytest.raises(RuntimeError, match="closed"):
        vec_env.reset()


def test_one_message_each_way(ordered, monkeypatch):
    """A step is one message to each worker and one back, of as many bytes as they have to have."""
    ordered.reset()
    counted = {}

    class Counting:
        def __init__(self, connected):
            self._connected = connected

        def sendall(self, data):
            counted.setdefault("sent", []).append(len(data))
            return self._connected.sendall(data)

        def recvmsg_into(self, buffers, ancillary, flags):
            received = self._connected.recvmsg_into(buffers, ancillary, flags)
            counted.setdefault("received", []).append(received[0])
            return received

    for worker in ordered._workers:
        monkeypatch.setattr(worker.channel, "_socket", Counting(worker.channel._socket))
    ordered.step(ZEROS)
    # Header; two float32 actions; three float32 of an observation, a float32 reward, two bools
    assert counted == {"sent": [8 + 2 * 8, 8 + 8], "received": [8 + 2 * 18, 8 + 18]}


@pytest.mark.parametrize("envs_per_worker", [0, "all", 1.5, None])
def test_bad_envs_per_worker(envs_per_worker):
    """A number of environments that makes no sense is refused."""
    with pytest.raises(ValueError, match="envs_per_worker"):
        RayVecEnv([OrderedEnv], envs_per_worker=envs_per_worker)


def test_other_bad_arguments():
    """So are others, before anything is started."""
    with pytest.raises(ValueError, match="placement: 'SPRED'"):
        RayVecEnv([OrderedEnv], placement="SPRED")
    with pytest.raises(ValueError, match="at least one"):
        RayVecEnv([])
    with pytest.raises(ValueError, match="resources_per_worker"):
        RayVecEnv([OrderedEnv], resources_per_worker={"num_cpus": 0})


def test_unequal_spaces():
    """Environments of one VecEnv have one space."""
    with pytest.raises(ValueError, match="other spaces"):
        RayVecEnv([lambda: RandomEnv("box"), lambda: RandomEnv("box64")], envs_per_worker=1)


def test_nested_spaces_are_refused():
    """As SB3 refuses them."""

    def make():
        env = RandomEnv("box")
        env.observation_space = gym.spaces.Dict(inner=SPACES["dict"])
        return env

    with pytest.raises(NotImplementedError, match="not arrays of a fixed shape"):
        RayVecEnv([make])


@pytest.mark.slow
def test_large_observations(local_ray):
    """Those of two environments do not fit into Ray's object store, through which nothing passes."""
    assert local_ray.cluster_resources()["object_store_memory"] < 2 * 4 * LargeEnv.SIZE
    first = np.arange(LargeEnv.SIZE, dtype=np.float32)
    with closing(RayVecEnv([LargeEnv] * 2, envs_per_worker=1)) as vec_env:
        observations = [vec_env.reset(), vec_env.step(np.zeros(2, np.int64))[0]]
        last, _, dones, infos = vec_env.step(np.zeros(2, np.int64))
    assert dones.all()
    for t, seen in enumerate([*observations, [info["terminal_observation"] for info in infos]]):
        for of_env in seen:
            np.testing.assert_array_equal(of_env, first + np.float32(t))
    np.testing.assert_array_equal(last, [first, first])


def test_learning():
    """PPO with normalisation learns the same as with a DummyVecEnv."""
    weights = []
    for vec_env_class in (RayVecEnv, DummyVecEnv):
        vec_env = VecNormalize(make_vec_env("CartPole-v1", n_envs=2, seed=3, vec_env_cls=vec_env_class))
        model = PPO("MlpPolicy", vec_env, n_steps=32, batch_size=32, n_epochs=2, seed=3, device="cpu").learn(128)
        weights.append(model.policy.state_dict())
        vec_env.close()
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])


def test_learning_with_hindsight():
    """HER asks environments for rewards, through their wrappers."""
    env_fns = [lambda: Monitor(BitFlippingEnv(n_bits=4, continuous=True))] * 2
    vec_env = RayVecEnv(env_fns, envs_per_worker=2)
    model = SAC(
        "MultiInputPolicy", vec_env, replay_buffer_class=HerReplayBuffer, learning_starts=20, buffer_size=200, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(60)
    vec_env.close()
