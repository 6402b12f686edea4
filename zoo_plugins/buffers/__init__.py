"""Rollout and replay buffers: one file each."""

from zoo_plugins.buffers.sequence_rollout_buffer import SequenceBatch, SequenceDictRolloutBuffer, SequenceRolloutBuffer

__all__ = ["SequenceBatch", "SequenceDictRolloutBuffer", "SequenceRolloutBuffer"]
