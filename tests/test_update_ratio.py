"""UpdateRatioCallback in a plain SB3 script: how many updates, when, what is saved, and what else follows n_envs."""

import copy
import functools
import json
import re
import zipfile
from fractions import Fraction
from math import floor
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from hypothesis import given
from hypothesis import strategies as st
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.envs import LenEnv
from zoo_plugins import FastHerReplayBuffer, UpdateRatioCallback
from zoo_plugins.callbacks import read_gradient_steps, read_update_ratio

BOX = spaces.Box(-1, 1, (1,), np.float32)
DISCRETE = {DQN, QRDQN}
OFF_POLICY = [SAC, TQC, TD3, DDPG, DQN, QRDQN, CrossQ]


class GoalEnv(gym.Env):
    """Goals of two numbers, of which the second is t; episodes of ``length`` steps; actions do nothing."""

    def __init__(self, length, action_space=BOX):
        self.length = length
        self.action_space = action_space
        goal = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(observation=goal, achieved_goal=goal, desired_goal=goal)

    def _observation(self):
        here = np.array([0, self.t], np.float32)
        return {"observation": here, "achieved_goal": here, "desired_goal": np.zeros(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        return self._observation(), -1.0, False, self.t >= self.length, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(achieved_goal != desired_goal).any(axis=-1).astype(np.float32)


class Log(BaseCallback):
    """Remember the model's gradient_steps at each step."""

    def _on_training_start(self):
        self.seen = []

    def _on_step(self):
        self.seen.append(self.model.gradient_steps)
        return True


def make_env(n_envs, action_space=BOX, lengths=(5,)):
    return DummyVecEnv([lambda i=i: LenEnv([lengths[i % len(lengths)]], action_space=action_space) for i in range(n_envs)])


def make(cls=DQN, n_envs=1, **kwargs):
    """Make a tiny model that trains from its first rollout on."""
    action_space = spaces.Discrete(2) if cls in DISCRETE else BOX
    defaults = dict(
        train_freq=1, learning_starts=0, buffer_size=200, batch_size=2, policy_kwargs={"net_arch": [4]}, device="cpu"
    )
    return cls("MlpPolicy", make_env(n_envs, action_space), **{**defaults, **kwargs})


def make_her(n_envs=8, cls=SAC, length=50, buffer=HerReplayBuffer, limit=None, **kwargs):
    """Make a tiny model that learns from hindsight; ``limit`` is the time limit that others can see."""
    action_space = spaces.Discrete(2) if cls in DISCRETE else BOX

    def make_one():
        env = GoalEnv(length, action_space)
        return env if limit is None else TimeLimit(env, limit)

    defaults = dict(
        train_freq=1, learning_starts=100, buffer_size=2000, batch_size=16, policy_kwargs={"net_arch": [4]}, device="cpu"
    )
    env = DummyVecEnv([make_one] * n_envs)
    return cls("MultiInputPolicy", env, replay_buffer_class=buffer, **{**defaults, **kwargs})


def count_training(model):
    """Collect (timesteps, updates) of every call of the model's train()."""
    calls = []
    train = model.train

    @functools.wraps(train)
    def spy(gradient_steps, batch_size):
        calls.append((model.num_timesteps, gradient_steps))
        train(gradient_steps=gradient_steps, batch_size=batch_size)

    model.train = spy
    return calls


def saved_value(path):
    """Read gradient_steps from a saved model."""
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("data"))
    assert "_replaced_gradient_steps" not in data
    return data["gradient_steps"]


# --- the rule

VALID = [
    (0, (4, 12), 0),
    (3, (4, 12), 3),
    (np.int64(3), (4, 12), 3),
    (-1, (4, 12), 12),
    ("n_envs", (4, 12), 4),
    (" n_envs ", (4, 12), 4),
    ("2 * n_envs", (4, 12), 8),
    ("2*n_envs", (4, 12), 8),
    ("n_envs * 10", (4, 12), 40),
    ("n_envs / 4", (4, 12), 1),
    ("n_envs/3", (4, 12), Fraction(4, 3)),
]


@pytest.mark.parametrize(("value", "rollout", "updates"), VALID)
def test_forms_of_gradient_steps(value, rollout, updates):
    """Numbers mean what they mean to SB3; texts follow the number of environments."""
    whole, rest = read_gradient_steps(value).settle(Fraction(0), *rollout)
    assert whole + rest == updates
    assert type(whole) is int


INVALID = [-2, 1.0, 1.5, True, None, "", "1", "envs", "n_env", "N_ENVS", "0 * n_envs", "n_envs / 0", "-1 * n_envs"]
INVALID += ["1.5 * n_envs", "2 n_envs", "2 * n_envs / 3", "n_envs + 1", "n_envs ** 2", "n_envs // 2", "٣ * n_envs"]
INVALID += ["02 * n_envs", ["n_envs"], "__import__('os')"]


@pytest.mark.parametrize("value", INVALID)
def test_other_gradient_steps_are_refused(value):
    """Anything else is refused in one line that says what would be valid."""
    with pytest.raises(ValueError) as error:
        read_gradient_steps(value)
    message = str(error.value)
    assert message.startswith(f"gradient_steps={value!r}: expected ")
    assert "-1, n_envs, K * n_envs or n_envs / K" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("ratio", "exact"),
    [(1, "1"), (0.1, "1/10"), (1e-05, "1/100000"), (np.float32(0.1), "1/10"), (Fraction(1, 3), "1/3"), (2.5, "5/2")],
)
def test_update_ratio_is_read_as_it_is_written(ratio, exact):
    """A float is the decimal number that it is written as, not the binary one next to it."""
    assert read_update_ratio(ratio).per_transition == Fraction(exact)


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, float("nan"), float("inf"), True, None, "0.5", "n_envs", [1]])
def test_other_update_ratios_are_refused(value):
    """Anything but a number above 0 is refused."""
    with pytest.raises(ValueError, match=r"expected a number above 0: updates per collected transition$"):
        read_update_ratio(value)


