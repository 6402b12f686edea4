"""RayVecEnv and the Ray cluster: joining and starting one, its resources, its nodes, and what travels to them."""

import sys
import textwrap
import types

import gymnasium as gym
import numpy as np
import pytest

from tests.fakes import run_python
from tests.ray_envs import OrderedEnv
from zoo_plugins import RayVecEnv
from zoo_plugins.vec_envs import RayVecEnvError

LOCAL = """
import os, sys, threading
import gymnasium as gym, numpy as np, torch

class Own(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False, {"own": Own}
    def facts(self):
        import ray
        return os.nice(0), os.environ["OMP_NUM_THREADS"]

class Wrapper(gym.Wrapper):
    pass

if __name__ == "__main__":
    import ray
    from stable_baselines3.common.env_util import make_vec_env
    from zoo_plugins import RayVecEnv
    gym.register("OnlyHere-v0", entry_point=Own, max_episode_steps=9)
    before = dict(os.environ), torch.get_num_threads(), breakpoint
    captured = {"wrapper_class": Wrapper}
    vec_env = make_vec_env("OnlyHere-v0", n_envs=3, vec_env_cls=RayVecEnv, seed=1, **captured)
    vec_env.reset()
    infos = vec_env.step(np.zeros(3, np.int64))[3]
    print("facts", vec_env.env_method("facts")[0], vec_env.env_is_wrapped(Wrapper), infos[0]["own"] is Own)
    vec_env.close()
    vec_env = RayVecEnv([lambda: captured["wrapper_class"](gym.make("OnlyHere-v0"))] * 2)
    print("again", vec_env.reset().tolist())
    print("same threads", torch.get_num_threads() == before[1])
    print("changed", sorted(k for k, v in os.environ.items() if before[0].get(k) != v and not k.startswith("RAY_")))
    print("niceness", os.environ.get("RAY_worker_niceness"))
    print("dashboard", repr(ray._private.worker.global_worker.node.webui_url))
    print("raylets", ray._private.worker.global_worker.node.address_info["raylet_socket_name"])
    # Not closed: Python is about to end
"""

NODES = """
import os, time, warnings
import gymnasium as gym, numpy as np, ray
from ray.cluster_utils import Cluster
from zoo_plugins import RayVecEnv

if __name__ == "__main__":
    small = dict(num_cpus=1, object_store_memory=2**27)
    cluster = Cluster(initialize_head=True, head_node_args=dict(include_dashboard=False, **small))
    nodes = [cluster.add_node(**small) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    vec_env = RayVecEnv([lambda: gym.make("CartPole-v1")] * 6, envs_per_worker=2)
    where = [worker.hello.node for worker in vec_env._workers]
    print("nodes", len(set(where)))
    vec_env.reset()
    cluster.remove_node(nodes[0], allow_graceful=False)
    lost = where.index(nodes[0].node_id)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        started = time.monotonic()
        while not told and time.monotonic() - started < 60:
            _, _, dones, infos = vec_env.step(np.zeros(6, np.int64))
    print("told", len(told))
    print("marked", [env for env, info in enumerate(infos) if "worker_restarted" in info] == [2 * lost, 2 * lost + 1])
    print("elsewhere", nodes[0].node_id not in [worker.hello.node for worker in vec_env._workers])
    vec_env.step(np.zeros(6, np.int64))
    vec_env.close()
    print("still there", ray.is_initialized())
    ray.shutdown()
    cluster.shutdown()
"""

WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
import zoo_plugins.vec_envs
from zoo_plugins.registry import PluginError, resolve
try:
    zoo_plugins.RayVecEnv
except ImportError as error:
    print(error)
try:
    resolve("vec_envs", "ray")
except PluginError as error:
    print("pip install 'zoo-plugins[ray]'" in str(error))
"""


def run(folder, script, **env):
    """Run a script in a folder of its own; return what it printed, by first word."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    ended = run_python(str(folder / "script.py"), env=env)
    assert ended.returncode == 0, ended.stderr
    return ended


def printed(ended):
    return [line for line in ended.stdout.splitlines() if "(raylet)" not in line]


def test_local_cluster(tmp_path):
    """
    Without a cluster, a quiet one is started, which ends with the program.

    Environments, wrappers and functions of the script itself work; the learner's threads and variables are not touched.
    """
    ended = run(tmp_path, LOCAL, RAY_ADDRESS=None)
    facts = dict(line.split(" ", 1) for line in printed(ended) if not line.startswith("\x1b"))
    assert facts.pop("raylets").startswith("/")
    assert facts == {
        "facts": "(0, '1') [True, True, True] True",
        "again": "[[0.0, 0.0], [0.0, 0.0]]",
        "same": "threads True",
        "changed": "[]",
        "niceness": "None",
        "dashboard": "''",
    }
    assert "Started a local Ray instance" not in ended.stderr


