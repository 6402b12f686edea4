"""RayVecEnv in a plain SB3 script: environments in workers on this machine, or on a Ray cluster."""

import argparse
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from zoo_plugins import RayVecEnv


def main(n_envs: int = 8, total_timesteps: int = 50_000) -> None:
    # Two workers. They are on the cluster that RAY_ADDRESS names, or else on this machine
    make_env: Any = make_vec_env  # which is annotated for two classes of VecEnvs only
    env = make_env("CartPole-v1", n_envs, seed=0, vec_env_cls=RayVecEnv, vec_env_kwargs=dict(envs_per_worker=n_envs // 2))
    model = PPO("MlpPolicy", env, n_steps=128, batch_size=256, learning_rate=1e-3, seed=0, verbose=1)
    try:
        model.learn(total_timesteps, progress_bar=True)
    finally:
        env.close()  # ends the workers

    # A few episodes need no cluster
    mean_reward, std_reward = evaluate_policy(model, make_vec_env("CartPole-v1"), n_eval_episodes=10)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    main(total_timesteps=parser.parse_args().timesteps)
