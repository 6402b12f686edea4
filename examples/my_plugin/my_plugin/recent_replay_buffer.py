"""A replay buffer of one's own."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize


class RecentReplayBuffer(ReplayBuffer):
    """
    ReplayBuffer that draws a part of each batch from the newest transitions.

    :param recent_share: Share of a batch that is new, on average
    :param n_recent: How many steps of each environment are new

    The other arguments are those of SB3's buffer, without optimize_memory_usage.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        recent_share: float = 0.5,
        n_recent: int = 1000,
    ):
        if optimize_memory_usage:
            raise ValueError("RecentReplayBuffer does not support optimize_memory_usage=True")
        if not 0 <= recent_share <= 1 or n_recent < 1:
            raise ValueError(f"recent_share must be in [0, 1], and n_recent at least 1, not {recent_share} and {n_recent}")
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs=n_envs,
            handle_timeout_termination=handle_timeout_termination,
        )
        self.recent_share, self.n_recent = recent_share, n_recent

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Sample transitions, the ages of which count from the newest step."""
        is_recent = np.random.random(batch_size) < self.recent_share
        ages = np.random.randint(np.where(is_recent, min(self.n_recent, self.size()), self.size()))
        return self._get_samples((self.pos - 1 - ages) % self.buffer_size, env)
