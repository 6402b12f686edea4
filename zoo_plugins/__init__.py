"""
Plugins for RL Baselines3 Zoo.

Every Python start imports this file (see :mod:`zoo_plugins._startup`), so it imports nothing itself:
the public names below are loaded when they are first used (:pep:`562`).
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without the import of typing
if TYPE_CHECKING:
    from zoo_plugins.algos import MaskableSeqRecurrentPPO as MaskableSeqRecurrentPPO
    from zoo_plugins.algos import SeqRecurrentPPO as SeqRecurrentPPO
    from zoo_plugins.algos import TensorPPO as TensorPPO
    from zoo_plugins.buffers import FastHerReplayBuffer as FastHerReplayBuffer
    from zoo_plugins.buffers import SequenceDictRolloutBuffer as SequenceDictRolloutBuffer
    from zoo_plugins.buffers import SequenceRolloutBuffer as SequenceRolloutBuffer
    from zoo_plugins.buffers import TensorRolloutBuffer as TensorRolloutBuffer
    from zoo_plugins.buffers import TensorSequenceRolloutBuffer as TensorSequenceRolloutBuffer
    from zoo_plugins.callbacks import UpdateRatioCallback as UpdateRatioCallback
    from zoo_plugins.registry import AlgoSpec as AlgoSpec
    from zoo_plugins.registry import PluginError as PluginError
    from zoo_plugins.vec_envs import EnvPoolVecEnv as EnvPoolVecEnv
    from zoo_plugins.vec_envs import GymVectorVecEnv as GymVectorVecEnv
    from zoo_plugins.vec_envs import RayVecEnv as RayVecEnv
    from zoo_plugins.vec_envs import TensorVecEnv as TensorVecEnv
    from zoo_plugins.vec_envs import TensorVecFrameStack as TensorVecFrameStack
    from zoo_plugins.vec_envs import TensorVecNormalize as TensorVecNormalize
    from zoo_plugins.vec_envs import TensorVecTransposeImage as TensorVecTransposeImage

_PUBLIC = {
    "AlgoSpec": "zoo_plugins.registry",
    "EnvPoolVecEnv": "zoo_plugins.vec_envs",
    "FastHerReplayBuffer": "zoo_plugins.buffers",
    "GymVectorVecEnv": "zoo_plugins.vec_envs",
    "MaskableSeqRecurrentPPO": "zoo_plugins.algos",
    "PluginError": "zoo_plugins.registry",
    "RayVecEnv": "zoo_plugins.vec_envs",
    "SeqRecurrentPPO": "zoo_plugins.algos",
    "SequenceDictRolloutBuffer": "zoo_plugins.buffers",
    "SequenceRolloutBuffer": "zoo_plugins.buffers",
    "TensorVecEnv": "zoo_plugins.vec_envs",
    "TensorVecFrameStack": "zoo_plugins.vec_envs",
    "TensorVecNormalize": "zoo_plugins.vec_envs",
    "TensorVecTransposeImage": "zoo_plugins.vec_envs",
    "TensorPPO": "zoo_plugins.algos",
    "TensorRolloutBuffer": "zoo_plugins.buffers",
    "TensorSequenceRolloutBuffer": "zoo_plugins.buffers",
    "UpdateRatioCallback": "zoo_plugins.callbacks",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
