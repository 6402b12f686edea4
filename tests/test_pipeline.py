"""Halves of a RayVecEnv that are stepped in turn."""

import functools
import os
import signal
import warnings

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.ray_envs import OrderedEnv, RandomEnv
from zoo_plugins import RayVecEnv, SeqRecurrentPPO

pytestmark = pytest.mark.usefixtures("local_ray")
KWARGS = dict(n_steps=24, batch_size=30, n_epochs=2, seed=1, device="cpu", policy_kwargs=dict(lstm_hidden_size=8))
FIVE = [functools.partial(RandomEnv, "vectors", "box") for _ in range(5)]


@pytest.fixture(scope="module")
def ordered(local_ray):
    """Environments 0 and 1, of lengths 5 and 6, in the first half, and 2 in the second."""
    vec_env = RayVecEnv([functools.partial(OrderedEnv, env, 5 + env) for env in range(3)], envs_per_worker=1, pipeline=True)
    yield vec_env
    vec_env.close()


class Recorder(BaseCallback):
    """Keeps what each step gave."""

    def _on_training_start(self):
        self.steps = []

    def _on_step(self):
        self.steps.append(tuple(self.locals[key] for key in ("clipped_actions", "new_obs", "rewards", "dones", "infos")))
        return len(self.steps) != self.stop_after

    stop_after = -1


