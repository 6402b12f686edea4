"""scripts/benchmark_peers.py: its arithmetic, its tables, and that each side does the same work."""

import functools
import importlib
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd

from tests.fakes import run_python

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def script(monkeypatch):
    """The module of the script."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("benchmark_peers")


@pytest.fixture
def work(script):
    """The module that describes the work."""
    return importlib.import_module("peers.work")


@pytest.fixture
def jax_rnn(script, monkeypatch):
    """The side in JAX."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytest.importorskip("jax", reason="the extra 'peers' is not installed")
    pytest.importorskip("optax", reason="the extra 'peers' is not installed")
    return importlib.import_module("peers.jax_rnn")


def make_run(*rollouts, **more):
    """Run with (collect, update) CPU seconds per rollout; wall time is twice as long."""
    phases = [{"collect": {"cpu": c, "wall": 2 * c}, "update": {"cpu": u, "wall": 2 * u}} for c, u in rollouts]
    facts = {"optimizer_steps": 320, "minibatch_sizes": [128], "parameters": 43779}
    return {"rollouts": phases, "returns": [-1200.0, -800.0], "facts": facts, **more}


def test_seconds_are_means_over_rollouts(script):
    """Collection and update add up to the whole."""
    run = make_run((1.0, 2.0), (2.0, 6.0))
    assert script.seconds(run, "collect", "cpu") == 1.5
    assert script.seconds(run, "update", "wall") == 8.0
    assert script.seconds(run, "whole", "cpu") == 5.5


def test_ratios_are_of_the_same_repeat(script):
    """Each repeat has a ratio of its own; the median of ratios is not the ratio of medians."""
    runs = {
        "ours-128": [make_run((1.0, 1.0)), make_run((1.0, 3.0)), make_run((1.0, 1.0))],
        "skrl-128": [make_run((1.0, 3.0)), make_run((1.0, 3.0)), make_run((1.0, 9.0))],
    }
    pair = dict(part="whole", ours="ours-128", peer="skrl-128", goal=dict(cpu=2.5))
    row = script.compare(pair, runs)
    assert row["ratio"]["cpu"] == {"median": 2.0, "min": 1.0, "max": 5.0}
    assert row["ratio"]["wall"] == row["ratio"]["cpu"]
    assert row["goal"] == {"cpu": 2.5}


def test_summary_of_a_side(script):
    """Speed counts all timesteps of a rollout; compilation is apart; a return may be missing."""
    runs = [make_run((1.0, 3.0), compile_seconds=6.0), make_run((1.0, 7.0), compile_seconds=8.0), make_run((1.0, 3.0))]
    runs[2]["returns"] = [None, -500.0]
    row = script.summarize_side("jax-128", runs, timesteps=4096)
    assert row["fps"] == {"cpu": 1024.0, "wall": 512.0}
    assert row["milliseconds_per_optimizer_step"] == pytest.approx(3000 / 320)
    assert row["compile_seconds"] == 7.0
    assert (row["first_return"], row["last_return"]) == (-1200.0, -700.0)


def test_markdown(script):
    """The tables say what was measured beside prototype and goal, and where a number is missing."""
    runs = {"ours-1024": [make_run((1.0, 1.0))], "jax-1024": [make_run((1.0, 2.0), compile_seconds=6.04)]}
    runs["ours-1024"][0]["returns"] = [None, -800.0]
    (pair,) = [pair for pair in script.PAIRS if (pair["ours"], pair["peer"]) == ("ours-1024", "jax-1024")]
    report = {
        "machine": "a machine",
        "versions": {"torch": "2.13.0"},
        **dict(repeats=1, rollouts=1, n_steps=1024, n_epochs=10),
        "pairs": [script.compare(pair, runs), script.compare(dict(part="collect", ours="ours-1024", peer="jax-1024"), runs)],
        "sides": [script.summarize_side(side, side_runs, 4096) for side, side_runs in runs.items()],
    }
    lines = script.to_markdown(report).splitlines()
    assert lines[0].startswith("a machine; one thread on one core; 1 repeats (seeds from 0) of 1 rollouts of 4 x 1024 steps")
    assert lines[1] == "torch 2.13.0."
    assert lines[5] == (
        "| whole | ours-1024 | jax-1024 | **1.50** (1.50-1.50) | 1.50 (1.50-1.50) | 1.17 cpu, 0.84 wall | 1.5 cpu, 1.2 wall |"
    )
    assert lines[6] == "| collect | ours-1024 | jax-1024 | **1.00** (1.00-1.00) | 1.00 (1.00-1.00) |  |  |"
    assert lines[10] == "| ours-1024 | 2048 | 1024 | 1.00 | 1.00 | 3.12 | 320 of 128 | 43779 |  | , -800 |"
    assert lines[11] == "| jax-1024 | 1365 | 683 | 1.00 | 2.00 | 6.25 | 320 of 128 | 43779 | 6.0 | -1200, -800 |"
    columns = {line.count("|") for line in lines if line.startswith("|")}
    assert columns == {8, 11}


