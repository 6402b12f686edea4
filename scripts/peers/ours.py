"""SeqRecurrentPPO."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from peers.work import (
    CLIP_RANGE,
    GAE_LAMBDA,
    GAMMA,
    HIDDEN_SIZE,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    N_ENVS,
    VF_COEF,
    Clock,
    Work,
    expected_facts,
    make_env,
    mean_returns,
    torch_facts,
)
from zoo_plugins import SeqRecurrentPPO


def train(work: Work) -> dict[str, Any]:
    """
    Train for some rollouts.

    :param work: What to do
    :return: times of each rollout, mean returns, facts
    """
    env = make_env(work.seed)
    model = SeqRecurrentPPO(
        "MlpLstmPolicy",
        env,
        learning_rate=LEARNING_RATE,
        n_steps=work.n_steps,
        batch_size=work.batch_size,
        n_epochs=work.n_epochs,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP_RANGE,
        vf_coef=VF_COEF,
        max_grad_norm=MAX_GRAD_NORM,
        policy_kwargs=dict(
            ortho_init=False,
            activation_fn=nn.ReLU,
            lstm_hidden_size=HIDDEN_SIZE,
            net_arch=dict(pi=[HIDDEN_SIZE], vf=[HIDDEN_SIZE]),
        ),
        seed=work.seed,
        device="cpu",
        max_seq_length=work.seq_length,
    )
    clock, sizes = Clock(), []
    original_train, original_get = model.train, model.rollout_buffer.get

    def timed_train() -> None:
        clock.switch("update")
        original_train()
        clock.end_rollout()
        model.rollout_buffer.get = original_get  # type: ignore[method-assign]  # only the warm-up is looked at

    def watched_get(batch_size: int | None = None) -> Iterator[Any]:
        for batch in original_get(batch_size):
            sizes.append(len(batch.actions))
            yield batch

    model.train = timed_train  # type: ignore[method-assign]
    model.rollout_buffer.get = watched_get  # type: ignore[method-assign]
    model.learn((work.n_rollouts + 1) * work.n_steps * N_ENVS)
    return {
        "rollouts": clock.rollouts,
        "returns": mean_returns(env, work),
        "facts": torch_facts([model.policy], model.policy.optimizer, sizes, work),
        "expected_facts": expected_facts(work, lstm_biases=2),
    }