def test_cluster_of_ray_address(local_ray, tmp_path):
    """A cluster that runs is joined, and left as it was."""
    address = local_ray.get_runtime_context().gcs_address
    nodes = local_ray.nodes()
    ended = run(tmp_path, LOCAL, RAY_ADDRESS=address)
    assert "again [[0.0, 0.0], [0.0, 0.0]]" in printed(ended)
    assert [node["NodeID"] for node in local_ray.nodes() if node["Alive"]] == [node["NodeID"] for node in nodes]


def test_node_that_is_lost(tmp_path):
    """Workers are spread over three nodes; those of a node that is killed go on elsewhere, without a CPU of their own."""
    ended = run(tmp_path, NODES, RAY_ADDRESS=None)
    ours = [line for line in printed(ended) if line.startswith(("nodes", "told", "marked", "elsewhere", "still"))]
    assert ours == ["nodes 3", "told 1", "marked True", "elsewhere True", "still there True"]


def test_without_ray():
    """The package can be imported where Ray is not installed, and tells how to install it."""
    ended = run_python("-c", WITHOUT_RAY)
    assert ended.stdout.splitlines() == ["RayVecEnv needs Ray: pip install 'zoo-plugins[ray]'", "True"], ended.stderr


def test_more_environments_than_cpus(local_ray):
    """Workers share CPUs, or do without, when there are too few; who has reserved one keeps it."""

    @local_ray.remote(num_cpus=1)
    class Busy:
        def ping(self):
            return "pong"

    busy = Busy.remote()
    assert local_ray.get(busy.ping.remote()) == "pong"
    first = RayVecEnv([OrderedEnv] * 3, envs_per_worker=1)
    second = RayVecEnv([OrderedEnv] * 2)
    assert len(set(first.env_method("pid") + second.env_method("pid"))) == 3 + len(second._workers)
    first.reset()
    second.reset()
    first.close()
    second.close()
    assert local_ray.get(busy.ping.remote()) == "pong"


def test_resources_that_are_not_there(local_ray):
    """What was wanted and what is free is told in time, and nothing stays reserved."""
    for resources, text in (({"num_cpus": 3}, "each takes 3 CPU; free are"), ({"robot": 1, "num_cpus": 0.5}, "0 of 0 robot")):
        with pytest.raises(RayVecEnvError, match=f"no place for 1 workers after 1 s: .*{text}.* of 2 CPU, on 1 node"):
            RayVecEnv([OrderedEnv], resources_per_worker=resources, start_timeout=2.0)
    vec_env = RayVecEnv([OrderedEnv], resources_per_worker={"num_cpus": 0.5, "memory": 1e6})
    vec_env.close()


def test_start_that_takes_too_long(local_ray):
    """Environments that do not get ready within start_timeout."""
    with pytest.raises(RayVecEnvError, match="did not make its environments: no answer"):
        RayVecEnv([_slow], start_timeout=3.0)


def _slow():
    import time

    time.sleep(60)


def test_missing_module(local_ray):
    """A module that is here only is named, with the node that lacks it."""
    module = types.ModuleType("only_here")
    exec_class = type("Env", (OrderedEnv,), {"__module__": "only_here"})
    module.Env = exec_class
    sys.modules["only_here"] = module
    try:
        with pytest.raises(ModuleNotFoundError, match=r"on node [\d.]+\) raised ModuleNotFoundError: .*'only_here'"):
            RayVecEnv([exec_class])
        gym.register("OnlyHere-v1", entry_point=exec_class)
        with pytest.raises(ModuleNotFoundError, match="'only_here'"):
            RayVecEnv([lambda: gym.make("OnlyHere-v1")])
    finally:
        del sys.modules["only_here"]
        gym.registry.pop("OnlyHere-v1", None)


def test_runtime_env(local_ray):
    """Ray's runtime environment reaches workers."""

    def make():
        import os

        return OrderedEnv(length=int(os.environ["LENGTH"]))

    vec_env = RayVecEnv([make], runtime_env={"env_vars": {"LENGTH": "3"}}, start_timeout=120)
    assert vec_env.get_attr("length") == [3]
    assert vec_env.reset().shape == (1, 3)
    assert vec_env.step(np.zeros((1, 2), np.float32))[0].tolist() == [[0, 1, 1]]
    vec_env.close()
