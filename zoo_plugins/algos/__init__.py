"""Algorithms: one file each."""

from zoo_plugins.algos.seq_recurrent_ppo import SeqRecurrentPPO

__all__ = ["SeqRecurrentPPO"]
