"""Exceptions inside environments, and workers that are lost."""

import functools
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.ray_envs import FilesEnv, OrderedEnv, OwnError, ordered
from zoo_plugins import RayVecEnv
from zoo_plugins.vec_envs import EnvError, RayVecEnvError

pytestmark = pytest.mark.usefixtures("local_ray")
ZEROS = np.zeros((3, 2), np.float32)
LOST = {"worker_restarted": True, "TimeLimit.truncated": True}


@pytest.fixture
def make(local_ray):
    """Make VecEnvs that are closed after the test: environments 0 and 1 in one worker, environment 2 in another."""
    made = []

    def make_vec_env(env_class=OrderedEnv, n_envs=3, envs_per_worker=2, **kwargs):
        env_fns = [functools.partial(env_class, env_id) for env_id in range(n_envs)]
        made.append(RayVecEnv(env_fns, envs_per_worker=envs_per_worker, **kwargs))
        return made[-1]

    yield make_vec_env
    for vec_env in made:
        started = time.monotonic()
        vec_env.close()
        vec_env.close()
        assert time.monotonic() - started < 10


@pytest.fixture(scope="module")
def shared(local_ray):
    """A VecEnv for faults that it survives."""
    vec_env = RayVecEnv([functools.partial(ordered, env_id) for env_id in range(3)], envs_per_worker=2)
    yield vec_env
    vec_env.close()


def kill(vec_env, *envs, how=signal.SIGKILL):
    """Kill, or stop, the workers of some environments."""
    pids = {vec_env._workers.of_env(env).hello.pid for env in envs}
    for pid in pids:
        os.kill(pid, how)
    time.sleep(0.1)
    return pids


def test_exception_in_an_environment(shared):
    """Its type, text, traceback and environment are told, and the VecEnv can be reset and used afterwards."""
    shared.reset()
    shared.env_method("order", "raise", indices=1)
    with pytest.raises(RuntimeError, match=r"environment 1 .*RuntimeError: simulator exploded at t=2") as caught:
        shared.step(ZEROS)
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_index == 1
    assert 'raise RuntimeError("simulator exploded at t=2")' in str(caught.value.__cause__)
    assert shared.reset()[:, 2].tolist() == [0, 0, 0]
    assert shared.step(ZEROS)[0][:, 2].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("what", "kind", "text"), [("raise own", EnvError, "OwnError: a and b"), ("exit", EnvError, "SystemExit: 3")]
)
def test_exceptions_that_can_not_be_sent(shared, what, kind, text):
    """Types that can't be made again, and the one that would end the program, are told by name."""
    shared.reset()
    shared.env_method("order", what, indices=2, at="reset")
    with pytest.raises(kind, match=f"environment 2 .*{text}") as caught:
        shared.reset()
    assert not isinstance(caught.value, OwnError | SystemExit)
    shared.reset()


def test_exceptions_of_calls(shared):
    """They do not spoil the step that follows."""
    shared.reset()
    with pytest.raises(TypeError, match=r"environment 1 .*positional"):
        shared.env_method("pid", 1, 2, 3, indices=[1, 2])
    assert shared.step(ZEROS)[0][:, 2].tolist() == [1, 1, 1]


def test_environment_that_can_not_be_made(local_ray):
    """The constructor raises what the environment raised, and leaves nothing behind."""
    free = free_cpus(local_ray)
    with pytest.raises(ZeroDivisionError, match=r"environment 1 .*division by zero"):
        RayVecEnv([OrderedEnv, lambda: 1 / 0], envs_per_worker=2)
    eventually(lambda: free_cpus(local_ray) >= free)


def test_killed_worker(make):
    """Its episodes end as truncated with the last observation that was seen, others go on; so it does next time."""
    vec_env = make()
    vec_env.set_attr("level", 3, indices=[1, 2])
    vec_env.reset()
    seen, *_ = vec_env.step(ZEROS)
    seen[:] = -1  # the caller's, who may do that
    pids = kill(vec_env, 1)
    with pytest.warns(UserWarning, match=r"lost worker 0 \(environments 0 to 1, .*\(restart 1 of at most 5\)"):
        observations, rewards, dones, infos = vec_env.step(ZEROS)
    assert rewards.tolist() == [0, 0, 2]
    assert dones.tolist() == [True, True, False]
    assert observations.tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 2]]
    for env in (0, 1):
        assert infos[env].pop("terminal_observation").tolist() == [env, 1, 1]
        assert infos[env] == LOST
        assert vec_env.reset_infos[env]["seed"] is not None
    assert infos[2] == {"TimeLimit.truncated": False}
    assert not pids & set(vec_env.env_method("pid"))
    assert vec_env.get_attr("level") == [0, 3, 3]
    observations, rewards, dones, infos = vec_env.step(ZEROS)
    assert observations[:, 2].tolist() == [1, 1, 3]
    assert infos == [{"TimeLimit.truncated": False}] * 3
    assert not dones.any()


