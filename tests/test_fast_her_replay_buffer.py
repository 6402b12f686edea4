"""FastHerReplayBuffer keeps and samples what SB3's HerReplayBuffer does, and what that should do."""

import copy
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.stats import chi2_contingency
from stable_baselines3 import DQN, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from tests.goal_envs import GoalEnv, make_goal_envs
from zoo_plugins import FastHerReplayBuffer

KINDS = [dict(), dict(optimize_memory_usage=True), dict(storage="device"), dict(storage="device", optimize_memory_usage=True)]
STRATEGIES = ["future", "final", "episode"]


def tiny() -> dict[str, Any]:
    """A dict of its own for each model, since SAC writes into it."""
    return dict(policy_kwargs=dict(net_arch=[4]), device="cpu")


def make_buffer(env: VecEnv, buffer_size: int = 90, cls: Any = FastHerReplayBuffer, **kwargs: Any) -> Any:
    return cls(buffer_size, env.observation_space, env.action_space, env, device="cpu", n_envs=env.num_envs, **kwargs)


def fill(buffers: Any, env: VecEnv, n_steps: int) -> None:
    """Random actions, and what SB3 makes of terminal observations."""
    inner = env.venv if isinstance(env, VecNormalize) else env
    obs = inner.reset()
    for _ in range(n_steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        new_obs, rewards, dones, infos = inner.step(actions)
        next_obs = copy.deepcopy(new_obs)
        for i in np.flatnonzero(dones):
            for key in next_obs:
                next_obs[key][i] = infos[i]["terminal_observation"][key]
        for buffer in buffers:
            buffer.add(copy.deepcopy(obs), next_obs, actions, rewards, dones, infos)
        obs = new_obs


def valid_rows(buffer: HerReplayBuffer) -> list[int]:
    return np.flatnonzero(buffer.ep_length > 0).tolist()


def drawable_rows(buffer: FastHerReplayBuffer) -> list[int]:
    return sorted(int(row) for rows in buffer._episodes.episodes() for row in rows)


def decode(samples: Any) -> tuple[np.ndarray, ...]:
    """Environment, episode and step of each transition, and the same of its goal; -1 for the environment's own goal."""
    env, episode, t = samples.observations["observation"].numpy().astype(int).T
    goal = samples.observations["desired_goal"].numpy().astype(int)
    return env, episode, t, goal[:, 0], goal[:, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_come_from_the_same_episode_whatever_its_length_and_place(strategy, kind):
    env = make_goal_envs([3, 7, 11])
    buffer = make_buffer(env, goal_selection_strategy=strategy, **kind)
    fill([buffer], env, 200)
    assert buffer.size() == 30
    for _ in range(20):
        samples = buffer.sample(64)
        env_idx, episode, t, goal_episode, goal_t = decode(samples)
        virtual = goal_episode >= 0
        assert virtual.sum() == int(0.8 * 64)
        assert not virtual[: 64 - int(0.8 * 64)].any()
        np.testing.assert_array_equal(goal_episode[virtual], (100 * env_idx + episode)[virtual])
        length = np.array([3, 7, 11])[env_idx]
        assert (goal_t[virtual] <= length[virtual]).all()
        if strategy == "future":
            assert (goal_t > t)[virtual].all()
        if strategy == "final":
            np.testing.assert_array_equal(goal_t[virtual], length[virtual])
        achieved = samples.next_observations["achieved_goal"].numpy()
        np.testing.assert_array_equal(achieved, np.stack([100 * env_idx + episode, t + 1], axis=1))
        np.testing.assert_array_equal(samples.next_observations["desired_goal"], samples.observations["desired_goal"])
        reached = (goal_t == t + 1) & virtual
        np.testing.assert_array_equal(samples.rewards.numpy().ravel(), np.where(reached, 0, -1))
        assert not samples.dones.any()  # all of them are timeouts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lengths", [[4], [3, 7, (2, 11, 5)]])
def test_samples_have_the_law_of_sb3(lengths, strategy):
    np.random.seed(1)
    env = make_goal_envs(lengths)
    ours, theirs = make_buffer(env), make_buffer(env, cls=HerReplayBuffer)
    for buffer in (ours, theirs):
        buffer.her_ratio = 0.8
        buffer.goal_selection_strategy = make_buffer(env, goal_selection_strategy=strategy).goal_selection_strategy
    fill([ours, theirs], env, 140)

    def count(buffer: Any) -> tuple[Counter, Counter, Counter]:
        transitions, goals, dones = Counter(), Counter(), Counter()
        for _ in range(40):
            samples = buffer.sample(500)
            env_idx, episode, t, goal_episode, goal_t = decode(samples)
            transitions.update(zip(env_idx, episode, t, strict=True))
            goals.update(zip(env_idx, t, np.where(goal_episode < 0, -1, goal_t), strict=True))
            dones.update(zip(samples.dones.ravel().tolist(), samples.rewards.ravel().tolist(), strict=True))
        return transitions, goals, dones

    for a, b in zip(count(ours), count(theirs), strict=True):
        assert a.keys() == b.keys()
        if len(a) > 1:
            table = np.array([[a[key], b[key]] for key in a])
            assert chi2_contingency(table[table.sum(axis=1) > 10]).pvalue > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_sampled_is_what_sb3_would_sample_after_every_step(kind):
    env = make_goal_envs([3, (9, 1, 4), 11])
    ours, theirs = make_buffer(env, **kind), make_buffer(env, cls=HerReplayBuffer)
    obs = env.reset()
    for _ in range(300):
        new_obs, rewards, dones, infos = env.step(np.zeros((3, 1)))
        next_obs = copy.deepcopy(new_obs)
        for i in np.flatnonzero(dones):
            for key in next_obs:
                next_obs[key][i] = infos[i]["terminal_observation"][key]
        for buffer in (ours, theirs):
            buffer.add(obs, next_obs, np.zeros((3, 1)), rewards, dones, infos)
        assert drawable_rows(ours) == valid_rows(theirs) == valid_rows(ours)
        assert ours.n_sampleable == len(valid_rows(theirs))
        np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
        obs = new_obs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "env_kwargs", [dict(), dict(discrete_obs_space=True), dict(image_obs_space=True), dict(continuous=True)]
)
def test_samples_of_all_goal_spaces_are_those_of_sb3(env_kwargs, kind):
    """Given the same transitions and goals, all values, shapes and dtypes are SB3's."""
    env = make_vec_env(BitFlippingEnv, 3, env_kwargs=dict(n_bits=4, **env_kwargs), seed=0)
    ours, theirs = make_buffer(env, **kind), make_buffer(env, cls=HerReplayBuffer)
    fill([ours, theirs], env, 100)

    rows = np.random.choice(drawable_rows(ours), 50)
    goal_rows = ours._episodes.draw_goals(rows[10:], ours.goal_selection_strategy)
    ours._episodes.draw = lambda n: rows
    ours._episodes.draw_goals = lambda *_: goal_rows
    samples = ours.sample(50)
    theirs._sample_goals = lambda *_: theirs.next_observations["achieved_goal"].reshape(
        -1, *theirs.obs_shape["achieved_goal"]
    )[goal_rows]
    real, virtual = (
        theirs._get_real_samples(*np.unravel_index(rows[:10], theirs.ep_length.shape)),
        theirs._get_virtual_samples(*np.unravel_index(rows[10:], theirs.ep_length.shape)),
    )
    for name in ("actions", "dones", "rewards"):
        expected = th.cat([getattr(real, name), getattr(virtual, name)])
        th.testing.assert_close(getattr(samples, name), expected, rtol=0, atol=0)
    for name in ("observations", "next_observations"):
        for key, obs in getattr(samples, name).items():
            expected = th.cat([getattr(real, name)[key], getattr(virtual, name)[key]])
            th.testing.assert_close(obs, expected, rtol=0, atol=0)


def test_compute_reward_gets_the_spaces_dtypes_and_is_called_once_per_draw():
    env = make_goal_envs([5, 5])
    buffer = make_buffer(env)
    fill([buffer], env, 20)
    calls = env.envs[0].reward_calls
    samples = buffer.sample(30)
    ((achieved, desired, infos),) = calls
    assert achieved.dtype == desired.dtype == np.float64
    assert achieved.shape == desired.shape == (24, 2)
    assert infos == [{}] * 24
    assert len({id(info) for info in infos}) == 24
    assert samples.observations["desired_goal"].dtype == th.float32


@pytest.mark.parametrize("env_class", [DummyVecEnv, SubprocVecEnv])
def test_bit_flipping_is_learned_with_all_vec_envs(env_class):
    env = make_vec_env(BitFlippingEnv, 3, env_kwargs=dict(n_bits=4), vec_env_cls=env_class, seed=0)
    model = DQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=FastHerReplayBuffer,
        learning_starts=50,
        train_freq=1,
        gradient_steps=2,
        seed=0,
        **tiny(),
    )
    if env_class is SubprocVecEnv:
        with pytest.warns(UserWarning, match="no second environment could be made.*reward_source: vec_env"):
            model.learn(200)
    else:
        model.learn(200)
    env.close()
    assert model._n_updates > 50
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


