"""Wrappers of tensors give what SB3's give on the same trajectory, and share their files."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
    sync_envs_normalization,
    unwrap_vec_normalize,
)

from tests.tensor_sims import CountingSim, ImageSim, Syncs, on_device
from zoo_plugins import TensorVecEnv, TensorVecFrameStack, TensorVecNormalize, TensorVecTransposeImage
from zoo_plugins.vec_envs import StepsTensors

ENDS = {"end": "truncated"}


def both(wrapper, twin, make, *args, n_steps=60, **kwargs):
    """Run a wrapper of ours, and SB3's, on the same trajectory; yield what both return, after they were reset and stepped."""
    ours, theirs = wrapper(make(), *args, **kwargs), twin(make(), *args, **kwargs)
    assert isinstance(ours, twin)
    assert ours.observation_space == theirs.observation_space
    ours.seed(0)
    theirs.seed(0)
    yield ours, theirs, ours.reset(), theirs.reset()
    shape = (ours.num_envs, *ours.action_space.shape)
    for t in range(n_steps):
        rng = np.random.default_rng(t)
        if isinstance(ours.action_space, spaces.Discrete):
            actions = rng.integers(ours.action_space.n, size=shape)
        else:
            actions = rng.uniform(-1, 1, shape).astype(np.float32)
        yield ours, theirs, ours.step(actions), theirs.step(actions)


def assert_same(left, right, atol=0.0):
    """Compare nested results."""
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            if key != "t":
                assert_same(left[key], right[key], atol)
    elif isinstance(left, tuple):
        for pair in zip(left[:3], right[:3], strict=True):
            assert_same(*pair, atol)
        for pair in zip(left[3], right[3], strict=True):
            assert_same(*pair, atol)
    else:
        left, right = np.asarray(left), np.asarray(right)
        assert left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


def classic(env_id="TensorPendulum-v1"):
    return TensorVecEnv(env_id, num_envs=6, device="cpu", max_episode_steps=17)


def dicts():
    return TensorVecEnv(ImageSim((3, 5, 4), as_dict=True, **ENDS), device="cpu")


def images():
    return TensorVecEnv(ImageSim((3, 5, 4), **ENDS), device="cpu")


@pytest.mark.parametrize(
    ("make", "kwargs"),
    [
        (classic, {}),
        (lambda: classic("TensorCartPole-v1"), dict(gamma=0.9, clip_obs=1.0, clip_reward=0.5, epsilon=1e-3)),
        (classic, dict(training=False)),
        (classic, dict(norm_obs=False)),
        (classic, dict(norm_reward=False)),
        (dicts, dict(norm_obs_keys=["numbers"])),
        (dicts, {}),
        (images, {}),
    ],
)
def test_normalization(make, kwargs):
    """Observations, rewards, last observations and statistics are VecNormalize's, within 1e-6 of float32."""
    n_ends = 0
    for ours, theirs, left, right in both(TensorVecNormalize, VecNormalize, make, **kwargs):
        assert_same(left, right, atol=2e-6)
        assert_same(ours.get_original_obs(), theirs.get_original_obs())
        if isinstance(left, tuple):
            assert_same(ours.get_original_reward(), theirs.get_original_reward())
            n_ends += left[2].sum()
    assert n_ends > 10
    pairs = [(ours.ret_rms, theirs.ret_rms)]
    if ours.norm_obs:
        keys = list(ours.obs_rms) if isinstance(ours.obs_rms, dict) else []
        pairs += [(ours.obs_rms[key], theirs.obs_rms[key]) for key in keys] or [(ours.obs_rms, theirs.obs_rms)]
    for mine, yours in pairs:
        for name in ("mean", "var", "count"):
            np.testing.assert_allclose(getattr(mine, name), getattr(yours, name), rtol=1e-6, atol=1e-7)