@given(
    ratio=st.one_of(st.decimals("0.0001", "20", places=4).map(float), st.fractions(Fraction(1, 1000), 20)),
    rollouts=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 20)), max_size=40),
)
def test_updates_are_those_of_all_transitions(ratio, rollouts):
    """Whatever the ratio, and however rollouts differ, as many updates are made as all transitions together are due."""
    rule, carried, made, total = read_update_ratio(ratio), Fraction(0), 0, 0
    for n_envs, train_freq in rollouts:
        updates, carried = rule.settle(carried, n_envs, n_envs * train_freq)
        made += updates
        total += n_envs * train_freq
        assert made == floor(total * Fraction(str(ratio)))
        assert 0 <= carried < 1


@given(divisor=st.integers(1, 40), n_envs=st.lists(st.integers(1, 64), max_size=40))
def test_updates_are_those_of_all_environments(divisor, n_envs):
    """The fractions of ``n_envs / K`` are carried over too."""
    rule, carried, made = read_gradient_steps(f"n_envs / {divisor}"), Fraction(0), 0
    for n in n_envs:
        updates, carried = rule.settle(carried, n, n)
        made += updates
    assert made == sum(n_envs) // divisor


def test_no_drift():
    """After a million transitions the number of updates is exact."""
    rule, carried, made = read_update_ratio(0.1), Fraction(0), 0
    for _ in range(125_000):
        updates, carried = rule.settle(carried, 8, 8)
        made += updates
    assert (made, carried) == (100_000, 0)


def test_table_of_the_page():
    """The page's table of results is true."""
    page = (Path(__file__).parent.parent / "docs" / "update_ratio.md").read_text()
    header, _, *rows = re.search(r"\| `n_envs` \|.*?\n\n", page, flags=re.DOTALL).group().strip().splitlines()
    words = [cell.strip(" `") for cell in header.strip("|").split("|")][3:]
    assert words == ["1", "-1", "n_envs", "n_envs / 2", "update_ratio: 0.1"]
    rules = [*map(read_gradient_steps, [1, -1, "n_envs", "n_envs / 2"]), read_update_ratio(0.1)]
    assert len(rows) == 4
    for row in rows:
        n_envs, train_freq, n_transitions, *updates = map(int, row.strip("|").split("|"))
        assert n_transitions == 5 * n_envs * train_freq
        per_rollout = [sum(rule.settle(Fraction(0), n_envs, n_envs * train_freq)) for rule in rules]
        assert [floor(5 * number) for number in per_rollout] == updates


