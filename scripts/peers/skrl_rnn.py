"""PPO_RNN of skrl, trained by its SequentialTrainer."""

import itertools
from typing import Any

import numpy as np
import skrl
import torch as th
from skrl.agents.torch.ppo import PPO_RNN, ppo_rnn
from skrl.envs.wrappers.torch import Wrapper
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

from peers.work import (
    CLIP_RANGE,
    GAE_LAMBDA,
    GAMMA,
    HIDDEN_SIZE,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    N_ENVS,
    N_OBS,
    VF_COEF,
    Clock,
    Work,
    expected_facts,
    make_env,
    mean_returns,
    torch_facts,
)


class VecEnvWrapper(Wrapper):
    """
    SB3's VecEnv for skrl.

    An episode's end is reported as truncated, so that skrl bootstraps, and as terminated too, or its advantages would
    reach into the next episode.
    """

    def reset(self) -> tuple[th.Tensor, dict[str, Any]]:
        """See skrl."""
        return th.from_numpy(self._env.reset()), {}

    def step(self, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """See skrl."""
        space = self._env.action_space
        obs, rewards, dones, _ = self._env.step(np.clip(actions.numpy(), space.low, space.high))
        ended = th.from_numpy(dones)[:, None]
        return th.from_numpy(obs), th.from_numpy(rewards)[:, None], ended, ended, {}

    def state(self) -> None:
        """See skrl."""

    def render(self, *args: Any, **kwargs: Any) -> None:
        """See skrl."""

    def close(self) -> None:
        """See skrl."""


class RecurrentModel(Model):
    """
    LSTM, a hidden layer, and a linear output.

    :param env: The environments
    :param seq_length: Length of the sequences in a minibatch
    """

    def __init__(self, env: VecEnvWrapper, seq_length: int):
        super().__init__(observation_space=env.observation_space, action_space=env.action_space, device="cpu")
        self.seq_length = seq_length
        self.lstm = nn.LSTM(N_OBS, HIDDEN_SIZE, batch_first=True)
        self.head = nn.Sequential(nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), nn.ReLU(), nn.Linear(HIDDEN_SIZE, 1))

    def get_specification(self) -> dict[str, Any]:
        """See skrl."""
        return {"rnn": {"sequence_length": self.seq_length, "sizes": [(1, N_ENVS, HIDDEN_SIZE)] * 2}}

    def run(self, inputs: dict[str, Any]) -> tuple[th.Tensor, list[th.Tensor]]:
        """
        Read a step, or the sequences of a minibatch while training.

        :param inputs: Observations, LSTM states and, while training, where episodes end
        :return: outputs, shape (n_steps, 1), and LSTM states after them
        """
        obs, states = inputs["observations"], inputs["rnn"]
        if not self.training:
            latents, states = self.lstm(obs[:, None], tuple(states))
            return self.head(latents[:, 0]), list(states)

        sequences = obs.unflatten(0, (-1, self.seq_length))
        # There are states for all timesteps
        states = tuple(state[:, :: self.seq_length].contiguous() for state in states)
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, self.seq_length)
        # One call per piece in which no episode ends
        cuts = (ended[:, :-1].any(dim=0).nonzero().flatten() + 1).tolist()
        pieces = []
        for start, stop in itertools.pairwise([0, *cuts, self.seq_length]):
            if start > 0:
                keep = ended[:, start - 1].logical_not()[None, :, None]
                states = tuple(state * keep for state in states)
            latents, states = self.lstm(sequences[:, start:stop], states)
            pieces.append(latents)
        return self.head(th.cat(pieces, dim=1).flatten(0, 1)), list(states)


class Actor(GaussianMixin, RecurrentModel):
    """The policy."""

    def __init__(self, env: VecEnvWrapper, seq_length: int):
        RecurrentModel.__init__(self, env, seq_length)
        GaussianMixin.__init__(self)
        self.log_std = nn.Parameter(th.zeros(1))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[th.Tensor, dict[str, Any]]:
        """See skrl."""
        outputs, states = self.run(inputs)
        return outputs, {"log_std": self.log_std, "rnn": states}


class Critic(DeterministicMixin, RecurrentModel):
    """The value function."""

    def __init__(self, env: VecEnvWrapper, seq_length: int):
        RecurrentModel.__init__(self, env, seq_length)
        DeterministicMixin.__init__(self)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[th.Tensor, dict[str, Any]]:
        """See skrl."""
        outputs, states = self.run(inputs)
        return outputs, {"rnn": states}


def train(work: Work) -> dict[str, Any]:
    """
    Train for some rollouts.

    :param work: What to do
    :return: times of each rollout, mean returns, facts
    """
    assert work.seq_length is not None
    skrl.config.torch.device = "cpu"
    vec_env = make_env(work.seed)
    env = VecEnvWrapper(vec_env)
    th.manual_seed(work.seed)
    models = {"policy": Actor(env, work.seq_length), "value": Critic(env, work.seq_length)}
    agent = PPO_RNN(
        models=models,
        memory=RandomMemory(memory_size=work.n_steps, num_envs=N_ENVS, device="cpu"),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device="cpu",
        cfg=dict(
            rollouts=work.n_steps,
            learning_epochs=work.n_epochs,
            mini_batches=work.n_minibatches,
            discount_factor=GAMMA,
            gae_lambda=GAE_LAMBDA,
            learning_rate=LEARNING_RATE,
            grad_norm_clip=MAX_GRAD_NORM,
            ratio_clip=CLIP_RANGE,
            value_clip=0.0,
            value_loss_scale=VF_COEF,
            time_limit_bootstrap=True,
            experiment=dict(write_interval=0, checkpoint_interval=0),
        ),
    )
    clock, sizes = Clock(), []
    original_update, original_gae = agent.update, ppo_rnn.compute_gae

    def watch(_: nn.Module, inputs: tuple[th.Tensor, ...]) -> None:
        if th.is_grad_enabled():
            sizes.append(len(inputs[0]))

    hooks = [model.head.register_forward_pre_hook(watch) for model in models.values()]

    def timed_update(**kwargs: Any) -> None:
        clock.switch("update")
        original_update(**kwargs)
        clock.end_rollout()
        for hook in hooks:  # only the warm-up is looked at
            hook.remove()

    def timed_gae(**kwargs: Any) -> Any:
        # Advantages are part of the collection on the other sides
        clock.switch("collect")
        result = original_gae(**kwargs)
        clock.switch("update")
        return result

    agent.update = timed_update
    ppo_rnn.compute_gae = timed_gae
    timesteps = work.n_steps * (work.n_rollouts + 1)
    SequentialTrainer(
        env=env,
        agents=agent,
        cfg=dict(timesteps=timesteps, headless=True, disable_progressbar=True, close_environment_at_exit=False),
    ).train()
    return {
        "rollouts": clock.rollouts,
        "returns": mean_returns(vec_env, work),
        "facts": torch_facts(list(models.values()), agent.optimizer, sizes, work),
        "expected_facts": expected_facts(work, lstm_biases=2),
    }
