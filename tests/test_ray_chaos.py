"""Whole trainings during which workers are killed at random: each row of their buffers is compared with what happened."""

import functools
import os
import signal

import numpy as np
import pytest
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback

from tests.ray_envs import TracedEnv, episode_length, trace
from zoo_plugins import FastHerReplayBuffer, RayVecEnv, SeqRecurrentPPO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]
N_ENVS = 6
ENVS = np.arange(N_ENVS)
N_STEPS = 3360
TIMESTEPS = N_ENVS * N_STEPS  # 20,160


class Chaos(BaseCallback):
    """
    Kill workers after some steps, at once or in the middle of the next step, and remember what is lost, and what is told.

    :param seed: Seed of all choices
    :param pipeline: Whether workers are already in their next step, of which the answer may come or not when they are killed
    """

    def __init__(self, seed, pipeline=False):
        super().__init__()
        self.pipeline = pipeline
        rng = np.random.default_rng(seed)
        steps = rng.choice(np.arange(20, N_STEPS - 20), 10, replace=False).tolist()
        self.kills = {step: rng.choice(3, rng.integers(1, 3), replace=False).tolist() for step in steps}
        if not pipeline:
            # What takes the place of a lost worker is lost with its first step
            self.kills[steps[0] + 1] = self.kills[steps[0]]
        self.at_once = {step: pipeline or bool(rng.integers(2)) for step in self.kills}
        self.lost = np.zeros((N_STEPS, N_ENVS), bool)
        self.marked = np.zeros((N_STEPS, N_ENVS), bool)

    def _on_step(self):
        step = self.n_calls - 1
        self.marked[step] = ["worker_restarted" in info for info in self.locals["infos"]]
        if self.pipeline:
            told = [number for at in (step - 1, step - 2) for number in self.kills.get(at, [])]
            assert set(self.marked[step].nonzero()[0] // 2) <= set(told)
            self.lost[step] = self.marked[step]
        vec_env = self.training_env
        for number in self.kills.get(step, []):
            worker = list(vec_env._workers)[number]
            self.lost[step + 1, worker.envs] = not self.pipeline
            if self.at_once[step]:
                os.kill(worker.hello.pid, signal.SIGKILL)
            else:
                vec_env.env_method("die", indices=worker.envs[-1])  # after the worker's first environment was stepped
        return True


class RecurrentChaos(Chaos):
    """Check each rollout, values included, with LSTM states of its own."""

    def _on_training_start(self):
        zeros = th.zeros(self.model.policy.lstm_hidden_state_shape)
        zeros = zeros.expand(-1, N_ENVS, -1)
        self.states = RNNStates((zeros, zeros), (zeros, zeros))
        self.n_checked = 0

    def _on_rollout_end(self):
        buffer, gamma = self.model.rollout_buffer, self.model.gamma
        lost = self.lost[self.n_calls - buffer.buffer_size : self.n_calls]
        goals, seen = buffer.observations["achieved_goal"], buffer.observations["observation"]
        over, truncated, rewards = follow(goals, lost)
        t = trace(goals)[3]
        np.testing.assert_array_equal(buffer.episode_starts, t == 0)
        taken = np.clip(buffer.actions, -1, 1)
        np.testing.assert_array_equal(seen[1:], np.where(over[:-1, :, None], 0, taken[:-1]))

        # Where an episode was truncated, the value of its last observation is part of the reward
        last_goals = goals + np.where(lost, 0, TracedEnv.UNITS[3])[..., None] * [0, 0, 0, 1]
        last_seen = np.where(lost[..., None], seen, taken)
        rewards = rewards.astype(np.float64)
        for step in range(buffer.buffer_size):
            values, self.states = self._act(seen[step], goals[step], self.states, t[step] == 0)
            np.testing.assert_allclose(buffer.values[step], values, rtol=1e-3, atol=1e-4)
            last_values, _ = self._act(last_seen[step], last_goals[step], self.states, np.zeros(N_ENVS))
            rewards[step] += gamma * last_values * truncated[step]
        np.testing.assert_allclose(buffer.rewards, rewards, rtol=1e-3, atol=1e-4)
        self.n_checked += buffer.buffer_size

    @th.no_grad()
    def _act(self, seen, goals, states, starts):
        arrays = dict(observation=seen, achieved_goal=goals, desired_goal=np.full((N_ENVS, 4), -1))
        observations = {key: th.as_tensor(array, dtype=th.float32) for key, array in arrays.items()}
        _, values, _, states = self.model.policy.forward(observations, states, th.as_tensor(starts, dtype=th.float32))
        return values.numpy().ravel(), states


def follow(goals, lost):
    """
    Check that rows follow each other as steps of the environments do, and say how they end.

    :param goals: Achieved goals before each step. Shape: (n_steps, n_envs, 4)
    :param lost: Which steps lost an environment. Shape: (n_steps, n_envs)
    :return: whether each step ended an episode, whether it truncated it, and its reward. Shape of each: (n_steps, n_envs)
    """
    env, process, episode, t = trace(goals)
    ended = ~lost & (t + 1 == episode_length(env, episode))
    over = lost | ended
    assert (env == ENVS).all()
    np.testing.assert_array_equal(process[1:] != process[:-1], lost[:-1])
    np.testing.assert_array_equal(episode[1:], np.where(lost, 0, episode + over)[:-1])
    np.testing.assert_array_equal(t[1:], np.where(over, 0, t + 1)[:-1])
    return over, lost | (ended & (episode % 3 > 0)), np.where(lost, 0, -17 - t)


def learn(model, chaos):
    """Train, and check that exactly the environments of killed workers are marked, and that each loss is told."""
    with pytest.warns(UserWarning, match="RayVecEnv lost worker") as told:
        model.learn(TIMESTEPS, callback=chaos)
    assert model.num_timesteps == TIMESTEPS
    np.testing.assert_array_equal(chaos.marked, chaos.lost)
    n_kills = sum(map(len, chaos.kills.values()))
    assert chaos.marked.sum() == 2 * n_kills
    losses = [str(warning.message) for warning in told if "RayVecEnv lost worker" in str(warning.message)]
    assert len(losses) == n_kills
    assert not any(".." in loss for loss in losses)  # a reason is text of Ray's, and the sentence goes on
    assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())