def test_pairs_are_of_sides(script):
    """Whatever is compared can be run, and what a side needs is known."""
    for pair in script.PAIRS:
        assert {pair["ours"], pair["peer"]} <= set(script.SIDES)
        assert pair["part"] in ("collect", "update", "whole")
    assert {module for module, _, _ in script.SIDES.values()} == set(script.PACKAGES)


def test_missing_package_is_told(script, monkeypatch):
    """The message says which side lacks what, and how to get it."""
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    script.check_packages(["ours-128"])
    with pytest.raises(SystemExit, match=r"skrl missing for skrl-128: pip install -c constraints.txt -e '\.\[peers\]'"):
        script.check_packages(["ours-128", "skrl-128"])


def test_work_is_the_same_size_everywhere(work):
    """320 or 40 optimizer steps per rollout; pieces that do not fit are refused."""
    assert work.expected_facts(work.Work(128, None, 1, 0), 2)["optimizer_steps"] == 320
    assert work.expected_facts(work.Work(1024, 128, 1, 0), 2)["optimizer_steps"] == 40
    with pytest.raises(ValueError, match="batch_size 128 does not divide 400"):
        work.Work(128, None, 1, 0, n_steps=100)
    with pytest.raises(ValueError, match="seq_length 1024 does not divide 256"):
        work.Work(1024, 1024, 1, 0, n_steps=256)


def test_other_work_is_refused(work):
    """A side with another network, or other minibatches, does not count."""
    expected = work.expected_facts(work.Work(128, None, 1, 0), 2)
    work.check_facts(dict(expected), expected)
    with pytest.raises(RuntimeError, match=r"minibatch_sizes is \[64, 128\], expected \[128\]; parameters is 7"):
        work.check_facts({**expected, "minibatch_sizes": [64, 128], "parameters": 7}, expected)


def test_returns_belong_to_the_rollout_in_which_they_end(work):
    """An episode that ends with the last step of a rollout belongs to it."""

    class Env:
        def env_method(self, name):
            return {"get_episode_rewards": [[-1.0, -2.0], [-3.0]], "get_episode_lengths": [[4, 1], [12]]}[name]

    assert work.mean_returns(Env(), work.Work(4, None, 2, 0, n_steps=4)) == [-1.0, -2.0, -3.0]


def run_script(tmp_path, *arguments):
    """Run the script; return its report."""
    output = tmp_path / "report"
    options = ["--rollouts", "1", "--repeats", "1", "--n-steps", "256", "--n-epochs", "1", "--output", str(output)]
    done = run_python(str(SCRIPTS / "benchmark_peers.py"), *arguments, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert output.with_suffix(".md").read_text() in done.stdout
    return json.loads(output.with_suffix(".json").read_text())


@pytest.mark.parametrize(("side", "steps"), [("ours-128-cap16", 8), ("skrl-128", 8), ("jax-1024-rows", 1)])
def test_sides_run(tmp_path, script, side, steps):
    """Each module trains from end to end, and is found to have done its work."""
    for package in script.PACKAGES[script.SIDES[side][0]]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed (extra 'peers')")
    report = run_script(tmp_path, "--sides", side)
    (run,) = report["runs"][side]
    assert run["facts"]["optimizer_steps"] == steps
    assert len(run["rollouts"]) == 1
    assert len(run["returns"]) == 2
    assert all(phase["wall"] > 0 and phase["cpu"] > 0 for rollout in run["rollouts"] for phase in rollout.values())
    assert (report["sides"][0]["compile_seconds"] is not None) == side.startswith("jax")
    assert report["pairs"] == []


def test_skrl_model_restarts_at_episode_starts():
    """A minibatch gives the outputs of acting step by step, with zero states after an episode's end."""
    if importlib.util.find_spec("skrl") is None:
        pytest.skip("skrl is not installed (extra 'peers')")
    # Another process: skrl changes a default of torch.distributions
    done = run_python("-c", SKRL_CHECK, str(SCRIPTS))
    assert done.returncode == 0, done.stdout + done.stderr


SKRL_CHECK = """
import sys
sys.path.insert(0, sys.argv[1])
import torch as th
from peers import skrl_rnn
from peers.work import make_env

critic = skrl_rnn.Critic(skrl_rnn.VecEnvWrapper(make_env(0)), 6)
obs, states = th.randn(4, 6, 3), [th.randn(1, 4, 64), th.randn(1, 4, 64)]
ended = th.zeros(4, 6, dtype=th.bool)
ended[0, 2] = ended[1, 5] = ended[3, 0] = ended[3, 2] = True
inputs = {"observations": obs.flatten(0, 1), "terminated": ended.view(-1, 1), "truncated": ended.view(-1, 1)}
inputs["rnn"] = [state.repeat_interleave(6, dim=1) for state in states]
critic.train()
together = critic.act(inputs, role="value")[0].view(4, 6)
critic.eval()
for step in range(6):
    values, outputs = critic.act({"observations": obs[:, step], "rnn": states}, role="value")
    assert th.allclose(values[:, 0], together[:, step], atol=1e-6), step
    states = [state * ~ended[:, step, None] for state in outputs["rnn"]]
"""


def test_jax_pendulum_is_gymnasiums(jax_rnn):
    """Same states, rewards and observations, but for the hidden velocity."""
    pendulum = jax_rnn.Pendulum(np.float32([0.1, 2, -3, 9]), np.float32([7.9, -1, 0, -8]), np.zeros(4, int), np.zeros(4))
    torques = np.float32([3.0, -0.5, -2.5, 1.0])
    after, rewards = jax_rnn.step_pendulum(pendulum, torques)
    env = gym.make("Pendulum-v1").unwrapped
    env.reset()
    for i, torque in enumerate(torques):
        env.state = np.float64([pendulum.angle[i], pendulum.velocity[i]])
        obs, reward, *_ = env.step(np.array([torque]))
        np.testing.assert_allclose(jax_rnn.observe(after)[i], [obs[0], obs[1], 0], atol=1e-6)
        assert after.velocity[i] == pytest.approx(obs[2], abs=1e-6)
        assert rewards[i] == pytest.approx(reward, rel=1e-5)


def test_jax_moments_are_sb3s(jax_rnn):
    """Running mean and variance are those of VecNormalize."""
    theirs, ours = RunningMeanStd(shape=(3,)), jax_rnn.start_moments((3,))
    for values in np.random.default_rng(0).normal(2, 3, (20, 4, 3)):
        theirs.update(values)
        ours = jax_rnn.update_moments(ours, values)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5)
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-5)


