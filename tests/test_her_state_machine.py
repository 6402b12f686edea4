"""FastHerReplayBuffer against a model of it: lists of episodes, in plain Python."""

import pickle
import warnings

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.goal_envs import make_goal_envs
from zoo_plugins import FastHerReplayBuffer


class Episode:
    """Steps of an episode: the number of each in the order of all steps, and how it goes on."""

    def __init__(self, name: int):
        self.name = name
        self.steps: list[int] = []
        self.finished = False


class HerMachine(RuleBasedStateMachine):
    @initialize(
        n_envs=st.integers(1, 3),
        n_steps=st.integers(4, 9),
        strategy=st.sampled_from(["future", "final", "episode"]),
        optimize_memory_usage=st.booleans(),
        storage=st.sampled_from(["cpu", "device"]),
    )
    def start(self, n_envs, n_steps, strategy, optimize_memory_usage, storage):
        self.env = make_goal_envs([3] * n_envs)
        self.n_envs, self.n_steps, self.strategy = n_envs, n_steps, strategy
        self.buffer = FastHerReplayBuffer(
            n_envs * n_steps + n_envs - 1,
            self.env.observation_space,
            self.env.action_space,
            self.env,
            device="cpu",
            n_envs=n_envs,
            goal_selection_strategy=strategy,
            optimize_memory_usage=optimize_memory_usage,
            storage=storage,
        )
        self.n_added = 0
        self.n_episodes = 0
        self.episodes: list[list[Episode]] = [[self._new_episode()] for _ in range(n_envs)]

    def _new_episode(self) -> Episode:
        self.n_episodes += 1
        return Episode(self.n_episodes)

    def _observe(self, env: int, t: int) -> dict[str, np.ndarray]:
        episode = self.episodes[env][-1]
        return {
            "observation": np.array([env, episode.name, t], np.float32),
            "achieved_goal": np.array([episode.name, t], np.float64),
            "desired_goal": np.full(2, -1.0),
        }

    def _valid(self) -> set[tuple[int, int, int]]:
        """Environment, episode and step of what may be sampled: finished episodes of which nothing was overwritten."""
        oldest = self.n_added - self.n_steps
        return {
            (env, episode.name, t)
            for env, episodes in enumerate(self.episodes)
            for episode in episodes
            if episode.finished and episode.steps[0] >= oldest
            for t in range(len(episode.steps))
        }

    def _length(self, env: int, name: int) -> int:
        return next(len(episode.steps) for episode in self.episodes[env] if episode.name == name)

    @rule(data=st.data())
    def add(self, data):
        done = np.zeros(self.n_envs, bool)
        rows = []
        for env in range(self.n_envs):
            episode = self.episodes[env][-1]
            t = len(episode.steps)
            # No episode may become longer than the buffer
            done[env] = t + 1 == self.n_steps or data.draw(st.booleans())
            rows.append((self._observe(env, t), self._observe(env, t + 1)))
            episode.steps.append(self.n_added)
        self._add(rows, done)
        for env in np.flatnonzero(done):
            self._finish(env)

    def _finish(self, env: int) -> None:
        self.episodes[env][-1].finished = True
        self.episodes[env].append(self._new_episode())

    @rule()
    def truncate(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.buffer.truncate_last_trajectory()
        for env in range(self.n_envs):
            if self.episodes[env][-1].steps:
                self._finish(env)

    @rule()
    def reset_environments_and_add(self):
        """As a second learn() does: the buffer finds out by the next step."""
        for env in range(self.n_envs):
            if self.episodes[env][-1].steps:
                self._finish(env)
            self.episodes[env][-1].steps.append(self.n_added)
        rows = [(self._observe(env, 0), self._observe(env, 1)) for env in range(self.n_envs)]
        self._add(rows, np.zeros(self.n_envs, bool))

    def _add(self, rows, done):
        obs, next_obs = ({key: np.stack([row[i][key] for row in rows]) for key in rows[0][i]} for i in (0, 1))
        actions, rewards = np.zeros((self.n_envs, 1)), np.full(self.n_envs, -1.0)
        self.buffer.add(obs, next_obs, actions, rewards, done, [{}] * self.n_envs)
        self.n_added += 1

    @rule()
    def save_and_load(self):
        self.buffer = pickle.loads(pickle.dumps(self.buffer))
        self.buffer.set_env(self.env)

    @rule(n_envs=st.integers(1, 3))
    def load_for_another_number_of_environments(self, n_envs):
        """Finished episodes stay, those that fit; nothing else does."""
        before = self._valid()
        loaded = pickle.loads(pickle.dumps(self.buffer))
        loaded.set_env(make_goal_envs([3] * n_envs))
        if n_envs != self.n_envs and loaded.n_sampleable:
            sampled = self._decode(loaded.sample(200))
            assert set(sampled) <= before

    @precondition(lambda self: self._valid())
    @rule(batch_size=st.integers(1, 40))
    def sample(self, batch_size):
        valid = self._valid()
        samples = self.buffer.sample(batch_size)
        goals = samples.observations["desired_goal"].int().tolist()
        n_real = batch_size - int(0.8 * batch_size)
        for i, (env, name, t) in enumerate(self._decode(samples)):
            assert (env, name, t) in valid
            assert samples.next_observations["observation"][i].tolist() == [env, name, t + 1]
            assert samples.next_observations["achieved_goal"][i].tolist() == [name, t + 1]
            if i < n_real:
                assert goals[i] == [-1, -1]
                continue
            length = self._length(env, name)
            first, last = {"future": (t + 1, length), "final": (length, length), "episode": (1, length)}[self.strategy]
            assert goals[i][0] == name
            assert first <= goals[i][1] <= last
            assert samples.rewards[i].item() == (0 if goals[i][1] == t + 1 else -1)

    @staticmethod
    def _decode(samples) -> list[tuple[int, ...]]:
        return [tuple(row) for row in samples.observations["observation"].int().tolist()]

    @invariant()
    def the_same_can_be_sampled(self):
        if hasattr(self, "buffer"):
            assert self.buffer.n_sampleable == len(self._valid())


HerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHerReplayBuffer = HerMachine.TestCase
