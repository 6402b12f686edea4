"""GymVectorVecEnv and EnvPoolVecEnv in a plain SB3 script: environments that somebody else steps together."""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from zoo_plugins import EnvPoolVecEnv, GymVectorVecEnv


def main(n_envs: int = 8, total_timesteps: int = 100_000, use_envpool: bool = False) -> None:
    env: VecNormalize
    if use_envpool:  # steps them in threads
        env = VecNormalize(EnvPoolVecEnv("Pendulum-v1", n_envs, device="cpu", num_threads=2), gamma=0.9)
    else:  # one after the other; vectorization_mode="async" steps each in a process
        env = VecNormalize(GymVectorVecEnv("Pendulum-v1", n_envs, vectorization_mode="sync", device="cpu"), gamma=0.9)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=256,
        batch_size=256,
        gamma=0.9,
        learning_rate=1e-3,
        use_sde=True,
        sde_sample_freq=4,
        seed=0,
        device="cpu",
        verbose=1,
    )
    model.learn(total_timesteps, progress_bar=True)

    env.training, env.norm_reward = False, False
    mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=20)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=100_000)
    parser.add_argument("--envpool", action="store_true", help="take EnvPool's environments")
    options = parser.parse_args()
    main(total_timesteps=options.timesteps, use_envpool=options.envpool)