def test_infos_belong_to_their_transitions_and_are_copies():
    env = make_goal_envs([3, 4, 5], info=True)
    buffer = make_buffer(env, 60, copy_info_dict=True)
    fill([buffer], env, 60)
    for _ in range(20):
        buffer.sample(64)  # compute_reward() compares infos with goals, and overwrites them
    assert len(env.envs[0].reward_calls) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_observations_and_rewards_are_normalized_when_sampling(kind):
    env = VecNormalize(make_goal_envs([5, 5]))
    env.reset()
    for _ in range(30):
        env.step(np.zeros((2, 1)))
    buffer = make_buffer(env, **kind)
    fill([buffer], env, 40)
    np.random.seed(3)
    raw = buffer.sample(64)
    np.random.seed(3)
    normalized = buffer.sample(64, env)
    for name in ("observations", "next_observations"):
        arrays = {key: obs.numpy() for key, obs in getattr(raw, name).items()}
        for key, expected in env.normalize_obs(arrays).items():
            np.testing.assert_allclose(getattr(normalized, name)[key], expected, atol=2e-6)
    np.testing.assert_array_equal(normalized.rewards, env.normalize_reward(raw.rewards.numpy()))
    assert set(raw.rewards.unique().tolist()) == {-1, 0}
    assert (normalized.rewards[raw.rewards == 0] == 0).all()
    achieved, _, _ = env.venv.envs[0].reward_calls[-1]
    assert (achieved == achieved.round()).all()  # raw goals