# --- updates that are made

# n_envs, train_freq, rule, updates after 5 rollouts
ROWS = [
    (1, 1, 1, 5),
    (4, 1, 1, 5),
    (4, 1, -1, 20),
    (4, 3, 1, 5),
    (4, 3, -1, 60),
    (4, 3, 0, 0),
    (1, 1, "n_envs", 5),
    (4, 1, "n_envs", 20),
    (4, 3, "3 * n_envs", 60),
    (4, 3, "n_envs", 20),
    (4, 3, "n_envs / 2", 10),
    (3, 1, "n_envs / 2", 7),
    (1, 1, 1.0, 5),
    (4, 1, 1.0, 20),
    (4, 3, 1.0, 60),
    (4, 3, 0.1, 6),
    (3, 1, 0.25, 3),
    (2, 1, 2.5, 25),
]


@pytest.mark.parametrize("by_model", [True, False], ids=["model", "argument"])
@pytest.mark.parametrize(("n_envs", "train_freq", "rule", "updates"), ROWS)
def test_updates_per_transition(n_envs, train_freq, rule, updates, by_model):
    """Five rollouts make the updates that the rule says, and the log counts those that were made."""
    own = {}
    if isinstance(rule, float):
        callback = UpdateRatioCallback(update_ratio=rule)
    elif by_model:
        callback, own = UpdateRatioCallback(), {"gradient_steps": rule}
    else:
        callback = UpdateRatioCallback(rule)
    model = make(n_envs=n_envs, train_freq=train_freq, **own)
    calls = count_training(model)
    model.learn(5 * train_freq * n_envs, callback=callback)
    assert model.num_timesteps == 5 * train_freq * n_envs
    assert model._n_updates == sum(steps for _, steps in calls) == updates
    assert model.gradient_steps == own.get("gradient_steps", 1)


@pytest.mark.parametrize(("n_envs", "train_freq", "gradient_steps", "updates"), [row for row in ROWS if type(row[2]) is int])
def test_numbers_mean_what_they_mean_to_sb3(n_envs, train_freq, gradient_steps, updates):
    """SB3 makes the same updates of numbers, without the callback."""
    model = make(n_envs=n_envs, train_freq=train_freq, gradient_steps=gradient_steps).learn(5 * train_freq * n_envs)
    assert model._n_updates == updates


@pytest.mark.parametrize("cls", OFF_POLICY)
def test_every_algorithm(cls):
    """All off-policy algorithms keep the text as it is, and make one update per transition with it."""
    model = make(cls, n_envs=3, gradient_steps="n_envs")
    assert model.gradient_steps == "n_envs"
    model.learn(12, callback=UpdateRatioCallback())
    assert (model._n_updates, model.gradient_steps) == (12, "n_envs")


def test_train_freq_in_episodes():
    """With one environment, rollouts may be episodes: the ratio counts their transitions."""
    model = make(train_freq=(1, "episode"), gradient_steps=-1)
    calls = count_training(model)
    model.learn(15, callback=UpdateRatioCallback(update_ratio=0.5))
    assert calls == [(5, 2), (10, 3), (15, 2)]


def test_fractions_are_carried_to_the_next_learn():
    """Training in two pieces makes the same updates as in one."""
    callback = UpdateRatioCallback(update_ratio=0.3)
    model = make(n_envs=2).learn(4, callback=callback)
    assert model._n_updates == 1
    model.learn(6, callback=callback, reset_num_timesteps=False)
    assert (model.num_timesteps, model._n_updates) == (10, 3)


def test_no_updates_before_learning_starts_nor_for_them():
    """Transitions before learning_starts are due no updates: there is no burst when learning starts."""
    model = make(n_envs=2, learning_starts=10)
    calls = count_training(model)
    model.learn(20, callback=UpdateRatioCallback(update_ratio=0.75))
    assert calls == [(12, 1), (14, 2), (16, 1), (18, 2), (20, 1)]


# --- what is refused


def test_only_one_rule():
    """Two rules at once are refused."""
    with pytest.raises(ValueError, match=r"^gradient_steps='n_envs' and update_ratio=0.5: only one can be given$"):
        UpdateRatioCallback("n_envs", update_ratio=0.5)


