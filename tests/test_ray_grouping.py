"""How many environments a worker gets, by how long a step takes."""

import time

import pytest
from gymnasium.wrappers import TimeLimit

from tests.ray_envs import OrderedEnv
from zoo_plugins import RayVecEnv
from zoo_plugins.vec_envs.grouping import StepTime, choose_envs_per_worker, measure

CHEAP, WAITING, WORKING = StepTime(5e-6, 5e-6), StepTime(1e-3, 2e-5), StepTime(1e-3, 1e-3)


@pytest.mark.parametrize(
    ("n_envs", "n_cpus", "step", "expected"),
    [
        (8, 2, CHEAP, 8),
        (1000, 64, CHEAP, 72),  # 14 workers: 14 * 25 us of messages, and 72 * 5 us of steps
        (8, 2, WAITING, 1),
        (8, 2, WORKING, 4),
        (8, 8, WORKING, 1),
        (7, 2, WORKING, 3),
        (8, 0.5, WORKING, 8),
        (1, 4, WORKING, 1),
        (3, 4, StepTime(0.0, 0.0), 3),
    ],
)
def test_choice(n_envs, n_cpus, step, expected):
    """Cheap environments share a worker, those that wait do not, and those that work share CPUs."""
    assert choose_envs_per_worker(n_envs, n_cpus, step) == expected


def test_measure():
    """Waiting is not working, and episodes may end meanwhile."""

    class Waiting(OrderedEnv):
        def step(self, action):
            time.sleep(0.002)
            return super().step(action)

    started = time.monotonic()
    step = measure(TimeLimit(Waiting(length=3), 2))
    assert time.monotonic() - started < 2
    assert step.wall > 0.002
    assert step.cpu < step.wall


def _stuck():
    time.sleep(60)


@pytest.mark.parametrize("env_fn", [lambda: 1 / 0, _stuck])
def test_environments_that_can_not_be_measured(local_ray, env_fn):
    """They are told about when they have to be made, in the usual way."""
    started = time.monotonic()
    with pytest.raises(Exception, match=r"division by zero|did not make its environments"):
        RayVecEnv([env_fn] * 3, start_timeout=6.0)
    assert time.monotonic() - started < 20


def test_auto(local_ray):
    """Cheap environments are all in one worker."""
    vec_env = RayVecEnv([OrderedEnv] * 4)
    assert len(set(vec_env.env_method("pid"))) == 1
    vec_env.close()
