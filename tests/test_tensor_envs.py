"""Environments of tensors: physics, ends and resets are gymnasium's."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from tests.tensor_sims import Syncs, on_device
from zoo_plugins import envs
from zoo_plugins.envs.tensor_cart_pole import TensorCartPole
from zoo_plugins.envs.tensor_pendulum import TensorPendulum

TWINS = [f"{name}-v{version}" for name, version in envs.TENSOR_ENVS]
IDS = [f"Tensor{twin}" for twin in TWINS]
NO_VEL_IDS = [env_id.replace("-v", "NoVel-v") for env_id in IDS]


def skilled(env_id, state, rng):
    """Choose an action that reaches goals now and then: random, or along the velocity."""
    along = 1.0 if state[-1] + state[1] > 0 else -1.0
    if env_id.startswith("MountainCar"):
        return np.array([along * 1.5 if rng.random() < 0.9 else rng.uniform(-2, 2)], np.float32)
    if env_id.startswith("Acrobot"):
        return 2 if state[2] < 0 else 0
    if env_id.startswith("Pendulum"):
        return rng.uniform(-3, 3, 1).astype(np.float32)
    return int(state[2] + state[3] > 0) if rng.random() < 0.3 else int(rng.integers(2))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), (th.float32, 2e-5)])
@pytest.mark.parametrize("twin", TWINS)
def test_same_physics(twin, dtype, tolerance):
    """
    Observations, rewards and ends are those of gymnasium's environment, over 10,240 steps.

    States are set to gymnasium's before each step: the motion of an unstable pole amplifies the last bit of a number.
    """
    n_envs, n_steps = 32, 320
    batch = gym.make_vec(f"Tensor{twin}", n_envs, dtype=dtype)
    singles = [gym.make(twin).unwrapped for _ in range(n_envs)]
    rng = np.random.default_rng(0)
    ends = 0
    for env, single in enumerate(singles):
        single.reset(seed=env)
    for t in range(n_steps):
        states = np.array([np.asarray(single.state, np.float64) for single in singles])
        batch.set_state(states)
        actions = [skilled(twin, state, rng) for state in states]
        rewards, terminated = batch.move(th.as_tensor(np.array(actions)))
        observations = batch.observe()
        for env, single in enumerate(singles):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                observation, reward, over, _, _ = single.step(actions[env])
            np.testing.assert_allclose(observations[env].numpy(), observation, atol=tolerance)
            assert rewards[env].item() == pytest.approx(float(np.float32(reward)), abs=tolerance)
            if dtype == "float64":
                assert bool(terminated[env]) == over
            ends += over
            if over or t % 200 == 199:
                single.reset()
    assert ends > 20 or twin == "Pendulum-v1"


@pytest.mark.parametrize("env_id", IDS + NO_VEL_IDS)
def test_spaces_and_forms(env_id):
    """Both forms have the spaces of gymnasium's environment, and its time limit."""
    twin = gym.make(env_id.removeprefix("Tensor").replace("NoVel", ""))
    single, batch = gym.make(env_id), gym.make_vec(env_id, num_envs=3)
    assert single.observation_space == batch.single_observation_space == twin.observation_space
    assert single.action_space == batch.single_action_space == twin.action_space
    assert batch.observation_space.shape == (3, *twin.observation_space.shape)
    assert single.spec.max_episode_steps == batch.max_episode_steps == twin.spec.max_episode_steps
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert single.metadata["render_fps"] == batch.metadata["render_fps"] == twin.metadata["render_fps"]


@pytest.mark.parametrize("env_id", IDS + NO_VEL_IDS)
def test_checkers(env_id):
    """Gymnasium's and SB3's checkers find nothing that they do not find in gymnasium's environment."""
    found = []
    for name in (env_id, env_id.removeprefix("Tensor").replace("NoVel", "")):
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            check_env(gym.make(name, render_mode="rgb_array").unwrapped)
            sb3_check_env(gym.make(name))
        found.append({str(message.message) for message in messages})
    assert found[0] <= found[1]