@pytest.mark.parametrize("kwargs", [{"gradient_steps": "n_env"}, {"update_ratio": 0}])
def test_wrong_rule(kwargs):
    """A wrong rule is refused when the callback is made."""
    with pytest.raises(ValueError, match="expected"):
        UpdateRatioCallback(**kwargs)


def test_wrong_rule_of_the_model():
    """A wrong rule of the model is refused before its first step."""
    model = make(gradient_steps="many")
    with pytest.raises(ValueError, match=r"^gradient_steps='many': expected a whole number"):
        model.learn(4, callback=UpdateRatioCallback())
    assert model.num_timesteps == 0


def test_on_policy():
    """On-policy algorithms have no such ratio."""
    model = PPO("MlpPolicy", make_env(2), n_steps=4, batch_size=4, device="cpu")
    with pytest.raises(ValueError, match="PPO is not off-policy"):
        model.learn(8, callback=UpdateRatioCallback())


def test_train_freq_in_episodes_of_several_environments():
    """Rollouts of episodes are refused with several environments, before the first step."""
    model = make(n_envs=4, train_freq=(1, "episode"))
    with pytest.raises(ValueError, match=r"^train_freq: \(1, 'episode'\) needs n_envs=1, .*, not 4; use steps$"):
        model.learn(8, callback=UpdateRatioCallback())
    assert model.num_timesteps == 0


# --- what the model keeps


@pytest.mark.parametrize("cls", [SAC, DQN, QRDQN])
def test_nothing_compounds(cls, tmp_path):
    """After any number of saves, loads, copies and changes of n_envs, all is as the user said."""
    model = make(cls, n_envs=4, gradient_steps="2 * n_envs", target_update_interval=100)
    for n_envs in (4, 4, 2, 1, 4):
        before = model._n_updates
        model.learn(4 * n_envs, callback=UpdateRatioCallback())
        assert model._n_updates - before == 4 * 2 * n_envs
        assert (model.gradient_steps, model.target_update_interval) == ("2 * n_envs", 100)
        model.save(tmp_path / "model")
        assert saved_value(tmp_path / "model.zip") == "2 * n_envs"
        model = cls.load(tmp_path / "model", env=make_env(n_envs, model.action_space), device="cpu")
    model.set_env(make_env(4, model.action_space))
    copied = copy.deepcopy(model)
    assert copied.gradient_steps == "2 * n_envs"
    before = copied._n_updates
    assert copied.learn(8, callback=UpdateRatioCallback())._n_updates == before + 16
    assert model._n_updates == before


@pytest.mark.parametrize("first", [True, False])
def test_checkpoints_hold_the_own_value(tmp_path, first):
    """What is saved in the middle of training has the user's own value, wherever the callback stands in the list."""
    checkpoint = CheckpointCallback(save_freq=1, save_path=tmp_path)
    callbacks = [UpdateRatioCallback(), checkpoint] if first else [checkpoint, UpdateRatioCallback()]
    make(n_envs=2, train_freq=2, gradient_steps="n_envs").learn(12, callback=callbacks)
    paths = sorted(tmp_path.glob("*.zip"))
    assert len(paths) == 6
    assert [saved_value(path) for path in paths] == ["n_envs"] * 6


@pytest.mark.parametrize("path", ["same callback", "other callback", "after saving"])
def test_training_that_is_interrupted(tmp_path, path):
    """The user's own value survives an exception in the middle of an update, and a file that was saved then."""
    model = make(n_envs=3, gradient_steps="n_envs / 2")
    callback = UpdateRatioCallback()
    train = model.train

    def interrupt(gradient_steps, batch_size):
        raise KeyboardInterrupt

    model.train = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.learn(3, callback=callback)
    assert model.gradient_steps == 1
    model.train = train
    if path == "after saving":
        del model.train
        model.save(tmp_path / "model")
        model = DQN.load(tmp_path / "model", env=make_env(4, model.action_space), device="cpu")
    model.learn(2 * model.n_envs, callback=callback if path == "same callback" else UpdateRatioCallback())
    assert model.gradient_steps == "n_envs / 2"
    assert "_replaced_gradient_steps" not in vars(model)