def test_jax_rollout(jax_rnn, work):
    """What acting recorded are the outputs of PyTorch's LSTM with the same weights, from zeros where episodes start."""
    import jax

    job = work.Work(64, 64, 1, 0, n_steps=256)
    params, carry, _ = jax_rnn.start_training(0)
    _, rows, mean_return = jax.jit(functools.partial(jax_rnn.collect, job))(params, carry)
    assert -2000 < mean_return < 0

    # (n_rows * n_envs, length) -> (n_envs, n_steps)
    def by_env(x):
        x = np.array(x)
        return x.reshape(4, 4, 64, *x.shape[2:]).swapaxes(0, 1).reshape(4, 256, *x.shape[2:])

    starts = by_env(rows.starts)
    assert [np.flatnonzero(starts[i]).tolist() for i in range(4)] == [[0, 200]] * 4
    outputs = []
    for k in range(2):
        lstm = th.nn.LSTM(3, 64, batch_first=True)
        weights = (params["lstm_input"][k].T, params["lstm_hidden"][k].T, params["lstm_bias"][k], np.zeros(256))
        for parameter, value in zip(lstm.parameters(), weights, strict=True):
            parameter.data = th.tensor(np.array(value), dtype=th.float32)
        obs = th.tensor(by_env(rows.obs))
        latent = th.cat([lstm(piece)[0] for piece in (obs[:, :200], obs[:, 200:])], dim=1).detach().numpy()
        layer = np.maximum(latent @ np.array(params["layer"][k]) + np.array(params["layer_bias"][k]), 0)
        outputs.append(layer @ np.array(params["output"][k]) + np.array(params["output_bias"][k]))
    np.testing.assert_allclose(by_env(rows.returns) - by_env(rows.advantages), outputs[1], atol=1e-5)
    log_probs = -0.5 * (by_env(rows.actions) - outputs[0]) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(by_env(rows.log_probs), log_probs, atol=1e-5)


def test_jax_advantages_are_sb3s(jax_rnn):
    """Advantages do not reach beyond the end of an episode."""
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 30, 4)).astype(np.float32)
    buffer = RolloutBuffer(30, gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (1,)), "cpu", 0.95, 0.9, 4)
    dones = rng.random((30, 4)) < 0.2
    buffer.rewards[:], buffer.values[:], buffer.episode_starts[1:] = rewards, values, dones[:-1]
    last_values = rng.normal(size=4).astype(np.float32)
    buffer.compute_returns_and_advantage(th.tensor(last_values), dones[-1])
    steps = jax_rnn.Step(*[None] * 4, values, rewards, dones, None)
    np.testing.assert_allclose(jax_rnn.compute_advantages(steps, last_values), buffer.advantages, atol=1e-5)


def test_no_peer_is_imported(script):
    """The script starts without the peers, which are no dependencies."""
    code = "import sys, benchmark_peers; assert not {'skrl', 'jax', 'optax'} & set(sys.modules)"
    done = run_python("-c", code, env={"PYTHONPATH": str(SCRIPTS)})
    assert done.returncode == 0, done.stderr
