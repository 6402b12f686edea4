"""What is recorded as CUDA graphs, with recordings that are played back on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import pytest
import torch as th
from gymnasium import spaces
from torch.utils._pytree import tree_leaves, tree_map_only

import zoo_plugins.envs  # noqa: F401
from tests.tensor_fakes import TensorLenEnv
from zoo_plugins import TensorPPO
from zoo_plugins.algos import cuda_graphs
from zoo_plugins.algos.cuda_graphs import WARM_UP, Graphed
from zoo_plugins.algos.fused_loss import FusedPPOLoss
from zoo_plugins.vec_envs import TensorVecEnv, TensorVecFrameStack, TensorVecNormalize

recordings: list[Callable[..., Any]] = []


def record_on_cpu(
    function: Callable[..., Any], inputs: Sequence[Any], generators: Sequence[th.Generator]
) -> tuple[Callable[[], None], Any]:
    """Recording that runs the function once, so that the first playback, which follows at once, has nothing left to do."""
    recordings.append(function)
    outputs = tree_map_only(th.Tensor, th.clone, function(*inputs))
    n_played = 0

    def play() -> None:
        nonlocal n_played
        n_played += 1
        if n_played > 1:
            for kept, new in zip(tree_leaves(outputs), tree_leaves(function(*inputs)), strict=True):
                if kept is not None:
                    kept.copy_(new)

    return play, outputs


@pytest.fixture
def on_cpu(monkeypatch):
    """Play back on the CPU."""
    recordings.clear()
    monkeypatch.setattr(cuda_graphs, "record", record_on_cpu)
    monkeypatch.setattr(TensorPPO, "_uses_graphs", lambda self: self.compile == "cudagraph")


def test_graphed(on_cpu):
    """Calls are computed one after the other, from copies of what they are given, into memory of their own."""
    total = th.zeros(2)

    def function(x: th.Tensor, tree: dict[str, th.Tensor]) -> tuple[th.Tensor, dict[str, th.Tensor], None]:
        total.add_(x)
        return total.clone(), {"y": x + tree["y"]}, None

    graphed = Graphed(function)
    results = []
    x, y = th.ones(2), th.zeros(2)
    for i in range(WARM_UP + 3):
        x.fill_(i)
        y.fill_(10 * i)
        results.append(graphed(x, {"y": y}))
    assert len(recordings) == 1
    assert [result[0][0].item() for result in results] == [0, 1, 3, 6, 10, 15]
    assert [result[1]["y"][0].item() for result in results] == [11 * i for i in range(6)]
    assert all(result[2] is None for result in results)
    assert graphed.inputs[0] is not x


def make(env: Any, compile: str, **kwargs: Any) -> TensorPPO:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)
        return TensorPPO(
            "MlpPolicy", env, n_steps=8, batch_size=12, n_epochs=2, seed=0, compile=compile, device="cpu", **kwargs
        )


ENVS = {
    "plain": lambda env: env,
    "normalized": TensorVecNormalize,
    "stacked": lambda env: TensorVecFrameStack(env, 2),
}


@pytest.mark.parametrize("env_id", ["TensorCartPole-v1", "TensorPendulum-v1"])
@pytest.mark.parametrize("wrap", ENVS)
def test_same_weights(wrap, env_id, on_cpu, monkeypatch):
    """With recorded steps and minibatches, training gives the same weights, but for the rounding of the learning rate."""
    monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    weights, statistics = [], []
    for mode in ("none", "cudagraph"):
        env = TensorVecEnv(env_id, 4, device="cpu", max_episode_steps=6)
        kwargs = {"learning_rate": lambda left: 1e-2 * left, "clip_range": lambda left: 0.3 * left, "clip_range_vf": 0.2}
        model = make(ENVS[wrap](env), mode, **kwargs)
        model.learn(32 * 6)
        weights.append(model.policy.state_dict())
        statistics.append(model.ep_info_buffer)
    # Steps of all environments; minibatches of 12, and those of 8 that remain
    assert len(recordings) == 3
    for name, weight in weights[0].items():
        th.testing.assert_close(weights[1][name], weight, atol=1e-6, rtol=0, msg=name)
    returns = [[info["r"] for info in infos] for infos in statistics]
    assert returns[0] == pytest.approx(returns[1], abs=1e-4)


def test_coefficients_may_change(on_cpu, monkeypatch):
    """A coefficient that a callback changes is a constant of recordings, which are made again."""
    monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    weights = []
    for mode in ("none", "cudagraph"):
        model = make(TensorVecEnv("TensorCartPole-v1", 4, device="cpu"), mode)
        model.learn(32 * 6)
        model.ent_coef, model.max_grad_norm = 0.5, 0.1
        model.learn(32 * 6, reset_num_timesteps=False)
        weights.append(model.policy.parameters_to_vector())
    assert abs(weights[0] - weights[1]).max() < 1e-6
    assert len(recordings) == 1 + 2 * 2


def test_other_environments(on_cpu):
    """Environments that can't be recorded are stepped as ever, with a warning."""
    model = make(TensorLenEnv(4), "cudagraph")
    with pytest.warns(UserWarning, match="steps can't be recorded as a CUDA graph: only minibatches are"):
        model.learn(32 * 6)
    assert len(recordings) == 2


def test_save_and_load(on_cpu, tmp_path):
    """Recordings are not saved."""
    model = make(TensorVecEnv("TensorCartPole-v1", 4, device="cpu"), "cudagraph")
    model.learn(32 * 6).save(tmp_path / "model")
    loaded = TensorPPO.load(tmp_path / "model", env=TensorVecEnv("TensorCartPole-v1", 6, device="cpu"), device="cpu")
    assert loaded.compile == "cudagraph"
    loaded.learn(48 * 6)


def test_on_the_cpu():
    """Without a GPU, a warning says that there are no graphs, and training goes on without."""
    with pytest.warns(UserWarning, match="compile='cudagraph' needs a GPU: on cpu, it does nothing"):
        model = TensorPPO("MlpPolicy", TensorLenEnv(4), n_steps=8, batch_size=16, compile="cudagraph", device="cpu")
    model.learn(64)
    assert model._graphs is None


@pytest.mark.parametrize("kwargs", [{"target_kl": 0.1}, {"use_sde": True}])
def test_what_does_not_go_together(kwargs):
    """What can't be recorded is refused."""
    with pytest.raises(ValueError, match="works neither with target_kl nor with use_sde"):
        make(TensorLenEnv(4, action_space=spaces.Box(-1, 1, (1,))), "cudagraph", **kwargs)


def test_compiled_loss(monkeypatch):
    """The loss can be traced as a whole, and its statistics and gradients stay the same."""
    monkeypatch.setattr(FusedPPOLoss, "supports", lambda policy: False)
    original = th.compile
    monkeypatch.setattr(th, "compile", lambda function: original(function, backend="aot_eager", fullgraph=True))
    weights = []
    for mode in ("none", "default"):
        model = make(gym.make("CartPole-v1"), mode)
        weights.append(model.learn(24).policy.parameters_to_vector())
    assert abs(weights[0] - weights[1]).max() < 1e-6