def test_killed_in_the_middle_of_a_step(make):
    """An environment that kills its process, as crashing simulators do."""
    vec_env = make(max_restarts=1)
    vec_env.reset()
    vec_env.env_method("order", "die", indices=1)
    with pytest.warns(UserWarning, match="lost worker 0"):
        _, _, dones, infos = vec_env.step(ZEROS)
    assert dones.tolist() == [True, True, False]
    assert [info.get("worker_restarted") for info in infos] == [True, True, None]
    vec_env.env_method("order", "die", indices=0)
    for _ in range(2):
        with pytest.raises(RayVecEnvError, match=r"worker 0 \(environments 0 to 1, .*max_restarts=1"):
            vec_env.step(ZEROS)


def test_all_killed_between_steps(make):
    """A call replaces workers too; what was lost is told by the step that follows, and of no interest to a reset."""
    vec_env = make()
    vec_env.reset()
    vec_env.step(ZEROS)
    kill(vec_env, 0, 2)
    with pytest.warns(UserWarning, match="lost worker"):
        assert vec_env.get_attr("level") == [0, 0, 0]
    observations, _, dones, infos = vec_env.step(ZEROS)
    assert dones.all()
    assert observations[:, 2].tolist() == [0, 0, 0]
    assert [info["terminal_observation"].tolist() for info in infos] == [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
    assert not vec_env.step(ZEROS)[2].any()
    kill(vec_env, 0, 2)
    vec_env.seed(5)
    with pytest.warns(UserWarning, match="lost worker"):
        vec_env.reset()
    assert [info["seed"] for info in vec_env.reset_infos] == [5, 6, 7]
    assert not vec_env.step(ZEROS)[2].any()


def test_exception_while_another_worker_is_lost(make):
    """The exception comes first, and the loss with the next step."""
    vec_env = make()
    vec_env.reset()
    vec_env.env_method("order", "raise", indices=0)
    vec_env.env_method("order", "die", indices=2)
    with pytest.raises(RuntimeError, match=r"environment 0 .*exploded"):
        vec_env.step(ZEROS)
    with pytest.warns(UserWarning, match="lost worker 1"):
        _, _, dones, infos = vec_env.step(ZEROS)
    assert dones.tolist() == [False, False, True]
    assert infos[2]["terminal_observation"].tolist() == [2, 1, 0]


def test_worker_that_does_not_answer(make):
    """A stopped process, or a machine that is cut off, is noticed after step_timeout."""
    vec_env = make(step_timeout=5.0)
    vec_env.reset()
    pids = kill(vec_env, 2, how=signal.SIGSTOP)
    with pytest.warns(UserWarning, match="lost worker 1 .* no answer for 5 s"):
        _, _, dones, _ = vec_env.step(ZEROS)
    assert dones.tolist() == [False, False, True]
    eventually(lambda: not alive(pids))


def test_slow_is_not_lost(make):
    """Within step_timeout, an environment may take its time; without one, any time."""
    vec_env = make(step_timeout=None)
    vec_env.reset()
    vec_env.env_method("order", "1.3", indices=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not vec_env.step(ZEROS)[2].any()


def test_environment_that_can_not_be_made_again(make, tmp_path):
    """What a replacement raises reaches the program, and the next call tries again."""
    vec_env = make(functools.partial(FilesEnv, tmp_path), n_envs=1, envs_per_worker=1)
    vec_env.reset()
    (tmp_path / "broken").touch()
    kill(vec_env, 0)
    for _ in range(2):
        with pytest.warns(UserWarning, match="lost worker"), pytest.raises(PermissionError, match=r"environment 0 .*licence"):
            vec_env.step(ZEROS[:1])
    (tmp_path / "broken").unlink()
    with pytest.warns(UserWarning, match="lost worker"):
        assert vec_env.step(ZEROS[:1])[2].all()


def test_close_with_dead_and_busy_workers(make):
    """It takes some seconds at most, and nothing stays."""
    vec_env = make(n_envs=4, envs_per_worker=1)
    pids = set(vec_env.env_method("pid"))
    vec_env.reset()
    vec_env.env_method("order", "60", indices=0)
    vec_env.env_method("order", "60", indices=1, at="close")
    kill(vec_env, 2)
    kill(vec_env, 3, how=signal.SIGSTOP)
    vec_env.step_async(np.zeros((4, 2), np.float32))
    started = time.monotonic()
    vec_env.close()
    assert time.monotonic() - started < 10
    eventually(lambda: not alive(pids))


def test_environments_are_closed(make, tmp_path):
    """close() closes them, so that files are written to their end."""
    vec_env = make(functools.partial(FilesEnv, tmp_path), n_envs=3)
    vec_env.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_left_behind(local_ray, rounds):
    """Descriptors, processes and reserved CPUs, after creating and closing again and again."""
    free = free_cpus(local_ray)
    pids = set()
    for number in range(rounds):
        vec_env = RayVecEnv([OrderedEnv], envs_per_worker=1)
        vec_env.reset()
        pids |= set(vec_env.env_method("pid"))
        vec_env.close()
        if number == 2:
            before = descriptors()
    eventually(lambda: not alive(pids) and free_cpus(local_ray) >= free)
    eventually(lambda: descriptors() <= before + 2)


def test_forgotten(local_ray):
    """A VecEnv that nobody closed gives back what it took."""
    vec_env = RayVecEnv([OrderedEnv])
    pids = set(vec_env.env_method("pid"))
    del vec_env
    eventually(lambda: not alive(pids))


def free_cpus(ray):
    return ray.available_resources().get("CPU", 0)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def eventually(condition, seconds=15):
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