def test_normalization_uses_the_statistics_of_now_for_batches_that_were_drawn_before():
    env = VecNormalize(make_goal_envs([5, 5]))
    buffer = make_buffer(env)
    fill([buffer], env, 20)
    buffer._n_expected = 4
    first = buffer.sample(16, env)
    assert len(buffer._drawn) == 3
    env.obs_rms["observation"].mean += 1000
    second = buffer.sample(16, env)
    assert (second.observations["observation"] == -env.clip_obs).any()
    assert not (first.observations["observation"] == -env.clip_obs).any()


def test_keys_that_are_not_normalized_stay():
    env = VecNormalize(make_goal_envs([5, 5]), norm_obs_keys=["observation"], clip_obs=0.5)
    env.reset()
    for _ in range(10):
        env.step(np.zeros((2, 1)))
    buffer = make_buffer(env)
    fill([buffer], env, 20)
    samples = buffer.sample(32, env)
    assert samples.observations["achieved_goal"].max() > 1
    assert samples.observations["observation"].abs().max() <= 0.5


def test_a_vec_normalize_of_another_kind_is_asked_itself():
    class Doubling(VecNormalize):
        def normalize_obs(self, obs):
            return {key: 2 * value for key, value in obs.items()}

    env = Doubling(make_goal_envs([5, 5]))
    buffer = make_buffer(env)
    fill([buffer], env, 20)
    np.random.seed(0)
    raw = buffer.sample(8)
    np.random.seed(0)
    doubled = buffer.sample(8, env)
    th.testing.assert_close(doubled.next_observations["observation"], 2 * raw.next_observations["observation"])


def test_dones_of_relabelled_successes_are_the_stored_ones():
    env = make_goal_envs([4], terminates=True)
    buffer = make_buffer(env, goal_selection_strategy="future")
    fill([buffer], env, 24)
    samples = buffer.sample(200)
    _, _, t, _, _ = decode(samples)
    np.testing.assert_array_equal(samples.dones.numpy().ravel(), t == 3)
    assert ((samples.rewards == 0) & (samples.dones == 0)).any()