def test_value_that_the_user_sets_after_an_interruption():
    """A value set by the user after an interruption is the user's own, and not put back."""
    model = make(n_envs=3, gradient_steps="n_envs")
    model.train = lambda gradient_steps, batch_size: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model.learn(3, callback=UpdateRatioCallback())
    del model.train
    model.gradient_steps = 2
    model.learn(6, callback=UpdateRatioCallback())
    assert (model._n_updates, model.gradient_steps) == (4, 2)


def test_rule_that_changes_during_training():
    """Other callbacks may set gradient_steps at any step, to a number or a text; the next update follows it."""

    class Schedule(BaseCallback):
        def _on_step(self):
            if self.n_calls == 3:
                self.model.gradient_steps = "2 * n_envs"
            return True

    log = Log()
    model = make(n_envs=2, gradient_steps=1)
    calls = count_training(model)
    model.learn(8, callback=[UpdateRatioCallback(), Schedule(), log])
    assert calls == [(2, 1), (4, 1), (6, 4), (8, 4)]
    assert log.seen == [1, 1, "2 * n_envs", "2 * n_envs"]
    assert model.gradient_steps == "2 * n_envs"


def test_two_callbacks():
    """Of two callbacks, the later one counts, and the user's value is still put back."""
    model = make(n_envs=2, gradient_steps="n_envs")
    model.learn(8, callback=[UpdateRatioCallback(), UpdateRatioCallback(update_ratio=0.5)])
    assert (model._n_updates, model.gradient_steps) == (4, "n_envs")


def test_training_that_a_callback_ends():
    """When another callback ends training in the middle of a rollout, the user's own value is there."""

    class Stop(BaseCallback):
        def _on_step(self):
            return self.n_calls < 3

    model = make(n_envs=2, gradient_steps="n_envs").learn(100, callback=[UpdateRatioCallback(), Stop()])
    assert (model._n_updates, model.gradient_steps) == (4, "n_envs")


# --- action noise


@pytest.mark.parametrize("n_envs", [1, 2, 4])
def test_action_noise_fits_the_environments(tmp_path, n_envs):
    """A model that is loaded with another number of environments learns on with noise for each of them."""
    noise = NormalActionNoise(np.zeros(1), 0.5 * np.ones(1))
    make(TD3, n_envs=4, action_noise=noise).learn(20, callback=UpdateRatioCallback()).save(tmp_path / "model")
    model = TD3.load(tmp_path / "model", env=make_env(n_envs), device="cpu")
    before = model.action_noise
    model.learn(20, callback=UpdateRatioCallback())
    assert isinstance(model.action_noise, VectorizedActionNoise)
    assert len(model.action_noise.noises) == model.action_noise.n_envs == n_envs
    assert model.action_noise.base_noise is before.base_noise
    assert (model.action_noise is before) == (n_envs == 4)


class CountedNoise(OrnsteinUhlenbeckActionNoise):
    n_resets = 0

    def reset(self):
        self.n_resets += 1
        super().reset()


def test_noise_of_an_environment_ends_with_its_episode(tmp_path):
    """The noise of an environment starts anew when an episode of that very environment ends."""
    noise = CountedNoise(np.zeros(1), np.ones(1))
    make(TD3, n_envs=4, action_noise=noise).learn(4).save(tmp_path / "model")
    model = TD3.load(tmp_path / "model", env=make_env(2, lengths=(3, 100)), device="cpu")
    fresh = VectorizedActionNoise(model.action_noise.base_noise, 2)
    assert fresh.noises[0].n_resets == fresh.noises[1].n_resets
    model.learn(2 * 12, callback=UpdateRatioCallback())
    resets = [one.n_resets - other.n_resets for one, other in zip(model.action_noise.noises, fresh.noises, strict=True)]
    assert resets == [4, 0]
    assert model.action_noise.noises[0].noise_prev == 0
    assert model.action_noise.noises[1].noise_prev != 0


# --- HER


@pytest.mark.parametrize("buffer", [HerReplayBuffer, FastHerReplayBuffer])
@pytest.mark.parametrize(("gradient_steps", "each"), [(1, 1), ("n_envs", 8), (-1, 8)])
def test_updates_wait_for_the_first_episode(buffer, gradient_steps, each):
    """Updates begin when the first episodes have ended, long after learning_starts, and without a burst."""
    model = make_her(buffer=buffer, gradient_steps=gradient_steps)
    calls = count_training(model)
    with pytest.warns(UserWarning, match="no episode has ended in 104 transitions") as warned:
        model.learn(480, callback=UpdateRatioCallback())
    assert len(warned) == 1
    assert calls == [(timesteps, each) for timesteps in range(400, 481, 8)]
    assert model._n_updates == 11 * each