def test_unnormalized_again():
    """SB3's helpers for NumPy arrays work."""
    for ours, theirs, left, _ in both(TensorVecNormalize, VecNormalize, classic, n_steps=5):
        if isinstance(left, tuple):
            np.testing.assert_allclose(ours.unnormalize_obs(left[0]), ours.get_original_obs(), atol=1e-5)
            np.testing.assert_allclose(ours.unnormalize_reward(left[1]), ours.get_original_reward(), atol=1e-4)
            original = ours.get_original_obs()
            np.testing.assert_allclose(ours.normalize_obs(original), theirs.normalize_obs(original), atol=2e-6)


@pytest.mark.parametrize("make", [classic, dicts])
def test_files_of_both(make, tmp_path):
    """What either saves, both load; the file of ours opens where this package is missing."""
    ours, theirs = TensorVecNormalize(make(), gamma=0.9), VecNormalize(make(), gamma=0.9)
    for vec_env, name in ((ours, "ours.pkl"), (theirs, "theirs.pkl")):
        vec_env.seed(0)
        vec_env.reset()
        for _ in range(10):
            vec_env.step(np.full((vec_env.num_envs, *vec_env.action_space.shape), 0.5, np.float32))
        vec_env.save(str(tmp_path / name))
    results = []
    for name in ("ours.pkl", "theirs.pkl"):
        for cls in (TensorVecNormalize, VecNormalize):
            loaded = cls.load(str(tmp_path / name), make())
            assert type(loaded) is cls
            assert loaded.gamma == 0.9
            loaded.training = False
            loaded.seed(1)
            results.append((loaded.reset(), *loaded.step(np.zeros((loaded.num_envs, *loaded.action_space.shape), np.float32))))
            assert type(pickle.loads(pickle.dumps(loaded))) is VecNormalize
    for result in results[1:]:
        assert_same(result[0], results[0][0], atol=2e-6)
        assert_same(result[1:], results[0][1:], atol=2e-6)
    script = f"""
import pickle, sys
sys.modules["zoo_plugins"] = None
print(type(pickle.load(open({str(tmp_path / "ours.pkl")!r}, "rb"))).__name__)
"""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"], capture_output=True
    )
    assert ended.stdout.decode().strip() == "VecNormalize", ended.stderr.decode()


def test_statistics_are_synchronized():
    """EvalCallback's synchronization goes both ways, between SB3's class and ours; found statistics are independent copies."""
    ours, theirs = TensorVecNormalize(classic()), VecNormalize(classic(), training=False)
    assert unwrap_vec_normalize(ours) is ours
    assert is_vecenv_wrapped(ours, VecNormalize)
    for _ in range(3):
        ours.reset()
    sync_envs_normalization(ours, theirs)
    assert type(theirs.obs_rms) is type(theirs.ret_rms) is RunningMeanStd
    np.testing.assert_array_equal(theirs.obs_rms.mean, ours.obs_rms.mean)
    ours.reset()
    assert (theirs.obs_rms.mean != ours.obs_rms.mean).any()
    sync_envs_normalization(theirs, ours)
    np.testing.assert_array_equal(theirs.obs_rms.mean, ours.obs_rms.mean)
    ours.reset()
    assert (theirs.obs_rms.mean != ours.obs_rms.mean).any()
    assert not hasattr(TensorVecNormalize(classic(), norm_obs=False), "obs_rms")
    first = TensorVecNormalize(classic())
    sync_envs_normalization(ours, first)
    first.reset()
    assert (first.obs_rms.mean != ours.obs_rms.mean).any()


def test_learning_with_evaluation(tmp_path):
    """Stock PPO learns through all wrappers, and EvalCallback compares them with an evaluation environment's."""
    vec_env = TensorVecFrameStack(TensorVecNormalize(classic()), 2)
    eval_env = VecFrameStack(VecNormalize(classic(), training=False, norm_reward=False), 2)
    model = PPO("MlpPolicy", vec_env, n_steps=16, batch_size=32, n_epochs=1, device="cpu")
    model.learn(200, callback=EvalCallback(eval_env, eval_freq=10, best_model_save_path=str(tmp_path), verbose=0))
    assert (tmp_path / "best_model.zip").exists()
    assert model.get_vec_normalize_env() is vec_env.venv


