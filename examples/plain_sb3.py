"""SeqRecurrentPPO in a plain SB3 script, without the zoo."""

import argparse

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from zoo_plugins import SeqRecurrentPPO


def hide_velocity(env: gym.Env) -> gym.Env:
    return TransformObservation(env, lambda obs: obs * np.array([1, 0, 1, 0], dtype=np.float32), env.observation_space)


def main(total_timesteps: int = 50_000) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, wrapper_class=hide_velocity), gamma=0.98)
    model = SeqRecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=1e-3,
        policy_kwargs=dict(lstm_hidden_size=64, net_arch=dict(pi=[64], vf=[64])),
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, progress_bar=True)

    env.training, env.norm_reward = False, False
    mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=10)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=50_000)
    main(total_timesteps=parser.parse_args().timesteps)
