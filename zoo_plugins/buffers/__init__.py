"""Rollout and replay buffers: one file each."""

from zoo_plugins.buffers.sequence_batch import SequenceBatch
from zoo_plugins.buffers.sequence_rollout_buffer import SequenceDictRolloutBuffer, SequenceRolloutBuffer

__all__ = ["SequenceBatch", "SequenceDictRolloutBuffer", "SequenceRolloutBuffer"]
