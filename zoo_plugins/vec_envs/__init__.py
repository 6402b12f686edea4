"""
VecEnvs: one file each.

Their classes are imported when they are first used (:pep:`562`): a worker on another machine needs neither Ray's driver nor
Stable-Baselines3 to step its environments, and this package can be imported where Ray is not installed.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zoo_plugins.vec_envs.errors import EnvError as EnvError
    from zoo_plugins.vec_envs.errors import RayVecEnvError as RayVecEnvError
    from zoo_plugins.vec_envs.ray_vec_env import RayVecEnv as RayVecEnv

_PUBLIC = {
    "EnvError": "zoo_plugins.vec_envs.errors",
    "RayVecEnv": "zoo_plugins.vec_envs.ray_vec_env",
    "RayVecEnvError": "zoo_plugins.vec_envs.errors",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