def test_the_same_seed_gives_the_same_batches():
    def run() -> list[th.Tensor]:
        env = make_goal_envs([3, 7])
        model = SAC(
            "MultiInputPolicy",
            env,
            replay_buffer_class=FastHerReplayBuffer,
            learning_starts=30,
            gradient_steps=3,
            seed=4,
            **tiny(),
        )
        seen = []
        sample = model.replay_buffer.sample
        model.replay_buffer.sample = lambda *args, **kwargs: seen.append(sample(*args, **kwargs)) or seen[-1]
        model.learn(90)
        return [batch.observations["desired_goal"] for batch in seen]

    first, second = run(), run()
    assert len(first) > 80
    for a, b in zip(first, second, strict=True):
        th.testing.assert_close(a, b, rtol=0, atol=0)


def test_batches_of_one_train_are_drawn_at_once_and_never_outlive_it():
    env = make_goal_envs([3, 7])
    model = SAC(
        "MultiInputPolicy",
        env,
        replay_buffer_class=FastHerReplayBuffer,
        learning_starts=30,
        gradient_steps=8,
        seed=4,
        **tiny(),
    )
    sizes = []
    draw = model.replay_buffer._draw
    model.replay_buffer._draw = lambda n_batches, batch_size: sizes.append(n_batches) or draw(n_batches, batch_size)
    model.learn(60)
    assert sizes == [1] * 8 + [8] * 14
    assert not model.replay_buffer._drawn
    model.replay_buffer.sample(16)
    fill([model.replay_buffer], env, 1)
    assert not model.replay_buffer._drawn


# Episodes that environments do not end


def test_a_second_learn_does_not_stitch_two_episodes_together():
    env = make_goal_envs([8, 8])
    model = SAC("MultiInputPolicy", env, replay_buffer_class=FastHerReplayBuffer, learning_starts=1000, **tiny())
    model.learn(2 * 5)
    model.learn(2 * 8)
    buffer = model.replay_buffer
    assert [len(rows) for rows in buffer._episodes.episodes()] == [5, 8, 5, 8]
    assert buffer.timeouts[4].all()
    assert buffer.dones[4].all()
    samples = buffer.sample(100)
    env_idx, episode, _, goal_episode, _ = decode(samples)
    np.testing.assert_array_equal(goal_episode[20:], (100 * env_idx + episode)[20:])
    assert not samples.dones.any()


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_an_episode_that_was_cut_keeps_its_last_observation(optimize_memory_usage):
    env = make_goal_envs([8, 3])
    buffer = make_buffer(env, optimize_memory_usage=optimize_memory_usage)
    fill([buffer], env, 5)
    fill([buffer], env, 4)  # after a reset
    assert [len(rows) for rows in buffer._episodes.episodes()] == [5, 3, 2, 3]
    samples = buffer.sample(500)
    env_idx, episode, t, _, _ = decode(samples)
    np.testing.assert_array_equal(samples.next_observations["observation"], np.stack([env_idx, episode, t + 1], axis=1))


