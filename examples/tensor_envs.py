"""TensorPPO in a plain SB3 script, with a simulator of many environments that is a class of your own."""

import argparse
from typing import Any

import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.evaluation import evaluate_policy

from zoo_plugins import TensorPPO
from zoo_plugins.vec_envs import BatchSim, TensorVecEnv, TensorVecNormalize

DT = 0.05
N_STEPS = 100


class Docking(BatchSim):
    """Bring many points, which have a mass, to rest at the origin of a plane."""

    # Places and velocities; forces
    single_observation_space = spaces.Box(-float("inf"), float("inf"), (4,))
    single_action_space = spaces.Box(-1, 1, (2,))
    final_obs = "exact"
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, num_envs: int, device: str):
        self.num_envs = num_envs
        self.state = th.zeros(num_envs, 4, device=device)
        self.steps = th.zeros(num_envs, device=device)
        self.generator = th.Generator(device)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[th.Tensor, dict[str, Any]]:
        if seed is not None:
            self.generator.manual_seed(seed)
        self.state.uniform_(-1, 1, generator=self.generator)
        self.steps.zero_()
        return self.state, {}

    def step(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        place, velocity = self.state[:, :2], self.state[:, 2:]
        velocity += DT * actions.clamp(-1, 1)
        place += DT * velocity
        self.steps += 1
        distance = self.state.norm(dim=1)
        truncated = self.steps >= N_STEPS
        info = {"final_obs": self.state.clone(), "is_success": distance < 0.1}
        # Those whose episode has ended start anew, in the same step
        fresh = th.empty_like(self.state).uniform_(-1, 1, generator=self.generator)
        self.state = th.where(truncated[:, None], fresh, self.state)
        self.steps.masked_fill_(truncated, 0)
        return self.state, -DT * distance, th.zeros_like(truncated), truncated, info


def main(n_envs: int = 256, total_timesteps: int = 500_000, device: str = "cpu") -> None:
    env = TensorVecNormalize(TensorVecEnv(Docking(n_envs, device), device=device), gamma=0.98)
    model = TensorPPO(
        "MlpPolicy",
        env,
        n_steps=25,
        batch_size=1600,
        gamma=0.98,
        learning_rate=1e-3,
        seed=0,
        device=device,
        verbose=1,
    )
    model.learn(total_timesteps, progress_bar=True)

    env.training, env.norm_reward = False, False
    # Any other function of SB3 sees NumPy arrays
    mean_reward, std_reward = evaluate_policy(model, env, n_eval_episodes=n_envs)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=500_000)
    main(total_timesteps=parser.parse_args().timesteps)