@pytest.mark.parametrize("env_id", NO_VEL_IDS)
def test_hidden_velocities(env_id):
    """NoVel forms differ in the velocities only, which are 0: those that the zoo masks."""
    masked, full = (gym.make_vec(name, num_envs=5) for name in (env_id, env_id.replace("NoVel", "")))
    zoo = {"CartPole": [1, 3], "MountainCarContinuous": [1], "Pendulum": [2], "Acrobot": [4, 5]}
    hidden = zoo[env_id.removeprefix("Tensor").partition("NoVel")[0]]
    assert list(full.velocities) == hidden
    observations = masked.reset(seed=3)[0], full.reset(seed=3)[0]
    for _ in range(4):
        assert (observations[0][:, hidden] == 0).all()
        shown = [i for i in range(observations[0].shape[1]) if i not in hidden]
        assert (observations[0][:, shown] == observations[1][:, shown]).all()
        action = full.action_space.sample()
        observations = masked.step(action)[0], full.step(action)[0]


@pytest.mark.parametrize("env_id", IDS)
def test_one_copy_is_a_batch_of_one(env_id):
    """With the same seed, the single form and a batch of one copy tell the same."""
    single, batch = gym.make(env_id), gym.make_vec(env_id, num_envs=1)
    observation, _ = single.reset(seed=5)
    assert (observation == batch.reset(seed=5)[0][0].numpy()).all()
    single.action_space.seed(0)
    for _ in range(30):
        action = single.action_space.sample()
        observation, reward, terminated, truncated, _ = single.step(action)
        step = batch.step(np.array([action]))
        if terminated:
            break
        assert (observation == step[0][0].numpy()).all()
        assert (reward, terminated, truncated) == tuple(part.item() for part in step[1:4])


@pytest.mark.parametrize("env_id", IDS)
def test_seeds(env_id):
    """The same seed gives the same trajectories bit by bit; other objects are independent, and of global generators too."""

    def trajectory(seed):
        th.manual_seed(0)
        batch = gym.make_vec(env_id, num_envs=16, max_episode_steps=7)
        batch.action_space.seed(0)
        parts = [batch.reset(seed=seed)[0]]
        for _ in range(20):
            parts += batch.step(batch.action_space.sample())[:4]
        return parts

    assert all((left == right).all() for left, right in zip(trajectory(1), trajectory(1), strict=True))
    assert not (trajectory(1)[0] == trajectory(2)[0]).all()
    assert not (trajectory(None)[0] == trajectory(None)[0]).all()


@pytest.mark.parametrize("env_id", IDS)
def test_first_states(env_id):
    """First states have gymnasium's bounds, and those of options, at explicit and automatic resets."""
    options = {"x_init": 0.5, "y_init": 0.1} if "Pendulum" in env_id else {"low": 0.01, "high": 0.02}
    batch = gym.make_vec(env_id, num_envs=4000, max_episode_steps=1)
    single = gym.make(env_id.removeprefix("Tensor")).unwrapped
    drawn = {}
    for name, given_options in (("usual", {}), ("options", options)):
        batch.reset(seed=0, options=given_options)
        theirs = np.array([_reset_state(single, given_options) for _ in range(1000)])
        ours = batch.state.t().numpy()
        for bound in (np.min, np.max):
            atol = 0.05 * np.ptp(theirs, axis=0).max() + 1e-7
            np.testing.assert_allclose(bound(ours, axis=0), bound(theirs, axis=0), atol=atol)
        drawn[name] = ours.copy()
    batch.step(np.stack([batch.single_action_space.sample()] * 4000))
    automatic = batch.state.t().numpy()
    np.testing.assert_allclose(automatic.min(0), drawn["usual"].min(0), atol=0.02 * np.ptp(automatic))
    assert not (automatic == drawn["usual"]).all()


def _reset_state(single, options):
    single.reset(options=options or None)
    return np.asarray(single.state, np.float64)


