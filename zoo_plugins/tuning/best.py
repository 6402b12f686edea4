"""A trial as a block of a hyperparameter file."""

from collections.abc import Mapping
from typing import Any

import yaml
from torch import nn

from zoo_plugins.exp_manager import HER_PARAMS, HYPERPARAMS_CONVERTER


def trial_block(algo: str, env: str, block: Mapping[str, Any], params: Mapping[str, Any], remark: str) -> str:
    """
    Write the hyperparameters of a trial as they stand in a file.

    :param algo: Name of the algorithm
    :param env: Id of the environment
    :param block: The hyperparameters that the trial began with
    :param params: What was sampled for it
    :param remark: A comment to begin with
    :return: YAML
    """
    converted = HYPERPARAMS_CONVERTER[algo](dict(params))
    her = {key: converted.pop(key) for key in HER_PARAMS if key in converted}
    found = {**block, **converted}
    if her and isinstance(block.get("replay_buffer_kwargs") or {}, dict):
        found["replay_buffer_kwargs"] = {**(block.get("replay_buffer_kwargs") or {}), **her}
    return f"# {remark}\n" + yaml.safe_dump({env: _as_data(found)}, sort_keys=False)


def _as_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_data(item) for item in value]
    if isinstance(value, type):
        short = getattr(nn, value.__name__, None) is value
        return f"nn.{value.__name__}" if short else f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "item"):  # NumPy's numbers
        return value.item()
    return value
