"""The benchmark that shows how hindsight experience replay learns with several environments."""

import json

import benchmark_her_learning as learning
import numpy as np
import processes
import pytest


@pytest.fixture
def call_main(monkeypatch, tmp_path):
    """Call the script with arguments; the seeds and sides that were trained are returned."""
    trained = []

    def run_alone(_script, option, settings):
        assert option == "--settings"
        found = json.loads(json.dumps(learning.train(json.loads(settings))))
        trained.append((found["settings"]["seed"], found["settings"]["side"]))
        return found

    def call(*arguments):
        trained.clear()
        monkeypatch.setattr("sys.argv", ["benchmark_her_learning.py", "--output", str(tmp_path / "her"), *arguments])
        learning.main()
        return list(trained)

    monkeypatch.setattr(processes, "run_alone", run_alone)
    return call


def test_end_to_end(call_main, tmp_path, monkeypatch):
    """All sides are trained and compared, and not trained again."""
    case = {**learning.CASES["6bits"], "n_envs": [1, 4], "every": 200, "n_episodes": 4}
    monkeypatch.setitem(learning.CASES, "6bits", case)
    arguments = ["--cases", "6bits", "--seeds", "0", "1", "--scale", "0.1"]
    sides = ["n_envs 1, gradient_steps n_envs", "n_envs 4, gradient_steps n_envs", "n_envs 4, gradient_steps 1"]
    assert call_main(*arguments) == [(seed, side) for seed in (0, 1) for side in sides]
    assert call_main(*arguments, "--resume") == []
    report = json.loads((tmp_path / "her.json").read_text())
    (found,) = report["cases"]
    assert list(found["sides"]) == sides
    # 600 timesteps, of which 300 come before learning starts
    updates = [row["updates"] for row in found["sides"].values()]
    assert updates == [299, 296, 74]
    for row in found["sides"].values():
        assert row["curve"]["x"] == [200, 400, 600]
        assert len(row["area"]["by_seed"]) == 2
    assert (tmp_path / "her-6bits.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "her.md").read_text()
    assert all(f"| 6bits | {side} | success, % |" in text for side in sides)


def test_areas_times_and_differences():
    """Against the first side; seeds that never succeed count as never."""

    def make_run(success):
        steps = list(range(400, 2001, 400))
        columns = {"timesteps": steps, "updates": steps, "cpu": [1, 2, 3, 4, 5], "wall": [2, 4, 6, 8, 10]}
        return {"evaluations": {**columns, "success": success}}

    good, bad = make_run([0, 0.5, 1, 1, 1]), make_run([0, 0, 0, 0, 0.1])
    found = learning.summarize("6bits", {"a": [good] * 4, "b": [good, bad, bad, bad]})["sides"]
    assert found["a"]["area"]["iqm"] == 70
    assert found["b"]["area"]["iqm"] == 2
    assert found["b"]["area"]["difference"] == -68
    assert (found["a"]["reached"], found["b"]["reached"]) == (4, 1)
    assert found["a"]["to_success"]["wall"] == [6] * 4
    assert found["b"]["to_success"]["timesteps"] == [1200, None, None, None]
    assert found["a"]["curve"]["iqm"] == [0, 50, 100, 100, 100]
    report = {
        "machine": "m",
        "versions": {"torch": "2"},
        "jobs": 1,
        "cases": [{"case": "6bits", "success": 0.95, "label": "success, %", "sides": found}],
    }
    lines = learning.to_markdown(report).splitlines()
    assert "| 4 of 4 reach 95% | 1,200 | 6 |" in lines[-2]
    assert "| 1 of 4 reach 95% | never | never |" in lines[-1]


def test_success_is_that_of_one_episode_each():
    """The first episode of each environment counts, however many others fit in the time of the longest."""

    class FakeEnv:
        num_envs = 3
        t = 0

        def reset(self):
            return np.zeros(3)

        def step(self, _actions):
            self.t += 1
            dones = np.array([True, self.t == 2, self.t == 4])
            success = [self.t == 1, self.t == 2, False]
            infos = [{"is_success": each, "episode": {"r": -self.t}} for each in success]
            return np.zeros(3), np.zeros(3), dones, infos

    class FakeModel:
        def predict(self, obs, deterministic):
            assert deterministic
            return np.zeros(3), None

    assert learning.evaluate(FakeModel(), FakeEnv()) == {"success": pytest.approx(2 / 3), "return": -2.333}


@pytest.mark.parametrize("arguments", [["--cases", "9bits"], ["--jobs", "0"], ["--scale", "-1"]])
def test_bad_arguments(call_main, arguments):
    """argparse refuses them."""
    with pytest.raises(SystemExit, match="2"):
        call_main(*arguments)
