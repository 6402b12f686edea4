"""
Goal environments, registered with gymnasium when this is imported, which the zoo does by itself.

``BitFlipping-v0`` and ``BitFlippingContinuous-v0`` are Stable-Baselines3's environment of 6 bits, the actions of which are
numbers of bits, or a number for each bit. ``env_kwargs: {n_bits: 8}`` changes how many there are. The id
``zoo_plugins.envs:BitFlipping-v0`` also works in processes that have not imported this, such as those of a SubprocVecEnv.
"""

import gymnasium as gym

BIT_FLIPPING = "stable_baselines3.common.envs:BitFlippingEnv"
ENVS = {
    "BitFlipping-v0": (BIT_FLIPPING, {"n_bits": 6}),
    "BitFlippingContinuous-v0": (BIT_FLIPPING, {"n_bits": 6, "continuous": True}),
}


def register() -> None:
    """Register the environments; those that are there already stay as they are."""
    for env_id, (entry_point, kwargs) in ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point, kwargs=kwargs)


register()
