"""VecNormalize for observations that lie side by side in one array."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.vec_env import VecNormalize


def normalize_columns(observations: Any, columns: Mapping[str, slice], env: VecNormalize) -> Any:
    """
    Normalize observations as :meth:`VecNormalize.normalize_obs` does, all keys in one pass, in single precision.

    :param observations: Observations of several keys, an array or a tensor. Shape: (n, n_observations, n_columns)
    :param columns: Columns of each key
    :param env: Holds the statistics
    :return: normalized observations, of the same shape and kind; keys that ``env`` leaves alone are as they were
    """
    if isinstance(observations, np.ndarray):
        # PyTorch is several times faster at this
        return normalize_columns(th.from_numpy(observations), columns, env).numpy()
    assert isinstance(env.obs_rms, dict)
    assert env.norm_obs_keys is not None
    _, n_observations, n_columns = observations.shape
    constants = np.zeros((3, n_observations, n_columns), np.float32)
    mean, scale, bound = constants
    scale[:], bound[:] = 1, np.inf
    for key in env.norm_obs_keys:
        statistics = env.obs_rms[key]
        mean[:, columns[key]] = statistics.mean.ravel()
        scale[:, columns[key]] = 1 / np.sqrt(statistics.var + env.epsilon).ravel()
        bound[:, columns[key]] = env.clip_obs
    mean_, scale_, bound_ = th.from_numpy(constants).to(observations.device).flatten(1)
    normalized = observations.flatten(1).sub(mean_).mul_(scale_)
    if len(env.norm_obs_keys) == len(columns):
        normalized.clamp_(-env.clip_obs, env.clip_obs)
    else:
        normalized.clamp_(-bound_, bound_)
    return normalized.unflatten(1, (n_observations, n_columns))


def normalize_rewards(rewards: Any, env: VecNormalize) -> Any:
    """
    Normalize rewards as :meth:`VecNormalize.normalize_reward` does.

    :param rewards: Rewards, an array or a tensor of any shape
    :param env: Holds the statistics
    :return: normalized rewards, of the same shape and kind
    """
    if isinstance(rewards, np.ndarray):
        return np.asarray(env.normalize_reward(rewards), dtype=np.float32)
    return th.from_numpy(normalize_rewards(rewards.cpu().numpy(), env)).to(rewards.device)