@pytest.mark.parametrize(
    ("make", "n_stack", "order"),
    [
        (classic, 3, None),
        (images, 2, None),
        (images, 4, "first"),
        (dicts, 2, None),
        (dicts, 3, {"image": "first", "numbers": "last"}),
        (lambda: TensorVecTransposeImage(images()), 2, None),
    ],
)
def test_frame_stacks(make, n_stack, order):
    """Stacks are VecFrameStack's, those of last observations too."""
    for _, _, left, right in both(TensorVecFrameStack, VecFrameStack, make, n_stack, channels_order=order):
        assert_same(left, right)


@pytest.mark.parametrize("make", [images, dicts])
@pytest.mark.parametrize("skip", [False, True])
def test_transposed_images(make, skip):
    """Images are VecTransposeImage's."""
    for _, _, left, right in both(TensorVecTransposeImage, VecTransposeImage, make, skip=skip):
        assert_same(left, right)


def stacked(venv):
    return TensorVecFrameStack(TensorVecTransposeImage(TensorVecNormalize(venv, norm_obs=False)), 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorVecNormalize(classic()),
        lambda: TensorVecNormalize(classic(), norm_obs=False, norm_reward=False),
        lambda: TensorVecNormalize(dicts(), norm_obs_keys=["numbers"]),
        lambda: stacked(images()),
        lambda: stacked(dicts()),
    ],
)
def test_memory_and_waiting(make):
    """Steps through wrappers wait for no device, and share memory with nothing that is kept."""
    vec_env = make()
    assert isinstance(vec_env, StepsTensors)
    vec_env.reset_tensors()
    actions = th.zeros(vec_env.num_envs, *vec_env.action_space.shape)
    tensors, kept = [], []
    for _ in range(6):
        with Syncs() as syncs:
            step = vec_env.step_tensors(on_device(actions.clone()))
        assert syncs.waiting == []
        new = [part for part in step if isinstance(part, th.Tensor)]
        for part in (step.obs, step.final_obs):
            new += part.values() if isinstance(part, dict) else []
        tensors += new
        kept += [tensor.clone() for tensor in new]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    for left, right in zip(tensors, kept, strict=True):
        assert th.equal(left.as_subclass(th.Tensor), right.as_subclass(th.Tensor))


def test_no_last_observations():
    """Wrappers leave those out that a simulator does not tell."""
    with pytest.warns(UserWarning, match="does not tell last observations"):
        vec_env = stacked(TensorVecEnv(ImageSim((2, 3), final_obs="none"), device="cpu"))
    vec_env.reset_tensors()
    assert [vec_env.step_tensors(th.zeros(2, 2)).final_obs for _ in range(3)] == [None] * 3


@pytest.mark.parametrize(
    ("wrapper", "args", "told"),
    [
        (TensorVecNormalize, (), "SB3's VecNormalize wraps it"),
        (TensorVecFrameStack, (2,), "SB3's VecFrameStack wraps it"),
        (TensorVecTransposeImage, (), "SB3's VecTransposeImage wraps it"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*already wrapped with a `Monitor`")
def test_other_vec_envs(wrapper, args, told):
    """VecEnvs that step no tensors, which may be wrappers of some that do, are refused."""
    with pytest.raises(TypeError, match=f"{wrapper.__name__} needs a VecEnv that steps tensors.* VecMonitor does not; {told}"):
        wrapper(VecMonitor(images()), *args)


def test_next_step_is_refused_through_wrappers():
    """Simulators that spend steps on resets have no NumPy face, wrapped or not."""
    vec_env = TensorVecNormalize(TensorVecEnv(CountingSim(mode="NextStep"), device="cpu"))
    with pytest.raises(ValueError, match="choose SAME_STEP"):
        vec_env.reset()
