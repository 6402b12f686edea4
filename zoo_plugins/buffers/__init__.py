"""Rollout and replay buffers: one file each."""

from zoo_plugins.buffers.fast_her_replay_buffer import FastHerReplayBuffer
from zoo_plugins.buffers.sequence_batch import SequenceBatch
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceDictRolloutBuffer, SequenceRolloutBuffer
from zoo_plugins.buffers.tensor_rollout_buffer import TensorRolloutBuffer
from zoo_plugins.buffers.tensor_sequence_rollout_buffer import TensorSequenceRolloutBuffer

__all__ = [
    "FastHerReplayBuffer",
    "SequenceBatch",
    "SequenceDictRolloutBuffer",
    "SequenceRolloutBuffer",
    "TensorRolloutBuffer",
    "TensorSequenceRolloutBuffer",
]
