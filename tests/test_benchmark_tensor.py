"""The scripts that measure TensorPPO: what they compute, and one small run of each."""

import json
from pathlib import Path

import benchmark_tensor as speed
import benchmark_tensor_learning as learning
import processes
import pytest

RUNS = {"sb3": [(100.0, 50.0), (200.0, 40.0), (100.0, 50.0)], "ours": [(400.0, 100.0), (400.0, 120.0), (900.0, 100.0)]}


def test_summary():
    """Ratios are medians of those of each round."""
    found = speed.summarize(RUNS)
    assert found["sb3"] == {"fps": [100, 50], "ratio": [4, 2]}
    assert found["ours"] == {"fps": [400, 100], "ratio": [1, 1]}


def test_markdown():
    """Prototype and goal stand beside what they are for, and rows have as many cells as their head."""
    report = {"machine": "a machine", "rounds": 3, "seconds": 2.0, "versions": {"torch": "2.0"}}
    text = speed.to_markdown({**report, "cases": {"CartPole-64": speed.summarize(RUNS)}})
    assert text.startswith("a machine; 3 rounds of 2 CPU seconds; one torch thread.\ntorch 2.0.\n")
    assert "| CartPole-64 | sb3 | 100 | 4.00 | 50 | 2.00 | 2.3 / 1.7 | 2.4 / 1.8 |" in text
    assert len({line.count("|") for line in text.splitlines()[3:]}) == 1


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("env", speed.ENV_IDS)
def test_speed_end_to_end(env, monkeypatch, tmp_path):
    """All sides that are installed train, and the tables are written."""
    monkeypatch.setitem(speed.SIZES, 8, (8, 32))
    arguments = ["--cases", f"{env}-8", "--rounds", "1", "--seconds", "0.01", "--output", str(tmp_path / "speed")]
    monkeypatch.setattr("sys.argv", ["benchmark_tensor.py", *arguments])
    speed.main()
    (case,) = json.loads((tmp_path / "speed.json").read_text())["cases"].values()
    expected = {"sb3", "ours-dummy", "ours"} | ({"sb3-gym-vector", "ours-gym-vector"} if env == "CartPole" else set())
    assert expected == {side for side in case if "envpool" not in side}
    assert all(min(row["fps"]) > 0 for row in case.values())
    assert f"| {env}-8 | ours |" in (tmp_path / "speed.md").read_text()


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_recurrent_sides(monkeypatch, tmp_path):
    """Recurrent sides are compared with the first one that is named."""
    monkeypatch.setitem(speed.SIZES, 8, (8, 32))
    arguments = ["--cases", "CartPole-8", "--rounds", "1", "--seconds", "0.01", "--output", str(tmp_path / "speed")]
    monkeypatch.setattr("sys.argv", ["benchmark_tensor.py", *arguments, "--sides", "lstm", "lstm-dummy", "lstm-sb3"])
    speed.main()
    case = json.loads((tmp_path / "speed.json").read_text())["cases"]["CartPole-8"]
    assert list(case) == ["lstm", "lstm-dummy", "lstm-sb3"]
    assert case["lstm"]["ratio"] == [1, 1]


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
def test_learning_end_to_end(monkeypatch, tmp_path):
    """Both sides learn in alternating order, with the same hyperparameters, and play in gymnasium's environment."""
    trained = []

    def run_alone(script, option, settings):
        assert (Path(script).name, option) == ("benchmark_tensor_learning.py", "--settings")
        found = json.loads(json.dumps(learning.train(json.loads(settings))))
        trained.append((found["settings"]["seed"], found["settings"]["side"]))
        return found

    monkeypatch.setattr(processes, "run_alone", run_alone)
    monkeypatch.setattr(learning, "N_EPISODES", 3)
    arguments = ["--envs", "CartPole-v1", "--seeds", "3", "4", "--scale", "0.005", "--output", str(tmp_path / "v1.0")]
    monkeypatch.setattr("sys.argv", ["benchmark_tensor_learning.py", *arguments])
    learning.main()
    assert trained == [(3, "upstream"), (3, "tensor"), (4, "tensor"), (4, "upstream")]
    runs = [json.loads(path.read_text()) for path in (tmp_path / "v1.0-runs").iterdir()]
    assert len({json.dumps(run["settings"]["hyperparams"]) for run in runs}) == 1
    assert {run["timesteps"] for run in runs} == {4096}  # two rollouts
    for run in runs:
        episodes = run["episodes"]
        assert sum(episodes["return"]) <= run["timesteps"]  # CartPole's return is an episode's length
        assert episodes["timesteps"] == sorted(episodes["timesteps"])
    (env,) = json.loads((tmp_path / "v1.0.json").read_text())["envs"]
    assert [len(side["greedy"]) for side in env["sides"].values()] == [2, 2]
    assert (tmp_path / "v1.0-CartPole-v1.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "v1.0.md").read_text()
    assert "| CartPole-v1 | 475 | PPO, DummyVecEnv |" in text
    assert "| CartPole-v1 | TensorPPO, TensorVecEnv |" in text
