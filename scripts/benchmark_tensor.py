"""
Compare TensorPPO on a TensorVecEnv with SB3's PPO, on a DummyVecEnv and on environments that are stepped together.

Sides are those of scripts/tensor_sides.py: "sb3-..." is SB3's PPO, "ours-..." TensorPPO, on a DummyVecEnv ("sb3",
"ours-dummy"), on gymnasium's own vector environment, on EnvPool with one thread, and on tensors ("ours"). All have the same
hyperparameters (two layers of 64 units, 4 epochs of a few minibatches) and one torch thread. They train in turns in one
process, in an order that changes from round to round, after one rollout that warms up. What counts is environment steps per
CPU second: of whole learn() calls, and of collect_rollouts() alone. Ratios are medians over rounds. Prototype and goal are
ratios of collect_rollouts() and learn(). Sides "lstm-..." are recurrent: SeqRecurrentPPO on tensors ("lstm") and on a
DummyVecEnv, and sb3_contrib's RecurrentPPO ("lstm-sb3"), with an LSTM of 64 units.

    python scripts/benchmark_tensor.py --output docs/results/tensor-speed
    python scripts/benchmark_tensor.py --cases CartPole-64 CartPole-1024 CartPole-4096 --sides lstm lstm-dummy lstm-sb3 \
        --output docs/results/tensor-lstm-speed
    python scripts/benchmark_tensor.py --cases CartPole-64 --rounds 1 --seconds 1     # a quick look
"""

import argparse
import importlib.util
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch as th
from processes import describe_machine, read_versions, write_report
from tensor_sides import SIDES, has_vector_form

# Number of environments: steps of each per rollout, and size of a minibatch
SIZES = {8: (256, 256), 64: (32, 512), 1024: (32, 8192), 4096: (8, 8192)}
ENV_IDS = {"CartPole": "CartPole-v1", "Pendulum": "Pendulum-v1"}
CASES = {f"{env}-{n_envs}": (env, n_envs) for env in ENV_IDS for n_envs in SIZES}
# Of collect_rollouts() and learn(), of "ours" against others: prototype and goal
TARGETS = {
    ("CartPole-8", "sb3"): ((0.97, 1.14), (1, 1.2)),
    ("CartPole-64", "sb3"): ((2.3, 1.7), (2.4, 1.8)),
    ("CartPole-1024", "sb3"): ((8.6, 2.4), (9, 2.7)),
    ("CartPole-4096", "sb3"): ((14.1, 2.7), (15, 3)),
    ("CartPole-4096", "sb3-gym-vector"): ((1.42, 1.19), (1.5, 1.3)),
    ("CartPole-4096", "sb3-envpool"): ((2.8, 1.24), (3, 1.4)),
    ("Pendulum-4096", "sb3"): ((18, 3), ()),
}
DEFAULT_SIDES = [side for side in SIDES if side != "ours-compiled" and not side.startswith("lstm")]


class Side:
    """
    A model whose collection is timed.

    :param name: One of SIDES
    :param env: One of ENV_IDS
    :param n_envs: Number of environments
    """

    def __init__(self, name: str, env: str, n_envs: int):
        cls: Any
        cls, make_env = SIDES[name]
        vec_env = make_env(ENV_IDS[env], n_envs)
        n_steps, batch_size = SIZES[n_envs]
        policy = "MlpPolicy"
        options: dict[str, Any] = {}
        if name.startswith("lstm"):
            policy, options = "MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 64}}
        elif name == "ours-compiled":
            options = {"compile": "default"}
        self.env = vec_env
        self.model = cls(policy, vec_env, n_steps=n_steps, batch_size=batch_size, n_epochs=4, seed=0, device="cpu", **options)
        self.collect_seconds = 0.0
        self._collect = self.model.collect_rollouts
        self.model.collect_rollouts = self._timed_collect

    def _timed_collect(self, *args: Any, **kwargs: Any) -> bool:
        start = time.process_time()
        done = self._collect(*args, **kwargs)
        self.collect_seconds += time.process_time() - start
        return done

    def run(self, seconds: float) -> tuple[float, float]:
        """
        Train for some time, in whole rollouts.

        :param seconds: CPU seconds, about: one call of learn() at least
        :return: environment steps per CPU second of collect_rollouts() and of learn()
        """
        rollout = self.model.n_steps * self.model.n_envs
        self.collect_seconds, start, n_steps = 0.0, time.process_time(), 0
        while n_steps == 0 or time.process_time() - start < seconds:
            self.model.learn(rollout, reset_num_timesteps=False)
            n_steps += rollout
        return n_steps / self.collect_seconds, n_steps / (time.process_time() - start)


