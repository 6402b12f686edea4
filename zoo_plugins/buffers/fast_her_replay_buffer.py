"""Hindsight experience replay at a cost that does not depend on what the buffer holds."""

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy

from zoo_plugins.buffers.episode_ring import EpisodeRing
from zoo_plugins.buffers.goal_rewards import SOURCES, GoalRewards
from zoo_plugins.buffers.normalization import normalize_columns, normalize_rewards
from zoo_plugins.buffers.transition_storage import Step, TransitionStorage

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
STORAGES = ("cpu", "device")
MAX_DRAWN = 2**13  # transitions drawn at once, for several calls of sample()
# Attributes that are views of, or can be made from, others
DERIVED = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")


class FastHerReplayBuffer(HerReplayBuffer):
    """
    SB3's ``HerReplayBuffer`` with the same sampling law, at a cost per sample that does not grow with the buffer.
    Paper: https://arxiv.org/abs/1707.01495

    Of each environment, the transitions that can be sampled (those of finished episodes) are one piece of the ring, so that
    a uniform draw needs the lengths of ``n_envs`` pieces and not a look at all transitions. A transition is one record, which
    one gather fetches. What the updates of one ``train()`` ask for is drawn at once, when their number is known from the last
    time. Random numbers come from NumPy's global generator, as in SB3.

    What differs from SB3 2.9: float64 observations are stored, and returned, as float32, which is what policies make of them
    (``compute_reward()`` gets the dtype of the space). An environment that was reset from outside, by a second ``learn()``,
    has its running episode closed as truncated. An episode that is longer than the buffer is an error.

    :param buffer_size: Max number of transitions, over all environments
    :param observation_space: Observation space: a Dict with "observation", "achieved_goal" and "desired_goal"
    :param action_space: Action space
    :param env: The training environment
    :param device: PyTorch device of the samples
    :param n_envs: Number of parallel environments
    :param optimize_memory_usage: Store each observation once, not a second time as the next observation of the transition
        before it
    :param handle_timeout_termination: Handle timeout termination (due to timelimit) separately and treat the task as
        infinite horizon task. https://github.com/DLR-RM/stable-baselines3/issues/284
    :param n_sampled_goal: Number of virtual transitions to create per real transition, by sampling new goals
    :param goal_selection_strategy: Which transition of the episode gives the goal of a virtual one: "future" (the same or a
        later one), "final" (the last one) or "episode" (any)
    :param copy_info_dict: Whether to keep the info dicts, and pass copies of them to ``compute_reward()``
    :param storage: "cpu", or "device" to keep the transitions where the samples go
    :param reward_source: Who computes the rewards of virtual transitions: "auto" or "vec_env", see :class:`GoalRewards`
    :raises ValueError: if an argument has another value, or the observation space lacks a key; from :meth:`add`, if an episode
        has more than ``buffer_size // n_envs`` steps, or may have by the environment's time limit; from
        :meth:`set_env`, if the environment has other spaces
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        storage: str = "cpu",
        reward_source: str = "auto",
    ):
        missing = [key for key in GOAL_KEYS if key not in getattr(observation_space, "spaces", {})]
        if missing:
            raise ValueError(f"{type(self).__name__} needs goals, but {', '.join(missing)} is not in {observation_space}")
        if isinstance(goal_selection_strategy, str):
            goal_selection_strategy = goal_selection_strategy.lower()
            _check_word("goal_selection_strategy", goal_selection_strategy, KEY_TO_GOAL_STRATEGY)
        _check_word("storage", storage, STORAGES)
        _check_word("reward_source", reward_source, SOURCES)
        if n_sampled_goal < 0:
            raise ValueError(f"n_sampled_goal must be at least 0, not {n_sampled_goal}")
        # Upstream allocates what is not needed here, and only for one step
        super().__init__(
            n_envs,
            observation_space,
            action_space,
            env,
            device=device,
            n_envs=n_envs,
            handle_timeout_termination=handle_timeout_termination,
            n_sampled_goal=n_sampled_goal,
            goal_selection_strategy=goal_selection_strategy,
            copy_info_dict=copy_info_dict,
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.storage = storage
        self.reward_source = reward_source
        self.reset()

    def reset(self) -> None:
        """Forget all transitions."""
        super().reset()
        self._episodes = EpisodeRing(self.buffer_size, self.n_envs)
        self._transitions = TransitionStorage(
            self.observation_space,
            self.obs_shape,
            (np.dtype(self._maybe_cast_dtype(self.action_space.dtype)), self.action_dim),
            self.buffer_size,
            self.n_envs,
            next_observations=not self.optimize_memory_usage,
        )
        self.infos = np.empty((self.buffer_size if self.copy_info_dict else 0, self.n_envs), dtype=object)
        # The step that was added last, and one to put the next one together in
        self._last_step, self._spare_step = (Step(self._transitions.step_layout, self.n_envs) for _ in range(2))
        self._make_derived()

    def _make_derived(self) -> None:
        """Set the attributes that users of SB3's buffer know, as views, and forget what was drawn in advance."""

        def by_step(field: Any) -> Any:
            return field.reshape(self.buffer_size, self.n_envs, *field.shape[1:])

        layout = self._transitions.layout
        fields = layout.fields(self._transitions.records)
        self.observations = {key: by_step(obs) for key, obs in layout.observations(fields, 0).items()}
        self.next_observations = {}
        if not self.optimize_memory_usage:
            self.next_observations = {key: by_step(obs) for key, obs in layout.observations(fields, 1).items()}
        self.actions, self.rewards = by_step(fields["actions"]), by_step(fields["rewards"])
        self.dones, self.timeouts = by_step(fields["dones"]), by_step(fields["timeouts"])
        self.ep_start, self.ep_length = self._episodes.start, self._episodes.length  # type: ignore[assignment]
        self._current_ep_start = self._episodes.running_start
        self._goal_rewards: GoalRewards | None = None
        self._empty_infos: list[dict[str, Any]] = []
        self._drawn: list[Any] = []  # records of a batch each
        self._n_sampled, self._n_expected = 0, 1

    def _move_storage(self) -> None:
        # Not before it is needed: after loading, SB3 sets the device when all else is in place
        if self.storage == "device" and self._transitions.move_to(self.device):
            self._make_derived()

    # Environment

    def set_env(self, env: VecEnv) -> None:
        """
        Set the environment, also in place of another one.

        Transitions stay. If it has another number of environments, those of finished episodes are laid out anew, the newest
        ones if not all fit, and those of running episodes are lost.

        :param env: The environment
        :raises ValueError: if its spaces are others
        """
        for name in ("observation_space", "action_space"):
            if getattr(env, name) != getattr(self, name):
                raise ValueError(f"the replay buffer is for {name} {getattr(self, name)}, not {getattr(env, name)}")
        self.env = env
        if self._goal_rewards is not None:
            self._goal_rewards.close()
            self._goal_rewards = None
        if env.num_envs != self.n_envs:
            self._change_n_envs(env.num_envs)

    def _change_n_envs(self, n_envs: int) -> None:
        old_episodes, old_transitions, old_infos = self._episodes, self._transitions, self.infos
        self.buffer_size = max(self.buffer_size * self.n_envs // n_envs, 1)
        self.n_envs = n_envs
        newest_step = self.pos - 1
        self.reset()

        def age(rows: np.ndarray) -> int:
            return (newest_step - int(rows[-1]) // old_episodes.n_envs) % old_episodes.n_steps

        moves, end = self._episodes.adopt(sorted(old_episodes.episodes(), key=age))
        self.pos, self.full = end % self.buffer_size, end == self.buffer_size
        for old_rows, rows in moves:
            self._transitions.adopt(old_transitions, old_rows, rows)
            if self.copy_info_dict:
                self.infos.reshape(-1)[rows] = old_infos.reshape(-1)[old_rows]

    def _check_time_limit(self) -> None:
        limit = None if self.env is None else find_time_limit(self.env)
        if limit is not None and limit > self.buffer_size:
            raise self._too_small(f"an episode may have {limit}", limit)

    def _too_small(self, problem: str, n_steps: int) -> ValueError:
        return ValueError(
            f"the replay buffer holds {self.buffer_size * self.n_envs} transitions, {self.buffer_size} for each of "
            f"{self.n_envs} environments, but {problem}. buffer_size must be at least {self.n_envs} * {n_steps} = "
            f"{self.n_envs * n_steps}"
        )

    # Collecting

    def add(  # type: ignore[override]
        self,
        obs: dict[str, np.ndarray],
        next_obs: dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Add a step of all environments.

        :param obs: Observations of each key. Shape: ``(n_envs, *obs_shape)``
        :param next_obs: Next observations of each key; the last ones of episodes that end. Shape: ``(n_envs, *obs_shape)``
        :param action: Actions. Shape: ``(n_envs, *action_shape)``
        :param reward: Rewards. Shape: (n_envs,)
        :param done: Whether the episode ends. Shape: (n_envs,)
        :param infos: The info dict of each environment
        :raises ValueError: if an episode is, or may become, longer than the buffer
        """
        if self.pos == 0 and not self.full:
            self._check_time_limit()
        step, ended = self._spare_step, np.asarray(done).nonzero()[0]
        # A timeout has a meaning only where an episode ends
        look_at_infos = self.handle_timeout_termination and len(ended)
        timeouts = [info.get("TimeLimit.truncated", False) for info in infos] if look_at_infos else False
        step.fill(obs, next_obs, action, reward, done, timeouts)
        for env_idx in step.find_breaks(self._last_step):
            if self._episodes.running_length[env_idx]:
                self._truncate(int(env_idx))
        self._move_storage()
        try:
            self._episodes.add_step(self.pos)
        except ValueError as error:
            raise self._too_small(f"an episode has at least {self.buffer_size + 1}", self.buffer_size + 1) from error
        self._transitions.put_step(self.pos, step)
        if self.copy_info_dict:
            self.infos[self.pos] = [info.copy() for info in infos]
        self._last_step, self._spare_step = step, self._last_step
        self.pos = (self.pos + 1) % self.buffer_size
        self.full = self.full or self.pos == 0
        for env_idx in ended:
            self._compute_episode_length(int(env_idx))

        if self._n_sampled:
            self._n_expected, self._n_sampled = self._n_sampled, 0
        self._drawn.clear()

    def _compute_episode_length(self, env_idx: int) -> None:
        last_row = (self.pos - 1) % self.buffer_size * self.n_envs + env_idx
        self._transitions.end_episode(last_row, self._last_step.records[env_idx : env_idx + 1])
        self._episodes.finish(env_idx)

    def _truncate(self, env_idx: int) -> None:
        """End an episode that the environment did not end, as :meth:`truncate_last_trajectory` does."""
        self.dones[self.pos - 1, env_idx] = True
        if self.handle_timeout_termination:
            self.timeouts[self.pos - 1, env_idx] = True
        self._compute_episode_length(env_idx)

    # Sampling

    @property
    def n_sampleable(self) -> int:
        """Number of transitions of finished episodes, among which samples are drawn."""
        return self._episodes.n_finished

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:  # type: ignore[override]
        """
        Sample transitions, some of them with a goal that was achieved later in place of the desired one.

        :param batch_size: Number of transitions
        :param env: Associated VecEnv to normalize the observations/rewards when sampling
        :return: Samples: real transitions, then virtual ones
        :raises RuntimeError: if no episode has ended yet
        """
        if not self._drawn or len(self._drawn[-1]) != batch_size:
            n_batches = min(self._n_expected - self._n_sampled, MAX_DRAWN // batch_size)
            self._drawn = self._draw(max(n_batches, 1), batch_size)
        self._n_sampled += 1
        layout = self._transitions.step_layout
        records = self._drawn.pop()
        if isinstance(records, np.ndarray) and self.device.type != "cpu":
            records = layout.move(records, self.device)
        fields = layout.fields(records)
        observations, next_observations = self._read_observations(fields, env)
        rewards = fields["rewards"] if env is None else normalize_rewards(fields["rewards"], env)
        return DictReplayBufferSamples(
            observations=observations,
            actions=_as_tensor(fields["actions"]),
            next_observations=next_observations,
            dones=_as_tensor(fields["dones"]).unsqueeze(1),
            rewards=_as_tensor(rewards).unsqueeze(1),
        )

    def _read_observations(self, fields: dict[str, Any], env: VecNormalize | None) -> list[dict[str, th.Tensor]]:
        layout = self._transitions.step_layout
        if env is None or not env.norm_obs:
            return [_as_tensors(layout.observations(fields, index)) for index in (0, 1)]
        if type(env).normalize_obs is VecNormalize.normalize_obs and layout.columns.keys() >= set(env.norm_obs_keys or ()):
            normalized = {**fields, "columns": normalize_columns(fields["columns"], layout.columns, env)}
            return [_as_tensors(layout.observations(normalized, index)) for index in (0, 1)]
        both = []
        for index in (0, 1):
            arrays = {key: _as_array(obs) for key, obs in layout.observations(fields, index).items()}
            both.append({key: self.to_torch(obs) for key, obs in env.normalize_obs(arrays).items()})  # type: ignore[union-attr]
        return both

    def _draw(self, n_batches: int, batch_size: int) -> list[Any]:
        """Draw the records of some batches, not normalized."""
        if self.n_sampleable == 0:
            raise RuntimeError(
                f"Unable to sample before the end of the first episode: all {self.size() * self.n_envs} transitions in the "
                f"replay buffer are of running ones. learning_starts counts those of all {self.n_envs} environments, "
                f"so it must be more than {self.n_envs} * the number of steps of an episode; or pass "
                "zoo_plugins.UpdateRatioCallback() to learn(), which waits"
            )
        self._move_storage()
        rows = self._episodes.draw(n_batches * batch_size)
        records = self._transitions.take(rows)
        fields = self._transitions.step_layout.fields(records)
        n_virtual = int(self.her_ratio * batch_size)
        if n_virtual:
            self._replace_goals(fields, rows.reshape(n_batches, batch_size)[:, batch_size - n_virtual :])
        # Only use dones that are not due to timeouts
        fields["dones"] *= 1 - fields["timeouts"]
        return [records[start : start + batch_size] for start in range(0, len(rows), batch_size)]

    def _replace_goals(self, fields: dict[str, Any], rows: np.ndarray) -> None:
        """
        Turn the last transitions of each batch into virtual ones.

        :param fields: Fields of n_batches * batch_size transitions, which are changed
        :param rows: Rows of those that become virtual. Shape: (n_batches, n_virtual)
        """
        n_batches, n_virtual = rows.shape
        rows = rows.ravel()

        def virtual(field: Any) -> Any:
            return field.reshape(n_batches, -1, *field.shape[1:])[:, -n_virtual:]

        observations, next_observations = (self._transitions.step_layout.observations(fields, index) for index in (0, 1))
        goals = self._transitions.take_achieved_goals(self._episodes.draw_goals(rows, self.goal_selection_strategy))
        for desired_goals in (observations["desired_goal"], next_observations["desired_goal"]):
            virtual(desired_goals)[...] = goals.reshape(n_batches, n_virtual, *goals.shape[1:])
        achieved_goals = virtual(next_observations["achieved_goal"]).reshape(goals.shape)
        rewards = self._compute_rewards(_as_array(achieved_goals), _as_array(goals), rows).reshape(n_batches, n_virtual)
        virtual(fields["rewards"])[...] = rewards if isinstance(goals, np.ndarray) else th.from_numpy(rewards)

    def _compute_rewards(self, achieved_goals: np.ndarray, desired_goals: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self._goal_rewards is None:
            assert self.env is not None, "the replay buffer needs the environment to compute rewards: call set_env()"
            self._goal_rewards = GoalRewards(self.env, self.reward_source)
        if self.copy_info_dict:
            infos = copy.deepcopy(list(self.infos.reshape(-1)[rows]))
        else:
            # Making a dict per transition takes longer than computing most rewards
            if len(self._empty_infos) != len(rows) or any(self._empty_infos):
                self._empty_infos = [{} for _ in range(len(rows))]
            infos = self._empty_infos
        space = self.observation_space
        return self._goal_rewards(
            np.array(achieved_goals, dtype=space["achieved_goal"].dtype),
            np.array(desired_goals, dtype=space["desired_goal"].dtype),
            infos,
        )

    # Files

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for name in (*DERIVED, "_current_ep_start", "_goal_rewards", "_empty_infos", "_drawn", "_spare_step"):
            del state[name]
        state["_last_step"] = self._last_step.records
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._last_step, self._spare_step = (Step(self._transitions.step_layout, self.n_envs) for _ in range(2))
        self._last_step.records[...] = state["_last_step"]
        self._make_derived()


def find_time_limit(env: VecEnv) -> int | None:
    """
    Find out how many steps an episode may have.

    :param env: The environment
    :return: the limit of its ``TimeLimit`` wrapper, None if it has none
    """
    # Asked for an attribute that is not there, or for a spec that can't be pickled, a worker of SubprocVecEnv would die
    limits = env.get_attr("_max_episode_steps") if env.has_attr("_max_episode_steps") else []
    return max((limit for limit in limits if isinstance(limit, int)), default=None)


def _check_word(name: str, word: str, valid: Collection[str]) -> None:
    if word not in valid:
        raise ValueError(f"{name} must be one of {', '.join(valid)}, not {word!r}")


def _as_array(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


def _as_tensor(values: Any) -> th.Tensor:
    return th.from_numpy(values) if isinstance(values, np.ndarray) else values


def _as_tensors(values: dict[str, Any]) -> dict[str, th.Tensor]:
    return {key: _as_tensor(item) for key, item in values.items()}
