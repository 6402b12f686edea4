"""What the zoo has to know about the algorithm. The zoo imports this file whenever it starts, so it imports nothing heavy."""

from typing import Any

from zoo_plugins import AlgoSpec


def sample_ppo_fade_params(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """Sample the zoo's search space of PPO, and one parameter more."""
    from rl_zoo3.hyperparams_opt import sample_ppo_params

    sample_ppo_params(trial, n_actions, n_envs, additional_args)
    trial.suggest_float("final_ent_coef", 1e-8, 1e-2, log=True)
    return convert_ppo_fade_params(trial.params)


def convert_ppo_fade_params(params: dict[str, Any]) -> dict[str, Any]:
    """Turn the numbers of a trial into hyperparameters, also for --trial-id. Parameters as they are pass through."""
    from rl_zoo3.hyperparams_opt import convert_onpolicy_params

    return convert_onpolicy_params(params)


PPO_FADE = AlgoSpec(
    cls="my_plugin.fading_ppo:FadingPPO",
    sampler="my_plugin.specs:sample_ppo_fade_params",
    converter="my_plugin.specs:convert_ppo_fade_params",
    hyperparams="my_plugin:hyperparams/ppo_fade.yml",
)
