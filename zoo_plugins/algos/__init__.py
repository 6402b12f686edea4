"""Algorithms: one file each."""

from zoo_plugins.algos.maskable_seq_recurrent_ppo import MaskableSeqRecurrentPPO
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO

__all__ = ["MaskableSeqRecurrentPPO", "SeqRecurrentPPO"]