def test_parts(ordered):
    """Each part goes its own way, and whole steps can be mixed with them."""
    assert ordered.parts == [slice(0, 2), slice(2, 3)]
    ordered.reset()
    zeros = np.zeros((3, 2), np.float32)
    ordered.step_part_async(1, zeros[2:])
    ordered.step_part_async(0, zeros[:2])
    observations, rewards, dones, infos = ordered.step_part_wait(1)
    assert (observations.tolist(), rewards.tolist(), dones.tolist()) == ([[2, 1, 1]], [1], [False])
    assert infos == [{"TimeLimit.truncated": False}]
    for _ in range(3):
        ordered.step_part_async(1, zeros[2:])
        ordered.step_part_wait(1)
    assert ordered.waiting
    assert ordered.step_part_wait(0)[0][:, 2].tolist() == [1, 1]
    assert not ordered.waiting
    with pytest.warns(UserWarning, match="pipeline=True gains nothing here"):
        observations, rewards, dones, infos = ordered.step(zeros)
    assert observations[:, 2].tolist() == [2, 2, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        for _ in range(3):
            observations, rewards, dones, infos = ordered.step(zeros)
    assert rewards.tolist() == [5, 5, 1]
    assert dones.tolist() == [True, False, False]
    assert observations[:, 1:].tolist() == [[2, 0], [1, 5], [2, 1]]
    assert [info.get("terminal_observation") is not None for info in infos] == [True, False, False]


def test_out_of_turn(ordered):
    """Steps have an order within a part; a reset gives up what is under way."""
    ordered.reset()
    with pytest.raises(RuntimeError, match="without step_part_async"):
        ordered.step_part_wait(0)
    ordered.step_part_async(0, np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="called twice"):
        ordered.step_part_async(0, np.zeros((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="step_wait"):
        ordered.get_attr("level")
    assert ordered.reset()[:, 2].tolist() == [0, 0, 0]
    assert ordered.get_attr("level") == [0, 0, 0]


def test_exception_in_one_part(ordered):
    """It gives up the other part too, so that the VecEnv can be asked, and reset."""
    ordered.reset()
    ordered.env_method("order", "raise", indices=0)
    ordered.step_part_async(0, np.zeros((2, 2), np.float32))
    ordered.step_part_async(1, np.zeros((1, 2), np.float32))
    with pytest.raises(RuntimeError, match=r"environment 0 .*exploded"):
        ordered.step_part_wait(0)
    assert ordered.get_attr("level") == [0, 0, 0]
    assert ordered.reset()[:, 2].tolist() == [0, 0, 0]


def test_lost_worker_of_the_other_part(ordered):
    """Whoever notices the loss, the part that it belongs to tells it."""
    zeros = np.zeros((3, 2), np.float32)
    resets = ordered.reset()[2, 1]
    ordered.step_part_async(0, zeros[:2])
    ordered.step_part_wait(0)
    os.kill(ordered._workers.of_env(2).hello.pid, signal.SIGKILL)
    ordered.step_part_async(0, zeros[:2])
    ordered._workers.of_env(2).lost = "killed by the test"
    with pytest.warns(UserWarning, match="lost worker 2"):
        _, _, dones, _ = ordered.step_part_wait(0)
    assert dones.tolist() == [False, False]
    ordered.step_part_async(1, zeros[2:])
    observations, rewards, dones, infos = ordered.step_part_wait(1)
    assert (observations.tolist(), rewards.tolist(), dones.tolist()) == ([[2, 1, 0]], [0], [True])
    assert infos[0]["worker_restarted"]
    assert infos[0]["terminal_observation"].tolist() == [2, resets, 0]


def test_lost_while_it_is_stepped(ordered):
    """The other part goes on."""
    ordered.reset()
    ordered.env_method("order", "die", indices=0)
    ordered.step_part_async(0, np.zeros((2, 2), np.float32))
    ordered.step_part_async(1, np.zeros((1, 2), np.float32))
    assert ordered.step_part_wait(1)[0][:, 2].tolist() == [1]
    with pytest.warns(UserWarning, match="lost worker 0"):
        observations, _, dones, infos = ordered.step_part_wait(0)
    assert observations[:, 2].tolist() == [0, 1]
    assert dones.tolist() == [True, False]
    assert [info.get("worker_restarted") for info in infos] == [True, None]


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_each_environment_gets_its_own_actions(rnn_type):
    """Environments that get the recorded actions again, one step at a time, do the same."""
    vec_env = RayVecEnv(FIVE, envs_per_worker=2, pipeline=True)
    recorder = Recorder()
    kwargs = {**KWARGS, "policy_kwargs": dict(lstm_hidden_size=8, rnn_type=rnn_type)}
    model = SeqRecurrentPPO("MultiInputLstmPolicy", vec_env, **kwargs).learn(2 * 24 * 5, callback=recorder)
    vec_env.close()
    assert model.num_timesteps == 2 * 24 * 5
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())

    again = DummyVecEnv(FIVE)
    again.seed(1)
    again.reset()
    for actions, *expected in recorder.steps:
        compare(again.step(actions), expected)


def compare(found, expected):
    observations, rewards, dones, infos = found
    for key, array in observations.items():
        np.testing.assert_array_equal(array, expected[0][key])
    np.testing.assert_array_equal(rewards, expected[1])
    np.testing.assert_array_equal(dones, expected[2])
    assert [info.keys() for info in infos] == [info.keys() for info in expected[3]]


def test_same_rollout_as_without():
    """Of environments that do not depend on actions, the rollout is the same, LSTM states and values included."""
    rollouts = []
    for pipeline in (False, True):
        vec_env = RayVecEnv([functools.partial(OrderedEnv, env, 5 + env) for env in range(4)], 1, pipeline=pipeline)
        model = SeqRecurrentPPO("MlpLstmPolicy", vec_env, **KWARGS)
        model.learning_rate, model.n_epochs = 0.0, 1
        model._setup_lr_schedule()
        model.learn(2 * 24 * 4)
        rollouts.append(model.rollout_buffer)
        vec_env.close()
    for key in ("observations", "rewards", "episode_starts", "values", "advantages"):
        np.testing.assert_allclose(getattr(rollouts[1], key), getattr(rollouts[0], key), atol=1e-6, err_msg=key)
    assert rollouts[0].episode_starts.sum() > 8
    assert rollouts[0].rewards.std() > 1
    np.testing.assert_allclose(rollouts[1].flat_states, rollouts[0].flat_states, atol=1e-6)


def test_callback_that_stops():
    """Nothing is waited for afterwards, that a user could stumble over."""
    vec_env = RayVecEnv(FIVE, envs_per_worker=3, pipeline=True)
    recorder = Recorder()
    recorder.stop_after = 3
    model = SeqRecurrentPPO("MultiInputLstmPolicy", vec_env, **KWARGS).learn(1000, callback=recorder)
    assert model.num_timesteps == 15
    assert len(vec_env.get_attr("t")) == 5
    model.learn(10, reset_num_timesteps=False)
    vec_env.close()


def test_what_does_not_go_together():
    """Each is told, with what to do instead."""
    for n_envs, size in ((1, "auto"), (3, 3), (3, 4)):
        with pytest.raises(ValueError, match="pipeline: two workers are needed"):
            RayVecEnv(FIVE[:n_envs], envs_per_worker=size, pipeline=True)
    vec_env = RayVecEnv([OrderedEnv] * 2, envs_per_worker=1, pipeline=True)
    with pytest.raises(ValueError, match="VecNormalize around it needs whole steps"):
        SeqRecurrentPPO("MlpLstmPolicy", VecNormalize(vec_env), **KWARGS).learn(10)
    with pytest.raises(ValueError, match="use_sde"):
        SeqRecurrentPPO("MlpLstmPolicy", vec_env, use_sde=True, **KWARGS).learn(10)
    with pytest.warns(UserWarning, match="pipeline=True gains nothing here"):
        PPO("MlpPolicy", vec_env, n_steps=4, batch_size=8, device="cpu").learn(8)
    vec_env.close()


def test_auto_leaves_two_workers():
    """Cheap environments would all share one."""
    vec_env = RayVecEnv([OrderedEnv] * 5, pipeline=True)
    assert vec_env.parts == [slice(0, 3), slice(3, 5)]
    vec_env.close()
