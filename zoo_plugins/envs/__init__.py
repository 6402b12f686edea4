"""
Environments, registered with gymnasium when this is imported, which the zoo does by itself.

``BitFlipping-v0`` and ``BitFlippingContinuous-v0`` are Stable-Baselines3's environment of 6 bits, the actions of which are
numbers of bits, or a number for each bit. ``env_kwargs: {n_bits: 8}`` changes how many there are.

``TensorCartPole-v1``, ``TensorPendulum-v1``, ``TensorMountainCarContinuous-v0`` and ``TensorAcrobot-v1`` are gymnasium's
environments, many copies of which are stepped together as tensors on a device. Those with ``NoVel`` in their names hide
velocities, as the zoo's do.

Ids like ``zoo_plugins.envs:BitFlipping-v0`` also work in processes that have not imported this, such as those of a
SubprocVecEnv.
"""

import gymnasium as gym

BIT_FLIPPING = "stable_baselines3.common.envs:BitFlippingEnv"
ENVS = {
    "BitFlipping-v0": (BIT_FLIPPING, {"n_bits": 6}),
    "BitFlippingContinuous-v0": (BIT_FLIPPING, {"n_bits": 6, "continuous": True}),
}
# Name and version of gymnasium's environment: module of ours, steps of an episode
TENSOR_ENVS = {
    ("CartPole", 1): ("tensor_cart_pole", 500),
    ("Pendulum", 1): ("tensor_pendulum", 200),
    ("MountainCarContinuous", 0): ("tensor_mountain_car_continuous", 999),
    ("Acrobot", 1): ("tensor_acrobot", 500),
}


def register() -> None:
    """Register the environments; those that are there already stay as they are."""
    for env_id, (entry_point, kwargs) in ENVS.items():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point, kwargs=kwargs)
    for (name, version), (module, max_episode_steps) in TENSOR_ENVS.items():
        for infix in ("", "NoVel"):
            env_id = f"Tensor{name}{infix}-v{version}"
            if env_id not in gym.registry:
                gym.register(
                    env_id,
                    entry_point=f"zoo_plugins.envs.{module}:{name}",
                    vector_entry_point=f"zoo_plugins.envs.{module}:Tensor{name}",
                    max_episode_steps=max_episode_steps,
                    kwargs={"mask_velocity": infix == "NoVel"},
                )


register()
