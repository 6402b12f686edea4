"""Rewards of replaced goals, with and without asking another process."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

from tests.goal_envs import ShiftingGoalEnv, compute_reward, make_goal_envs
from zoo_plugins.buffers.goal_rewards import GoalRewards

ACHIEVED = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
DESIRED = np.array([[1.0, 2.0], [0.0, 4.0], [5.0, 6.0]])
INFOS = [{}, {}, {}]


class CountingVecEnv(SubprocVecEnv):
    """SubprocVecEnv that counts the calls of ``compute_reward()`` in its workers."""

    n_calls = 0

    def env_method(self, method_name, *args, **kwargs):
        self.n_calls += method_name == "compute_reward"
        return super().env_method(method_name, *args, **kwargs)


@pytest.fixture
def subproc():
    env = make_vec_env("tests.goal_envs:GoalEnv-v0", 2, vec_env_cls=CountingVecEnv)
    yield env
    env.close()


def test_an_environment_of_this_process_is_asked_itself():
    env = VecMonitor(make_goal_envs([5, 5]))
    rewards = GoalRewards(env)(ACHIEVED, DESIRED, INFOS)
    assert rewards.dtype == np.float32
    assert rewards.tolist() == [0, -1, 0]
    assert [len(each.reward_calls) for each in env.venv.envs] == [1, 0]


def test_another_process_is_asked_less_and_less_often(subproc):
    rewards = GoalRewards(subproc)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(20):
            np.testing.assert_array_equal(rewards(ACHIEVED, DESIRED, INFOS), compute_reward(ACHIEVED, DESIRED))
    assert subproc.n_calls == 5  # the calls 1, 2, 4, 8 and 16


def test_the_vec_env_is_always_asked_if_wanted(subproc):
    rewards = GoalRewards(subproc, "vec_env")
    for _ in range(3):
        rewards(ACHIEVED, DESIRED, INFOS)
    assert subproc.n_calls == 3


def test_the_vec_env_is_asked_for_good_once_it_differs():
    env = make_vec_env("tests.goal_envs:ShiftingGoalEnv-v0", 2, vec_env_cls=CountingVecEnv)
    rewards = GoalRewards(env)
    for _ in range(3):
        rewards(ACHIEVED, DESIRED, INFOS)
    env.env_method("change_rewards", 5.0)
    with pytest.warns(UserWarning, match="made from its spec, computes other rewards"):
        assert rewards(ACHIEVED, DESIRED, INFOS).tolist() == [5, 4, 5]
    n_calls = env.n_calls
    for _ in range(3):
        assert rewards(ACHIEVED, DESIRED, INFOS).tolist() == [5, 4, 5]
    assert env.n_calls == n_calls + 3
    env.close()


def test_an_environment_without_spec_is_asked_through_the_vec_env():
    env = CountingVecEnv([ShiftingGoalEnv, ShiftingGoalEnv])
    with pytest.warns(UserWarning, match="no second environment could be made.*reward_source: vec_env"):
        rewards = GoalRewards(env)
    assert rewards(ACHIEVED, DESIRED, INFOS).tolist() == [0, -1, 0]
    assert env.n_calls == 1
    env.close()


def test_a_spec_that_can_not_be_pickled_does_no_harm():
    """SubprocVecEnv's worker would die of it."""
    gym.register("LocalGoalEnv-v0", lambda: make_goal_envs([5]).envs[0])
    spec = gym.spec("LocalGoalEnv-v0")
    env = CountingVecEnv([spec.make])
    with pytest.warns(UserWarning, match="no second environment could be made"):
        rewards = GoalRewards(env)
    assert rewards(ACHIEVED, DESIRED, INFOS).tolist() == [0, -1, 0]
    env.close()
    del gym.registry["LocalGoalEnv-v0"]


def test_rewards_that_are_not_vectorized_are_an_error():
    env = make_goal_envs([5])
    env.envs[0].compute_reward = lambda *_: -1.0
    with pytest.raises(ValueError, match=r"one reward per goal, but gave shape \(\) for 3 goals"):
        GoalRewards(env)(ACHIEVED, DESIRED, INFOS)