def run_case(name: str, sides: list[str], n_rounds: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """
    Let all sides train in turns.

    :param name: One of CASES
    :param sides: Some of SIDES
    :param n_rounds: Number of rounds
    :param seconds: CPU seconds of each side and round, about
    :return: what :meth:`Side.run` returned, by side and round
    """
    models = {side: Side(side, *CASES[name]) for side in sides}
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for i in range(n_rounds + 1):
        for side in sides[:: 1 if i % 2 == 0 else -1]:
            result = models[side].run(seconds if i > 0 else 0.0)
            if i > 0:
                found[side].append(result)
    for model in models.values():
        model.env.close()
    return found


def summarize(runs: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """
    Compare sides.

    :param runs: What run_case() returned
    :return: for each side, of collect_rollouts() and learn(): medians of steps per second, and of the ratio of "ours" to it
        (or of the first side, if there is no "ours")
    """
    ours = runs.get("ours", next(iter(runs.values())))
    return {
        side: {
            "fps": [statistics.median(values) for values in zip(*rows, strict=True)],
            "ratio": [statistics.median(row[i] / other[i] for row, other in zip(ours, rows, strict=True)) for i in range(2)],
        }
        for side, rows in runs.items()
    }


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """
    lines = [
        f"{report['machine']}; {report['rounds']} rounds of {report['seconds']:g} CPU seconds; one torch thread.",
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()) + ".",
        "",
        "| environment, how many | side | collect_rollouts(): steps/s | ours is faster by "
        "| learn(): steps/s | ours is faster by | prototype | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, sides in report["cases"].items():
        for side, row in sides.items():
            targets = TARGETS.get((name, side), ((), ()))
            cells = [" / ".join(f"{value:g}" for value in pair) for pair in targets]
            numbers = [f"{fps:.0f} | {ratio:.2f}" for fps, ratio in zip(row["fps"], row["ratio"], strict=True)]
            lines.append(f"| {' | '.join([name, side, *numbers, *cells])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all cases and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--sides", nargs="+", choices=list(SIDES), help="default: all that are installed, but compiled losses and LSTMs"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds of each side and round, about")
    parser.add_argument("--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    args = parser.parse_args()
    th.set_num_threads(1)
    # Remainders of minibatches
    warnings.filterwarnings("ignore", "You have specified a mini-batch size")
    has_envpool = importlib.util.find_spec("envpool") is not None
    sides = args.sides or [side for side in DEFAULT_SIDES if has_envpool or "envpool" not in side]
    needs_envpool = any("envpool" in side for side in sides)
    if needs_envpool and not has_envpool:
        raise SystemExit("EnvPool is missing: pip install 'zoo-plugins[envpool]'")

    runs = {}
    for name in args.cases:
        there = [side for side in sides if "gym-vector" not in side or has_vector_form(ENV_IDS[CASES[name][0]])]
        runs[name] = run_case(name, there, args.rounds, args.seconds)
        print(f"{name}: done", flush=True)
    report = {
        "machine": describe_machine(),
        "versions": read_versions(*(["envpool"] if needs_envpool else [])),
        "rounds": args.rounds,
        "seconds": args.seconds,
        "cases": {name: summarize(found) for name, found in runs.items()},
        "runs": runs,
    }
    write_report(report, to_markdown(report), args.output)


if __name__ == "__main__":
    main()