@pytest.fixture
def vec_env(local_ray, request):
    """Three workers of two environments each."""
    env_fns = [functools.partial(TracedEnv, env) for env in range(N_ENVS)]
    vec_env = RayVecEnv(env_fns, envs_per_worker=2, max_restarts=-1, pipeline=getattr(request, "param", False))
    yield vec_env
    vec_env.close()


@pytest.mark.parametrize(
    ("buffer_class", "kwargs"), [(FastHerReplayBuffer, dict(reward_source="vec_env")), (HerReplayBuffer, {})]
)
def test_hindsight_replay(vec_env, buffer_class, kwargs):
    """Each transition is one that happened, or the truncated end of an episode that was lost, and so are all samples."""
    model = SAC(
        "MultiInputPolicy",
        vec_env,
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs=kwargs,
        buffer_size=2 * TIMESTEPS,
        learning_starts=300,
        train_freq=4,
        batch_size=16,
        policy_kwargs=dict(net_arch=[4]),
        device="cpu",
        seed=0,
    )
    chaos = Chaos(seed=1)
    learn(model, chaos)
    check_rows(model.replay_buffer, chaos.lost)
    for _ in range(20):
        check_samples(model.replay_buffer.sample(1000))


def check_rows(buffer, lost):
    assert buffer.pos == N_STEPS
    now, later = (
        {key: array[:N_STEPS] for key, array in both.items()} for both in (buffer.observations, buffer.next_observations)
    )
    over, truncated, rewards = follow(now["achieved_goal"], lost)
    np.testing.assert_array_equal(buffer.dones[:N_STEPS], over)
    np.testing.assert_array_equal(buffer.timeouts[:N_STEPS], truncated)
    np.testing.assert_array_equal(buffer.rewards[:N_STEPS], rewards)
    *_, episode, t = places = trace(now["achieved_goal"])
    np.testing.assert_array_equal(trace(later["achieved_goal"]), [*places[:3], t + ~lost])
    np.testing.assert_allclose(
        later["observation"], np.where(lost[..., None], now["observation"], buffer.actions[:N_STEPS]), atol=1e-6
    )
    assert (now["desired_goal"] == -1).all()
    assert (later["desired_goal"] == -1).all()

    # Episodes, as samples see them: closed ones from their first row to their last, running ones not at all
    start, length = buffer.ep_start[:N_STEPS], buffer.ep_length[:N_STEPS]
    closed = np.logical_or.accumulate(over[::-1])[::-1]
    np.testing.assert_array_equal(length > 0, closed)
    row, env = closed.nonzero()
    last = (start + length)[row, env] - 1
    np.testing.assert_array_equal(start[row, env], row - t[row, env])
    np.testing.assert_array_equal(t[last, env], t[row, env] + last - row)
    np.testing.assert_array_equal(episode[last, env], episode[row, env])
    assert over[last, env].all()


def check_samples(samples):
    now, later = samples.observations, samples.next_observations
    env, process, episode, t = trace(now["achieved_goal"])
    next_t = trace(later["achieved_goal"])[3]
    lost = next_t == t
    np.testing.assert_array_equal(trace(later["achieved_goal"])[:3], [env, process, episode])
    np.testing.assert_array_equal(next_t, t + ~lost)
    np.testing.assert_array_equal(later["desired_goal"], now["desired_goal"])

    goal = trace(now["desired_goal"])
    virtual = goal[3] >= 0
    assert virtual.sum() == 800
    np.testing.assert_array_equal(goal[:3, virtual], np.stack([env, process, episode])[:, virtual])
    assert (goal[3] >= next_t)[virtual].all()
    real_rewards = np.where(lost, 0, -16 - next_t)
    np.testing.assert_array_equal(samples.rewards.ravel(), np.where(virtual, goal[3] - next_t, real_rewards))
    # Only what an environment has terminated is not bootstrapped, and the rest from its own episode
    terminated = ~lost & (next_t == episode_length(env, episode)) & (episode % 3 == 0)
    np.testing.assert_array_equal(samples.dones.ravel(), terminated)


@pytest.mark.parametrize("vec_env", [False, True], ids=["whole", "pipeline"], indirect=True)
def test_recurrent_rollouts(vec_env):
    """Episodes start where they do, LSTM states with them, and values follow from these alone."""
    model = SeqRecurrentPPO(
        "MultiInputLstmPolicy",
        vec_env,
        n_steps=160,
        batch_size=480,
        n_epochs=1,
        policy_kwargs=dict(lstm_hidden_size=4, net_arch=[4]),
        device="cpu",
        seed=0,
    )
    chaos = RecurrentChaos(seed=2, pipeline=len(vec_env.parts) > 1)
    learn(model, chaos)
    assert chaos.n_checked == N_STEPS
