"""Hindsight experience replay with many environments in a plain SB3 script, without the zoo."""

import argparse

from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from zoo_plugins import FastHerReplayBuffer, UpdateRatioCallback


def main(n_envs: int = 8, total_timesteps: int = 6_000) -> None:
    env = make_vec_env("zoo_plugins.envs:BitFlipping-v0", n_envs)
    model = DQN(
        "MultiInputPolicy",
        env,
        learning_rate=2e-3,
        learning_starts=300,
        batch_size=32,
        train_freq=1,
        target_update_interval=100,
        exploration_final_eps=0.02,
        replay_buffer_class=FastHerReplayBuffer,
        seed=0,
    )
    # As many updates per transition as with one environment
    model.learn(total_timesteps, callback=UpdateRatioCallback("n_envs"), progress_bar=True)

    mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=50)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=6_000)
    main(total_timesteps=parser.parse_args().timesteps)
