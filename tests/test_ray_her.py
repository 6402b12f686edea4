"""FastHerReplayBuffer on a RayVecEnv keeps and samples what it does on a DummyVecEnv."""

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from zoo_plugins import FastHerReplayBuffer, RayVecEnv

pytestmark = pytest.mark.usefixtures("local_ray")
ROWS = ("actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")


def train(vec_env_class, env_kwargs, **vec_env_kwargs):
    """Train DQN on three environments; return the model, whose environment is still open."""
    env_kwargs = dict(n_bits=4, **env_kwargs)
    vec_env = make_vec_env(
        BitFlippingEnv, 3, seed=3, env_kwargs=env_kwargs, vec_env_cls=vec_env_class, vec_env_kwargs=vec_env_kwargs
    )
    model = DQN(
        "MultiInputPolicy",
        vec_env,
        replay_buffer_class=FastHerReplayBuffer,
        replay_buffer_kwargs=dict(reward_source="vec_env"),
        buffer_size=600,
        learning_starts=60,
        train_freq=4,
        gradient_steps=2,
        policy_kwargs=dict(net_arch=[4]),
        device="cpu",
        seed=3,
    )
    return model.learn(240)


@pytest.fixture
def calls(monkeypatch):
    """Arguments of all calls of compute_reward() through a VecEnv."""
    seen = []

    def record(cls):
        env_method = cls.env_method

        def recording(self, name, *args, **kwargs):
            if name == "compute_reward":
                seen.append((*args, kwargs))
            return env_method(self, name, *args, **kwargs)

        monkeypatch.setattr(cls, "env_method", recording)

    for cls in (DummyVecEnv, SubprocVecEnv, RayVecEnv):
        record(cls)
    return seen


@pytest.mark.parametrize(
    ("env_kwargs", "shape", "dtype"),
    [
        (dict(), (4,), np.int8),
        (dict(discrete_obs_space=True), (1,), np.int64),
        (dict(image_obs_space=True), (1, 36, 36), np.uint8),
    ],
    ids=["bits", "discrete", "image"],
)
@pytest.mark.parametrize(("vec_env_class", "vec_env_kwargs"), [(SubprocVecEnv, {}), (RayVecEnv, dict(envs_per_worker=2))])
def test_same_as_with_dummy_vec_env(calls, vec_env_class, vec_env_kwargs, env_kwargs, shape, dtype):
    """With one seed, transitions, samples and weights are the same; one call per draw has the environment's own types."""
    samples, buffers, weights = [], [], []
    for model in (train(DummyVecEnv, env_kwargs), train(vec_env_class, env_kwargs, **vec_env_kwargs)):
        buffers.append(model.replay_buffer)
        weights.append(model.policy.state_dict())
        calls.clear()
        np.random.seed(0)
        samples.append(model.replay_buffer.sample(10))
        ((achieved, desired, infos, kwargs),) = calls
        assert achieved.shape == desired.shape == (8, *shape)
        assert achieved.dtype == desired.dtype == dtype
        assert infos == [{}] * 8
        assert kwargs == {"indices": [0]}
        model.env.close()
    ours, theirs = buffers
    assert ours.pos == theirs.pos == 80
    for name in ROWS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for name in ("observations", "next_observations"):
        for key, rows in getattr(ours, name).items():
            assert rows.any()
            np.testing.assert_array_equal(rows, getattr(theirs, name)[key])
            th.testing.assert_close(getattr(samples[0], name)[key], getattr(samples[1], name)[key], rtol=0, atol=0)
    th.testing.assert_close(samples[0].rewards, samples[1].rewards, rtol=0, atol=0)
    th.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