def test_fractions_do_not_grow_while_updates_wait():
    """Transitions before the first finished episode are due no updates later, nor a part of one."""
    model = make_her(n_envs=2, cls=DQN, length=5, learning_starts=0)
    calls = count_training(model)
    with pytest.warns(UserWarning, match="no episode has ended in 2 transitions"):
        model.learn(20, callback=UpdateRatioCallback(update_ratio=0.25))
    assert calls == [(12, 1), (16, 1), (20, 1)]


def test_early_start_is_told_before_the_first_step():
    """Where the time limit is known, the learning_starts that would do is told once, before the first step."""
    model = make_her(n_envs=8, limit=50)
    with pytest.warns(UserWarning, match="learning_starts") as warned:
        model.learn(408, callback=[UpdateRatioCallback(), Log()])
    (message,) = [str(one.message) for one in warned]
    assert message.startswith("learning_starts=100 counts the transitions of all environments, of which there are 8,")
    assert "before 8 * 50 = 400 transitions" in message
    assert message.endswith("Set learning_starts to at least 400")
    assert model._n_updates == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("n_envs", "learning_starts", "first"), [(8, 400, 408), (8, 392, 400), (1, 50, 51), (1, 49, 50)])
def test_late_start_is_silent(n_envs, learning_starts, first):
    """A learning_starts that is large enough gives no warning, and is when updates begin."""
    model = make_her(n_envs, cls=DQN, limit=50, learning_starts=learning_starts)
    calls = count_training(model)
    model.learn(50 * n_envs + n_envs, callback=UpdateRatioCallback())
    assert calls[0] == (first, 1)


@pytest.mark.parametrize(("learning_starts", "warns"), [(391, True), (48 * 8, True), (392, False)])
def test_which_start_is_too_early(learning_starts, warns):
    """The warning is given if, and only if, there is an update that has to wait."""
    model = make_her(8, cls=DQN, limit=50, learning_starts=learning_starts)
    callback = UpdateRatioCallback()
    callback.init_callback(model)
    if warns:
        with pytest.warns(UserWarning, match="Set learning_starts to at least 400"):
            callback.on_training_start({}, {})
    else:
        callback.on_training_start({}, {})
        assert not callback._has_warned


@pytest.mark.filterwarnings("error")
def test_buffer_that_has_episodes(tmp_path):
    """With a buffer that holds finished episodes there is nothing to wait for or to warn of."""
    model = make_her(2, cls=DQN, length=5, limit=5, learning_starts=10).learn(20)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = DQN.load(tmp_path / "model", env=model.env, device="cpu", learning_starts=0)
    loaded.load_replay_buffer(tmp_path / "buffer")
    calls = count_training(loaded)
    loaded.learn(4, callback=UpdateRatioCallback("n_envs"))
    assert calls == [(2, 2), (4, 2)]


def test_buffer_that_is_exchanged():
    """An empty buffer in the place of the old one is waited for again."""
    model = make_her(2, cls=DQN, length=5, learning_starts=10)
    callback = UpdateRatioCallback()
    model.learn(20, callback=callback)
    model.replay_buffer = make_her(2, cls=DQN).replay_buffer
    calls = count_training(model)
    with pytest.warns(UserWarning, match="no episode has ended in 22 transitions"):
        model.learn(20, callback=callback, reset_num_timesteps=False)
    assert calls == [(timesteps, 1) for timesteps in range(30, 41, 2)]


@pytest.mark.parametrize("buffer", [HerReplayBuffer, FastHerReplayBuffer])
def test_buffer_asks_the_environment_of_the_model(buffer):
    """After set_env(), rewards are computed by the new environment; SB3 would go on asking the old one."""
    model = make_her(2, cls=DQN, length=5, learning_starts=10, buffer=buffer)
    old = model.env
    model.set_env(DummyVecEnv([lambda: GoalEnv(5, model.action_space)] * 2))
    assert model.replay_buffer.env is old
    model.learn(14, callback=UpdateRatioCallback())
    assert model.replay_buffer.env is model.env is not old
