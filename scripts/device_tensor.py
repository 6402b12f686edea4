"""
Measure TensorPPO on a GPU, in less than six minutes; on a CPU, a few small cases, to see that it works.

1. Waits: one rollout and one update under torch.cuda.set_sync_debug_mode, which names each wait for the device.
2. Speed, for each number of environments: steps per second of the environments alone, of environments and policy, of
   collect_rollouts() and of learn(), for SB3's PPO ("sb3", with gymnasium's environments), "eager" and "cudagraph"; and the
   peak of memory on the device.
3. Launches per step: operations that the profiler saw.
4. Equality: weights after the same training with and without CUDA graphs.
5. Time to solve CartPole: mean return of 475 over the last 100 episodes, with 4096 environments.

    python scripts/device_tensor.py --output docs/results/tensor-device
    python scripts/device_tensor.py --device cpu --sizes 64 --seconds 0.2
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch as th
from processes import describe_machine, read_versions, write_report
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from torch.profiler import ProfilerActivity, profile

from zoo_plugins import TensorPPO
from zoo_plugins.vec_envs import TensorVecEnv

SIZES = (64, 1024, 4096, 16384, 65536, 262144)
MOST_OF_SB3 = 1024
N_ROUNDS = 3


class Settings(argparse.Namespace):
    """Arguments of the script."""

    device: str
    sizes: list[int]
    seconds: float
    output: Path | None


def wait(device: str) -> None:
    """
    Wait for the device.

    :param device: The device
    """
    if device.startswith("cuda"):
        th.cuda.synchronize()


def make_model(side: str, env_id: str, n_envs: int, device: str, **kwargs: Any) -> PPO:
    """
    Make a model.

    :param side: "sb3", "eager" or "cudagraph"
    :param env_id: Id of gymnasium's environment
    :param n_envs: Number of environments
    :param device: The device
    :param kwargs: Other arguments of the model
    :return: the model
    """
    options: dict[str, Any] = dict(n_steps=16, batch_size=4 * n_envs, n_epochs=4, seed=0, device=device)
    options.update(kwargs)
    if side == "sb3":
        return PPO("MlpPolicy", make_vec_env(env_id, n_envs, seed=0), **options)
    compile_mode = "cudagraph" if side == "cudagraph" else "none"
    return TensorPPO("MlpPolicy", TensorVecEnv(f"Tensor{env_id}", n_envs, device=device), compile=compile_mode, **options)


def rate(function: Callable[[], int], device: str, seconds: float) -> float:
    """
    Measure a function, after calls that warm up.

    :param function: Returns the number of steps that it did
    :param device: The device
    :param seconds: Seconds of each round, about
    :return: steps per second: the median of rounds
    """
    for _ in range(5):
        function()
    rates = []
    for _ in range(N_ROUNDS):
        wait(device)
        start, n_steps = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            n_steps += function()
            wait(device)
        rates.append(n_steps / (time.perf_counter() - start))
    return median(rates)


def measure_speed(side: str, env_id: str, n_envs: int, args: Settings) -> dict[str, float]:
    """
    Measure all parts of a side.

    :param side: "sb3", "eager" or "cudagraph"
    :param env_id: Id of gymnasium's environment
    :param n_envs: Number of environments
    :param args: Arguments of the script
    :return: steps per second of each part, and the peak of memory in MiB
    """
    device, found = args.device, {}
    if device.startswith("cuda"):
        th.cuda.reset_peak_memory_stats()
    model = make_model(side, env_id, n_envs, device)
    rollout = model.n_steps * n_envs
    model.learn(rollout)
    assert model.env is not None
    callback = model._init_callback(None)

    if isinstance(model, TensorPPO) and side == "eager":
        env: Any = model.env
        obs = env.reset_tensors()
        actions, _ = model.predict(obs)

        def step() -> int:
            env.step_tensors(actions)
            return n_envs

        def act_and_step() -> int:
            model._act_and_step(env, obs)
            return n_envs

        found["env"] = rate(step, device, args.seconds)
        found["policy and env"] = rate(act_and_step, device, args.seconds)

    def collect() -> int:
        assert model.env is not None
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        return rollout

    def learn() -> int:
        model.learn(rollout, reset_num_timesteps=False)
        return rollout

    found["collect_rollouts()"] = rate(collect, device, args.seconds)
    found["learn()"] = rate(learn, device, args.seconds)
    if device.startswith("cuda"):
        found["MiB"] = th.cuda.max_memory_allocated() / 2**20
    model.env.close()
    return found


def count_waits(side: str, device: str) -> list[str]:
    """
    Do a rollout and an update, and list what waits for the device.

    :param side: "eager" or "cudagraph"
    :param device: The device
    :return: a message for each wait
    """
    if not device.startswith("cuda"):
        return ["not measured: no GPU"]
    model = make_model(side, "CartPole-v1", 1024, device)
    model.learn(10 * 16 * 1024)
    assert model.env is not None
    callback = model._init_callback(None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        th.cuda.set_sync_debug_mode("warn")
        model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        model.train()
        th.cuda.set_sync_debug_mode("default")
    return [f"{Path(warning.filename).name}:{warning.lineno} {warning.message}" for warning in caught]


def count_launches(side: str, device: str) -> dict[str, float]:
    """
    Count what is launched on the device.

    :param side: "eager" or "cudagraph"
    :param device: The device
    :return: launches per step and per minibatch; on a CPU, operations
    """
    model = make_model(side, "CartPole-v1", 1024, device)
    model.learn(10 * 16 * 1024)
    assert model.env is not None
    callback = model._init_callback(None)
    found = {}
    for name, function, n in (
        ("step", lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps), 16),
        ("minibatch", model.train, 4 * 4),
    ):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            function()
        prefix = "cuda" if device.startswith("cuda") else "aten::"
        events = [e for e in profiler.key_averages() if e.key.startswith(prefix) and ("aunch" in e.key or prefix == "aten::")]
        found[name] = sum(event.count for event in events) / n
    return found


def compare_weights(device: str) -> float:
    """
    Train with and without CUDA graphs.

    :param device: The device
    :return: largest difference of a weight
    """
    vectors = []
    for side in ("eager", "cudagraph"):
        model = make_model(side, "CartPole-v1", 1024, device).learn(10 * 16 * 1024)
        vectors.append(th.nn.utils.parameters_to_vector(model.policy.parameters()).detach())
    return float((vectors[0] - vectors[1]).abs().max())


class StopWhenSolved(BaseCallback):
    """Stops when the mean return of the last 100 episodes is 475."""

    def _on_step(self) -> bool:
        infos = self.model.ep_info_buffer
        return not infos or len(infos) < 100 or mean(info["r"] for info in infos) < 475


def time_to_solve(side: str, n_envs: int, device: str, seconds: float) -> dict[str, float]:
    """
    Train until CartPole is solved.

    :param side: "sb3", "eager" or "cudagraph"
    :param n_envs: Number of environments
    :param device: The device
    :param seconds: Give up after so many steps as take about that long
    :return: seconds and steps
    """
    kwargs = dict(n_steps=32, batch_size=8 * n_envs, learning_rate=2e-3, gamma=0.98, gae_lambda=0.8, n_epochs=10)
    model = make_model(side, "CartPole-v1", n_envs, device, **kwargs)
    start = time.perf_counter()
    model.learn(int(seconds * 1e6), StopWhenSolved())
    return {"seconds": time.perf_counter() - start, "steps": model.num_timesteps}


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """
    lines = [f"{report['machine']}; {report['device']}.", ", ".join(f"{k} {v}" for k, v in report["versions"].items()) + "."]
    parts = ("env", "policy and env", "collect_rollouts()", "learn()", "MiB")
    lines += ["", f"| environment | how many | side | {' | '.join(parts)} |", "|---" * (3 + len(parts)) + "|"]
    for row in report["speed"]:
        cells = [f"{row[part]:.3g}" if part in row else "" for part in parts]
        lines.append(f"| {row['env_id']} | {row['n_envs']} | {row['side']} | {' | '.join(cells)} |")
    lines += ["", *(f"- {name}: {value}" for name, value in report["others"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure everything and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    has_gpu = th.cuda.is_available()
    parser.add_argument("--device", default="cuda" if has_gpu else "cpu")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=SIZES if has_gpu else SIZES[:1], help="numbers of environments"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds of each measurement and round, about")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    args = parser.parse_args(namespace=Settings())
    # Of graphs on a CPU, and of MLPs on a GPU
    warnings.filterwarnings("ignore", "(?s).*(cudagraph|GPU, but)")

    sides = ("eager", "cudagraph") if args.device.startswith("cuda") else ("eager",)
    others: dict[str, Any] = {}
    for side in sides:
        others[f"waits of a rollout and an update, {side}"] = count_waits(side, args.device)
        others[f"launches, {side}"] = count_launches(side, args.device)
    others["largest difference of a weight, eager and cudagraph"] = compare_weights(args.device)
    for side in sides:
        n_envs = min(4096, max(args.sizes))
        others[f"time to solve CartPole, {n_envs} environments, {side}"] = time_to_solve(side, n_envs, args.device, 20)
    speed = []
    for n_envs in args.sizes:
        for env_id in ("CartPole-v1", "Pendulum-v1"):
            for side in ("sb3", *sides):
                # Its environments are stepped one by one
                if side == "sb3" and n_envs > MOST_OF_SB3:
                    continue
                found = measure_speed(side, env_id, n_envs, args)
                speed.append({"env_id": env_id, "n_envs": n_envs, "side": side, **found})
                print(speed[-1], flush=True)
    report = {
        "machine": describe_machine(),
        "device": th.cuda.get_device_name() if args.device.startswith("cuda") else args.device,
        "versions": read_versions(),
        "speed": speed,
        "others": others,
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
