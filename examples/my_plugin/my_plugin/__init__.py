"""Plugins for RL Baselines3 Zoo: see the entry points in pyproject.toml."""
