"""An algorithm with a hyperparameter of its own."""

from typing import Any

import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import GymEnv, Schedule


class FadingPPO(PPO):
    """
    PPO whose entropy bonus changes linearly during training.

    The arguments are written out, as SB3 does: they are the keys that a hyperparameter file may have.

    :param ent_coef: Entropy coefficient at the start
    :param final_ent_coef: Entropy coefficient at the end
    """

    def __init__(
        self,
        policy: str,
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.01,
        final_ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
    ):
        if final_ent_coef < 0:
            # The zoo prunes a trial that raises ValueError
            raise ValueError(f"final_ent_coef must be at least 0, not {final_ent_coef}")
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            batch_size=batch_size,
            n_epochs=n_epochs,
            gamma=gamma,
            gae_lambda=gae_lambda,
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            normalize_advantage=normalize_advantage,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            target_kl=target_kl,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )
        self.final_ent_coef = final_ent_coef

    def train(self) -> None:
        """Update the policy with the entropy coefficient of now."""
        left = self._current_progress_remaining
        start, self.ent_coef = self.ent_coef, left * self.ent_coef + (1 - left) * self.final_ent_coef
        self.logger.record("train/ent_coef", self.ent_coef)
        super().train()
        self.ent_coef = start
