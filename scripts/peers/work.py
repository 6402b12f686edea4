"""What all sides of scripts/benchmark_peers.py do, and how it is timed and checked."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the side in JAX does without them
    from stable_baselines3.common.vec_env import VecEnv
    from torch import nn

ENV_ID = "PendulumNoVel-v1"
N_ENVS = 4
N_OBS = 3
GAMMA = 0.9
GAE_LAMBDA = 0.95
LEARNING_RATE = 1e-3
CLIP_RANGE = 0.2
VF_COEF = 0.5
MAX_GRAD_NORM = 0.5
# Of each LSTM, and of the layer after it; actor and critic have one of each
HIDDEN_SIZE = 64


@dataclass(frozen=True)
class Work:
    """
    The work of a side.

    :param batch_size: Timesteps per minibatch
    :param seq_length: Timesteps of the sequences of a minibatch. ``None``: up to the end of the episode
    :param n_rollouts: Number of rollouts that count, after one that warms up
    :param seed: Random seed
    :param n_steps: Steps of each environment in a rollout
    :param n_epochs: Passes over a rollout
    :raises ValueError: if minibatches or sequences are not all of the same size
    """

    batch_size: int
    seq_length: int | None
    n_rollouts: int
    seed: int
    n_steps: int = 1024
    n_epochs: int = 10

    def __post_init__(self) -> None:
        for name, value, total in (
            ("batch_size", self.batch_size, N_ENVS * self.n_steps),
            ("seq_length", self.seq_length or 1, self.n_steps),
            ("seq_length", self.seq_length or 1, self.batch_size),
        ):
            if total % value:
                raise ValueError(f"{name} {value} does not divide {total}: choose another number of steps")

    @property
    def n_minibatches(self) -> int:
        """Number of minibatches of an epoch."""
        return N_ENVS * self.n_steps // self.batch_size


class Clock:
    """
    Wall and CPU time of each rollout, in two phases: "collect" and "update".

    An update is the optimisation of the networks alone; all the rest, advantages too, is collection.
    """

    def __init__(self) -> None:
        self.rollouts: list[dict[str, dict[str, float]]] = []
        self.phase = "collect"
        self._reset()

    def _reset(self) -> None:
        self.seconds = {phase: {"wall": 0.0, "cpu": 0.0} for phase in ("collect", "update")}
        self.last = (time.perf_counter(), time.process_time())

    def switch(self, phase: str) -> None:
        """
        End a phase, and start another one.

        :param phase: The one that starts
        """
        now = time.perf_counter(), time.process_time()
        self.seconds[self.phase]["wall"] += now[0] - self.last[0]
        self.seconds[self.phase]["cpu"] += now[1] - self.last[1]
        self.phase, self.last = phase, now

    def end_rollout(self) -> None:
        """End a rollout with its update."""
        self.switch("collect")
        self.rollouts.append(self.seconds)
        self._reset()


def expected_facts(work: Work, lstm_biases: int) -> dict[str, Any]:
    """
    Say what a side must be found to have done.

    :param work: Its work
    :param lstm_biases: Bias vectors of an LSTM's gate: 2 in PyTorch, where one would do
    :return: number of optimizer steps per rollout, all sizes of minibatches, (input size, hidden size) of each LSTM, and
        number of parameters
    """
    lstm = 4 * HIDDEN_SIZE * (N_OBS + HIDDEN_SIZE + lstm_biases)
    layer = HIDDEN_SIZE * HIDDEN_SIZE + HIDDEN_SIZE
    head = HIDDEN_SIZE + 1
    return {
        "optimizer_steps": work.n_epochs * work.n_minibatches,
        "minibatch_sizes": [work.batch_size],
        "lstms": [[N_OBS, HIDDEN_SIZE]] * 2,
        "parameters": 2 * (lstm + layer + head) + 1,  # one action, one standard deviation
    }


def check_facts(facts: dict[str, Any], expected: dict[str, Any]) -> None:
    """
    Refuse a side that did something else.

    :param facts: What was found
    :param expected: What should have been
    :raises RuntimeError: if they differ
    """
    wrong = [f"{name} is {facts[name]}, expected {value}" for name, value in expected.items() if facts[name] != value]
    if wrong:
        raise RuntimeError("not the same work: " + "; ".join(wrong))


def torch_facts(modules: "list[nn.Module]", optimizer: Any, sizes: list[int], work: Work) -> dict[str, Any]:
    """
    Find out what a side in PyTorch did.

    :param modules: Its networks
    :param optimizer: Its optimizer, an Adam
    :param sizes: Sizes of minibatches that were seen
    :param work: What it had to do
    :return: see :func:`expected_facts`
    """
    from torch import nn

    parameters = [parameter for module in modules for parameter in module.parameters()]
    lstms = [lstm for module in modules for lstm in module.modules() if isinstance(lstm, nn.LSTM)]
    steps = {int(optimizer.state[parameter]["step"]) for parameter in parameters}
    assert all(lstm.num_layers == 1 for lstm in lstms)
    assert len(steps) == 1, "some parameters were not optimized in all steps"
    return {
        "optimizer_steps": steps.pop() / (work.n_rollouts + 1),
        "minibatch_sizes": sorted(set(sizes)),
        "lstms": [[lstm.input_size, lstm.hidden_size] for lstm in lstms],
        "parameters": sum(parameter.numel() for parameter in parameters),
    }


def make_env(seed: int) -> "VecEnv":
    """
    Make the environments as rl_zoo3 does: DummyVecEnv, Monitor, VecNormalize.

    :param seed: Random seed
    :return: the environments
    """
    import rl_zoo3.import_envs  # noqa: F401  # registers the environments without velocities
    import torch as th
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    th.set_num_threads(1)
    return VecNormalize(make_vec_env(ENV_ID, n_envs=N_ENVS, seed=seed), gamma=GAMMA)


def mean_returns(env: "VecEnv", work: Work) -> list[float | None]:
    """
    Average the returns of the episodes that ended in each rollout.

    :param env: Environments after a training
    :param work: The training
    :return: one mean per rollout, ``None`` without an episode
    """
    returns: list[list[float]] = [[] for _ in range(work.n_rollouts + 1)]
    monitors = env.env_method("get_episode_rewards"), env.env_method("get_episode_lengths")
    for rewards, lengths in zip(*monitors, strict=True):
        end = 0
        for reward, length in zip(rewards, lengths, strict=True):
            end += length
            returns[(end - 1) // work.n_steps].append(reward)
    return [sum(episodes) / len(episodes) if episodes else None for episodes in returns]
