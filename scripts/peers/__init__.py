"""The sides of scripts/benchmark_peers.py: one file each, with a function ``train(work)``."""
