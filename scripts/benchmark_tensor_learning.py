"""
Compare how TensorPPO on a TensorVecEnv and SB3's PPO on a DummyVecEnv learn, with the same hyperparameters.

Those are in ppo_tensor.yml, in the block of the environment in tensors. Runs, times, curves and tables are those of
scripts/benchmark_learning.py. In the end, each agent plays 100 episodes, greedily, in gymnasium's environment, whichever it
has learned in.

    python scripts/benchmark_tensor_learning.py --output docs/results/tensor-learning
    python scripts/benchmark_tensor_learning.py --output docs/results/tensor-learning --resume     # after an interruption
    python scripts/benchmark_tensor_learning.py --envs CartPole-v1 --seeds 0 --scale 0.1 --output look     # a quick look

OUTPUT-runs/ gets the episodes of each run, as soon as it has ended. In the end: OUTPUT.json, OUTPUT.md, OUTPUT-ENV.png.
"""

import argparse
import json
from typing import Any

import benchmark_learning
import numpy as np
from benchmark_learning import learn, plot, summarize
from processes import describe_machine, parse_run_options, read_versions, run_all, write_report
from recurrent_runs import make_model, read_hyperparams

FILE = "zoo_plugins:hyperparams/ppo_tensor.yml"
# The return that an agent has to reach: gymnasium's for CartPole, that of the zoo's agent for Pendulum
THRESHOLDS = {"CartPole-v1": 475, "Pendulum-v1": -200}
SIDES = {"upstream": dict(label="PPO, DummyVecEnv"), "tensor": dict(label="TensorPPO, TensorVecEnv")}
N_EPISODES = 100


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Train one side, in this process.

    :param settings: Side, environment, hyperparameters, seed and number of timesteps
    :return: the settings; what learn() returned; and returns of greedy episodes
    """
    import torch as th
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    from zoo_plugins import TensorPPO, TensorVecEnv

    th.set_num_threads(1)
    env_id, hyperparams, seed = settings["env"], settings["hyperparams"], settings["seed"]
    model: PPO
    if settings["side"] == "tensor":
        model = make_model(TensorPPO, f"Tensor{env_id}", hyperparams, seed, vec_env_cls=TensorVecEnv)
    else:
        model = make_model(PPO, env_id, hyperparams, seed)
    found = learn(model, settings["timesteps"])
    eval_env = make_vec_env(env_id, 10, seed=seed + 10_000)
    returns: Any = evaluate_policy(model, eval_env, n_eval_episodes=N_EPISODES, return_episode_rewards=True)[0]
    return {"settings": settings, **found, "greedy": [round(float(value), 2) for value in returns]}


def to_markdown(report: dict[str, Any]) -> str:
    """
    Write the report as tables.

    :param report: The report
    :return: Markdown
    """
    lines = [f"| environment | side | mean return of {N_EPISODES} greedy episodes, by seed |", "|---|---|---|"]
    for env in report["envs"]:
        for side, row in env["sides"].items():
            lines.append(f"| {env['env']} | {SIDES[side]['label']} | {', '.join(map(str, row['greedy']))} |")
    greedy = "\n".join(lines)
    return f"{benchmark_learning.to_markdown(report, SIDES)}\n{greedy}\n"


def main() -> None:
    """Run both sides and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=list(THRESHOLDS), default=list(THRESHOLDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(3)))
    args = parse_run_options(parser, "tensor-learning")
    if args.settings:
        print(json.dumps(train(args.settings)))
        return

    settings = {}
    for i, seed in enumerate(args.seeds):
        for env_id in args.envs:
            hyperparams = read_hyperparams(FILE, f"Tensor{env_id}")
            del hyperparams["vec_env_class"]
            for side in list(SIDES)[:: 1 if i % 2 == 0 else -1]:
                settings[f"{env_id}-{side}-{seed}"] = {
                    "env": env_id,
                    "side": side,
                    "seed": seed,
                    "timesteps": round(hyperparams["n_timesteps"] * args.scale),
                    "hyperparams": hyperparams,
                    "machine": describe_machine(),
                    "versions": read_versions(),
                }
    done = run_all(__file__, settings, args)
    runs = {env_id: {side: [done[f"{env_id}-{side}-{seed}"] for seed in args.seeds] for side in SIDES} for env_id in args.envs}
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "versions": read_versions(),
        "seeds": args.seeds,
        "scale": args.scale,
        "jobs": args.jobs,
        "envs": [summarize(env_id, runs[env_id], THRESHOLDS[env_id]) for env_id in args.envs],
    }
    for env in report["envs"]:
        for side, row in env["sides"].items():
            row["greedy"] = [round(float(np.mean(run["greedy"])), 1) for run in runs[env["env"]][side]]
    write_report(report, to_markdown(report), args.output)
    for env in report["envs"]:
        plot(env, args.output.with_name(f"{args.output.name}-{env['env']}.png"), SIDES)


if __name__ == "__main__":
    main()
