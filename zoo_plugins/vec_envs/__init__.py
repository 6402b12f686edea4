"""
VecEnvs: one file each.

Their classes are imported when they are first used (:pep:`562`): a worker on another machine needs neither Ray's driver nor
Stable-Baselines3 to step its environments, and this package can be imported where Ray is not installed.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zoo_plugins.vec_envs.batch_sim import BatchSim as BatchSim
    from zoo_plugins.vec_envs.envpool_vec_env import EnvPoolVecEnv as EnvPoolVecEnv
    from zoo_plugins.vec_envs.errors import EnvError as EnvError
    from zoo_plugins.vec_envs.errors import RayVecEnvError as RayVecEnvError
    from zoo_plugins.vec_envs.gym_vector_vec_env import GymVectorVecEnv as GymVectorVecEnv
    from zoo_plugins.vec_envs.ray_vec_env import RayVecEnv as RayVecEnv
    from zoo_plugins.vec_envs.tensor_infos import TensorInfos as TensorInfos
    from zoo_plugins.vec_envs.tensor_step import StepsTensors as StepsTensors
    from zoo_plugins.vec_envs.tensor_step import TensorStep as TensorStep
    from zoo_plugins.vec_envs.tensor_vec_env import TensorVecEnv as TensorVecEnv
    from zoo_plugins.vec_envs.tensor_vec_frame_stack import TensorVecFrameStack as TensorVecFrameStack
    from zoo_plugins.vec_envs.tensor_vec_normalize import TensorVecNormalize as TensorVecNormalize
    from zoo_plugins.vec_envs.tensor_vec_transpose_image import TensorVecTransposeImage as TensorVecTransposeImage

_PUBLIC = {
    "BatchSim": "zoo_plugins.vec_envs.batch_sim",
    "EnvError": "zoo_plugins.vec_envs.errors",
    "EnvPoolVecEnv": "zoo_plugins.vec_envs.envpool_vec_env",
    "GymVectorVecEnv": "zoo_plugins.vec_envs.gym_vector_vec_env",
    "RayVecEnv": "zoo_plugins.vec_envs.ray_vec_env",
    "RayVecEnvError": "zoo_plugins.vec_envs.errors",
    "StepsTensors": "zoo_plugins.vec_envs.tensor_step",
    "TensorInfos": "zoo_plugins.vec_envs.tensor_infos",
    "TensorStep": "zoo_plugins.vec_envs.tensor_step",
    "TensorVecEnv": "zoo_plugins.vec_envs.tensor_vec_env",
    "TensorVecFrameStack": "zoo_plugins.vec_envs.tensor_vec_frame_stack",
    "TensorVecNormalize": "zoo_plugins.vec_envs.tensor_vec_normalize",
    "TensorVecTransposeImage": "zoo_plugins.vec_envs.tensor_vec_transpose_image",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