def test_nan_in_an_observation_is_no_new_episode():
    env = make_goal_envs([4])
    buffer = make_buffer(env)
    obs = env.reset()
    for _ in range(4):
        new_obs, rewards, dones, infos = env.step(np.zeros((1, 1)))
        next_obs = infos[0].get("terminal_observation")
        next_obs = {key: value[None] for key, value in next_obs.items()} if next_obs else copy.deepcopy(new_obs)
        for values in (obs, next_obs, new_obs):
            values["observation"][:, 0] = np.nan
        buffer.add(obs, next_obs, np.zeros((1, 1)), rewards, dones, infos)
        obs = new_obs
    assert buffer.ep_length[:4, 0].tolist() == [4, 4, 4, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_truncate_last_trajectory(kind):
    env = make_goal_envs([8, 3])
    buffer = make_buffer(env, **kind)
    fill([buffer], env, 5)
    with pytest.warns(UserWarning, match="will be truncated"):
        buffer.truncate_last_trajectory()
    assert [len(rows) for rows in buffer._episodes.episodes()] == [5, 3, 2]
    assert buffer.timeouts[4].tolist() == [1, 1]
    env_idx, episode, t, _, _ = decode(samples := buffer.sample(300))
    np.testing.assert_array_equal(samples.next_observations["observation"], np.stack([env_idx, episode, t + 1], axis=1))


# What can't work


def test_nothing_is_sampled_before_an_episode_ends():
    env = make_goal_envs([50] * 8)
    model = SAC("MultiInputPolicy", env, replay_buffer_class=FastHerReplayBuffer, learning_starts=100, batch_size=16, **tiny())
    with pytest.raises(RuntimeError, match=r"learning_starts counts those of all 8 environments.*UpdateRatioCallback"):
        model.learn(400)


def test_a_buffer_too_short_for_the_time_limit_is_refused_with_the_first_step():
    env = make_vec_env("GoalEnv-v0", 4)
    model = SAC("MultiInputPolicy", env, replay_buffer_class=FastHerReplayBuffer, buffer_size=196, **tiny())
    with pytest.raises(ValueError, match=r"196 transitions, 49 for each of 4 .* may have 50. .*at least 4 \* 50 = 200"):
        model.learn(100)
    assert model.num_timesteps == 4


def test_an_episode_longer_than_the_buffer_is_refused_where_no_time_limit_is_known():
    env = make_goal_envs([50])
    model = SAC("MultiInputPolicy", env, replay_buffer_class=FastHerReplayBuffer, buffer_size=30, **tiny())
    with pytest.raises(ValueError, match=r"holds 30 transitions.*at least 31. buffer_size must be at least 1 \* 31 = 31"):
        model.learn(100)
    assert model.num_timesteps == 31


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (dict(goal_selection_strategy="futur"), "goal_selection_strategy must be one of .*future.*, not 'futur'"),
        (dict(storage="gpu"), "storage must be one of cpu, device, not 'gpu'"),
        (dict(reward_source="driver"), "reward_source must be one of auto, vec_env, not 'driver'"),
        (dict(n_sampled_goal=-1), "n_sampled_goal must be at least 0, not -1"),
    ],
)
def test_wrong_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_buffer(make_goal_envs([5]), **kwargs)


def test_an_observation_space_without_goals_is_refused():
    env = make_goal_envs([5])
    space = spaces.Dict({"observation": env.observation_space["observation"]})
    with pytest.raises(ValueError, match="achieved_goal, desired_goal is not in"):
        FastHerReplayBuffer(10, space, env.action_space, env)


# Files and environments


@pytest.mark.parametrize("kind", KINDS)
def test_pickles_are_small_and_go_on_where_they_were(kind):
    env = make_goal_envs([3, (9, 1, 4), 11])
    buffer = make_buffer(env, 300_000, **kind)
    fill([buffer], env, 50)
    data = pickle.dumps(buffer)
    assert len(data) < 60_000 + 8 * 300_000 * buffer.optimize_memory_usage
    copied = pickle.loads(data)
    assert copied.env is None
    copied.set_env(env)
    assert drawable_rows(copied) == drawable_rows(buffer)
    results = []
    for each in (buffer, copied):
        np.random.seed(0)
        results.append(each.sample(200))
    for key in env.observation_space:
        th.testing.assert_close(results[0].next_observations[key], results[1].next_observations[key], rtol=0, atol=0)
    fill([copied], env, 20)
    assert copied.pos == 70


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_a_buffer_loaded_for_another_number_of_environments_keeps_its_finished_episodes(tmp_path, n_envs, kind):
    lengths = [3, (9, 1, 4), 11]
    old_env = make_goal_envs(lengths)
    old = make_buffer(old_env, 90, **kind)
    fill([old], old_env, 200)
    kept = {tuple(row) for row in np.stack(decode(old.sample(3000))[:3], axis=1)}
    env = make_goal_envs([7] * n_envs)
    new = pickle.loads(pickle.dumps(old))
    new.set_env(env)
    assert new.n_envs == n_envs
    assert new.buffer_size == 90 // n_envs
    assert 0.7 * old.n_sampleable <= new.n_sampleable <= old.n_sampleable
    samples = new.sample(3000)
    env_idx, episode, t, goal_episode, goal_t = decode(samples)
    assert {*zip(env_idx, episode, t, strict=True)} <= kept
    assert len({*zip(env_idx, episode, t, strict=True)}) == new.n_sampleable
    np.testing.assert_array_equal(samples.next_observations["observation"], np.stack([env_idx, episode, t + 1], axis=1))
    virtual = goal_episode >= 0
    np.testing.assert_array_equal(goal_episode[virtual], (100 * env_idx + episode)[virtual])
    assert (goal_t > t)[virtual].all()
    fill([new], env, 100)
    env_idx, episode, t, _, _ = decode(samples := new.sample(1000))
    np.testing.assert_array_equal(samples.next_observations["observation"], np.stack([env_idx, episode, t + 1], axis=1))
    assert drawable_rows(new) == valid_rows(new)


