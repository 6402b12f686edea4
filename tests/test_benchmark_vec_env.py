"""The script that compares VecEnvs: what it computes, and that its environments and VecEnvs work."""

import json
from pathlib import Path

import benchmark_vec_env as benchmark
import numpy as np
import pytest
import vec_env_sides as sides

from tests.fakes import run_python

RUN = {
    "case": "cartpole-8",
    "steps": {"subproc": [1.0, 2.0, 9.0], "ray": [0.5, 0.5, 3.0]},
    "start": {"subproc": 4.0, "ray": 1.0},
    "workers": {"ray": 2},
}


def test_summary():
    """Ratios are medians of the rounds' ratios, and not ratios of medians."""
    summary = benchmark.summarize(RUN)
    assert summary["ray"] == dict(steps_per_second=2.0, ratio=3.0, start=1.0, workers=2, goal=4.0)
    assert summary["subproc"] == dict(steps_per_second=0.5, ratio=1.0, start=4.0, workers=None, goal=None)


def test_markdown():
    """Everything that was measured is in the report, and nothing else."""
    case = {"case": "cartpole-8", "sides": benchmark.summarize(RUN), "runs": RUN}
    learning = [{"case": "PPO.learn()", "seconds": {"subproc": [6.0], "ray": [2.0]}}]
    pipeline = [{"milliseconds": 3, "seconds": {"without": [6e-3], "with": [4e-3]}}]
    report = dict(
        machine="a machine", versions={"ray": "2"}, rounds=3, load=1.0, cases=[case], learning=[], pipeline=[], loss=None
    )
    text = benchmark.to_markdown(report)
    assert "| cartpole-8 | ray | 2 | 2 | **3.00** | 4.0 | 1.0 |" in text
    assert "SubprocVecEnv, s" not in text
    assert "pipeline" not in text
    text = benchmark.to_markdown({**report, "learning": learning, "pipeline": pipeline, "loss": {"seconds": [1.0, 3.0]}})
    assert "| two per worker, which wait 3 ms each | 6.0 | 4.0 | 1.50 |" in text
    assert "| PPO.learn() | 6.0 | 2.0 | 3.00 |" in text
    assert "replaced in 2.0 s (at most 3.0 s)" in text


@pytest.mark.parametrize("name", [*benchmark.CASES])
def test_environments(name):
    """The environments of all cases can be reset and stepped, and take as long as they say."""
    case = benchmark.CASES[name]
    env = sides.make_env(case)
    env.reset()
    assert not env.step(0)[2]
    env.close()


def test_sides(local_ray):
    """The sides step the same environments."""
    for side in ("dummy", "ray two workers"):
        vec_env = sides.make_vec_env(side, benchmark.CASES["image-8"])
        vec_env.reset()
        observations, rewards, dones, infos = vec_env.step(np.zeros(8, np.int64))
        assert observations.shape == (8, 84, 84, 4)
        assert rewards.tolist() == [1.0] * 8
        assert not dones.any()
        assert len(infos) == 8
        vec_env.close()


@pytest.mark.slow
def test_script(tmp_path):
    """The script runs, and writes its report."""
    script, output = Path(benchmark.__file__), tmp_path / "report"
    arguments = "--cases cartpole-2 --sides naive ray --rounds 2 --seconds 0.05 --learning 0 --pipeline 1 --losses 1"
    ended = run_python(str(script), *arguments.split(), "--output", str(output))
    assert ended.returncode == 0, ended.stderr
    (case,) = json.loads(output.with_suffix(".json").read_text())["cases"]
    assert case["sides"]["ray"]["steps_per_second"] > 0
    assert "A killed worker was replaced" in output.with_suffix(".md").read_text()
