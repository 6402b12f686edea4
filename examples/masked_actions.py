"""MaskableSeqRecurrentPPO in a plain SB3 script: memory, in an environment that tells which actions are valid."""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from zoo_plugins import MaskableSeqRecurrentPPO


class RecallEnv(gym.Env[Any, Any]):
    """Choose the number that was shown first, 8 times; half of the other numbers may not be chosen."""

    def __init__(self) -> None:
        self.observation_space: gym.Space[Any] = gym.spaces.Discrete(5)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(4)

    def _draw_masks(self) -> None:
        self.masks = self.np_random.random(4) < 0.5
        self.masks[self.number] = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.number = 0, int(self.np_random.integers(4))
        self._draw_masks()
        return self.number, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self._draw_masks()
        return 4, float(action == self.number), self.t == 8, False, {}

    def action_masks(self) -> np.ndarray:
        return self.masks


def main(total_timesteps: int = 20_000) -> None:
    env = make_vec_env(RecallEnv, n_envs=8, seed=0)
    model = MaskableSeqRecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=64,
        batch_size=256,
        gamma=0.9,
        learning_rate=5e-3,
        policy_kwargs=dict(lstm_hidden_size=32, net_arch=[32]),
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, progress_bar=True)

    # SB3's functions pass no masks: this asks the environment for them
    mean_reward, std_reward = evaluate_policy(model.with_masks_of(env), env, n_eval_episodes=50)
    print(f"mean reward: {mean_reward:.1f} +/- {std_reward:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=20_000)
    main(total_timesteps=parser.parse_args().timesteps)
