"""Algorithms: one file each."""

from zoo_plugins.algos.maskable_seq_recurrent_ppo import MaskableSeqRecurrentPPO
from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO
from zoo_plugins.algos.tensor_ppo import TensorPPO

__all__ = ["MaskableSeqRecurrentPPO", "SeqRecurrentPPO", "TensorPPO"]