def test_bad_options():
    """Bounds that are no bounds are refused."""
    with pytest.raises(ValueError, match=r"low 1\.0 is above high 0\.05"):
        TensorCartPole(2).reset(options={"low": 1})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_arithmetic_of_episodes(data):
    """Whatever ends, and when: returns, lengths, flags and both observations are those of single episodes."""
    n_envs = data.draw(st.integers(1, 4))
    limit = data.draw(st.one_of(st.none(), st.integers(1, 6)))
    batch = TensorPendulum(n_envs, max_episode_steps=limit)
    rewards, ends = th.zeros(n_envs), th.zeros(n_envs, dtype=th.bool)

    def move(actions):
        batch.state += 1
        return rewards.clone(), ends.clone()

    batch.move = move
    batch._observe = lambda: batch.state.t().clone()
    batch._draw = lambda states, options: states.fill_(-100)
    batch.reset()
    expected = [[-100.0, 0.0, 0] for _ in range(n_envs)]
    for _ in range(data.draw(st.integers(1, 15))):
        rewards[:] = th.tensor(data.draw(st.lists(st.integers(-3, 3), min_size=n_envs, max_size=n_envs)))
        ends[:] = th.tensor(data.draw(st.lists(st.booleans(), min_size=n_envs, max_size=n_envs)))
        step = batch.step_tensors(th.zeros(n_envs, 1))
        for env, episode in enumerate(expected):
            episode[0] += 1
            episode[1] += rewards[env].item()
            episode[2] += 1
            truncated = limit is not None and episode[2] >= limit and not ends[env]
            assert (step.terminated[env], step.truncated[env]) == (ends[env], truncated)
            assert step.final_obs[env, 0] == episode[0]
            assert (step.episode_returns[env], step.episode_lengths[env]) == (episode[1], episode[2])
            if ends[env] or truncated:
                episode[:] = [-100.0, 0.0, 0]
            assert step.obs[env, 0] == episode[0]


@pytest.mark.parametrize("env_id", IDS + NO_VEL_IDS)
def test_nothing_is_shared(env_id):
    """What a step returns shares memory with nothing else, and is not changed by later steps."""
    batch = gym.make_vec(env_id, num_envs=4, max_episode_steps=2)
    batch.action_space.seed(0)
    actions = th.as_tensor(batch.action_space.sample())
    given_actions = actions.clone()
    observations = batch.reset(seed=0)[0]
    own = [value for value in vars(batch).values() if isinstance(value, th.Tensor)]
    steps = [batch.step_tensors(actions) for _ in range(3)]
    tensors = [observations, *(tensor for step in steps for tensor in step if tensor is not None)]
    pointers = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    assert len(set(pointers)) == len(pointers)
    assert not set(pointers) & {tensor.untyped_storage().data_ptr() for tensor in own}
    kept = [tensor.clone() for tensor in tensors]
    for _ in range(3):
        batch.step_tensors(actions)
    assert all((left == right).all() for left, right in zip(kept, tensors, strict=True))
    assert (actions == given_actions).all()


@pytest.mark.parametrize(("env_id", "n_operations"), [*zip(IDS, [35, 40, 40, 165], strict=True)])
def test_no_waiting_and_few_operations(env_id, n_operations):
    """A step waits for no device, never asks for NumPy, and is a few operations."""
    batch = gym.make_vec(env_id, num_envs=4, max_episode_steps=2)
    batch.reset(seed=0)
    actions = on_device(th.as_tensor(batch.action_space.sample()))
    for _ in range(3):
        with Syncs() as syncs:
            batch.step_tensors(actions)
        assert syncs.waiting == []
        assert len(syncs.names) <= n_operations


@pytest.mark.parametrize("env_id", IDS)
def test_same_images(env_id):
    """Images are gymnasium's of the same state."""
    pytest.importorskip("pygame")
    batch = gym.make_vec(env_id, num_envs=3, render_mode="rgb_array", dtype="float64")
    batch.reset(seed=0)
    for _ in range(5):
        batch.step(np.stack([batch.single_action_space.sample()] * 3))
    theirs = gym.make(env_id.removeprefix("Tensor"), render_mode="rgb_array").unwrapped
    theirs.reset()
    images = batch.render()
    assert len(images) == 3
    assert len(batch.render(2)) == 2
    for env, image in enumerate(images):
        theirs.state = batch.state[:, env].numpy().copy()
        theirs.last_u = float(getattr(batch, "_torque", batch.state)[env].mean()) if "Pendulum" in env_id else None
        assert (image == theirs.render()).all()
    batch.close()


def test_no_images():
    """Without a render mode there are none, and no window is opened."""
    batch = TensorCartPole(2)
    assert batch.render() is None
    batch.close()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 0}, "num_envs: 0 is no positive number"),
        ({"max_episode_steps": 0}, "max_episode_steps: 0 is neither"),
        ({"dtype": "float16"}, "dtype: 'float16' is neither float32 nor float64"),
        ({"render_mode": "ansi"}, "render_mode: 'ansi' is none of rgb_array, human"),
    ],
)
def test_bad_arguments(kwargs, message):
    """Arguments that make no sense are refused."""
    with pytest.raises(ValueError, match=message):
        TensorCartPole(**kwargs)
