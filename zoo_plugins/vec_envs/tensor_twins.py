"""SB3's wrappers of VecEnvs, and those that do the same with tensors."""

from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecNormalize, VecTransposeImage

from zoo_plugins.vec_envs.numpy_face import steps_tensors
from zoo_plugins.vec_envs.tensor_vec_frame_stack import TensorVecFrameStack
from zoo_plugins.vec_envs.tensor_vec_normalize import TensorVecNormalize
from zoo_plugins.vec_envs.tensor_vec_transpose_image import TensorVecTransposeImage


def with_tensor_wrappers(env: VecEnv) -> VecEnv:
    """
    Replace wrappers that were just put around a VecEnv that steps tensors, so that the result steps tensors too.

    :param env: The wrapped VecEnv, before its first reset
    :return: the same with wrappers for tensors, from the inside to the first one that has no such twin
    """
    if not isinstance(env, VecEnvWrapper) or steps_tensors(env):
        return env
    venv = with_tensor_wrappers(env.venv)
    twin = _twin(env, venv) if steps_tensors(venv) else None
    if twin is not None and twin.observation_space == env.observation_space:
        return twin
    env.venv = venv
    return env


def _twin(wrapper: VecEnvWrapper, venv: VecEnv) -> VecEnv | None:
    if type(wrapper) is VecTransposeImage:
        return TensorVecTransposeImage(venv, skip=wrapper.skip)
    if type(wrapper) is VecFrameStack:
        return TensorVecFrameStack(venv, wrapper.stacked_obs.n_stack)
    if type(wrapper) is VecNormalize:
        names = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", "norm_obs_keys")
        twin = TensorVecNormalize(venv, **{name: getattr(wrapper, name) for name in names})
        # Those of a saved agent, for example
        twin.ret_rms = wrapper.ret_rms
        if wrapper.norm_obs:
            twin.obs_rms = wrapper.obs_rms
        return twin
    return None