def test_loading_through_a_model(tmp_path):
    model = SAC(
        "MultiInputPolicy", make_goal_envs([5, 5]), replay_buffer_class=FastHerReplayBuffer, learning_starts=1000, **tiny()
    )
    model.learn(2 * 13)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.save(tmp_path / "model.zip")

    same = SAC.load(tmp_path / "model.zip", env=make_goal_envs([5, 5]), device="cpu")
    with pytest.warns(UserWarning, match="truncated"):
        same.load_replay_buffer(tmp_path / "buffer.pkl")
    assert same.replay_buffer.n_sampleable == 26
    assert same.replay_buffer.env is same.env
    same.learn(10, reset_num_timesteps=False)

    other = SAC.load(tmp_path / "model.zip", env=make_goal_envs([5, 5, 5]), device="cpu")
    other.load_replay_buffer(tmp_path / "buffer.pkl")
    assert other.replay_buffer.n_envs == 3
    assert other.replay_buffer.n_sampleable == 20
    other.learn(20, reset_num_timesteps=False)

    bits = DQN(
        "MultiInputPolicy",
        make_vec_env(BitFlippingEnv, 2),
        replay_buffer_class=FastHerReplayBuffer,
        **tiny(),
    )
    with pytest.raises(ValueError, match="the replay buffer is for observation_space"):
        bits.load_replay_buffer(tmp_path / "buffer.pkl")


def test_a_model_without_environment_can_not_be_loaded_as_in_sb3(tmp_path):
    model = SAC("MultiInputPolicy", make_goal_envs([5]), replay_buffer_class=FastHerReplayBuffer, **tiny())
    model.save(tmp_path / "model.zip")
    with pytest.raises(AssertionError, match="must pass an environment"):
        SAC.load(tmp_path / "model.zip")


def test_another_environment_may_be_set():
    buffer = make_buffer(make_goal_envs([5, 5]))
    fill([buffer], buffer.env, 12)
    env = make_goal_envs([4, 4])
    buffer.set_env(env)
    buffer.sample(8)
    assert len(env.envs[0].reward_calls) == 1


def test_reset_forgets_everything():
    env = make_goal_envs([3, 7])
    buffer = make_buffer(env)
    fill([buffer], env, 40)
    buffer.reset()
    assert (buffer.size(), buffer.n_sampleable) == (0, 0)
    fill([buffer], env, 8)
    assert buffer.n_sampleable == 3 + 3 + 7


# Memory


def test_observations_are_kept_once_to_save_memory():
    def n_bytes(**kwargs: Any) -> int:
        space = spaces.Dict({key: spaces.Box(0, 255, (40, 40, 1), np.uint8) for key in GoalEnv.observation_space})
        buffer = FastHerReplayBuffer(1000, space, env.action_space, env, device="cpu", n_envs=2, **kwargs)
        return buffer._transitions.records.nbytes + buffer._episodes._table.nbytes

    env = make_goal_envs([5, 5])
    assert n_bytes(optimize_memory_usage=True) < 0.51 * n_bytes()


def test_a_transition_takes_no_more_than_its_numbers():
    env = make_goal_envs([5, 5])
    buffer = make_buffer(env, 1000)
    assert buffer._transitions.records.itemsize == 4 * (2 * (3 + 2 + 2) + 1 + 3)
    assert buffer.infos.size == 0
    assert np.shares_memory(buffer.observations["achieved_goal"], buffer._transitions.records)
