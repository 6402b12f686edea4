"""The script that compares tune with the zoo's -optimize: what it computes, and one small run."""

import json

import benchmark_tune as script
import pytest

RUNS = {
    "sequential": [{"seconds": 100.0, "after_first": 75.0}, {"seconds": 120.0, "after_first": 90.0}],
    "threads": [{"seconds": 200.0, "after_first": 150.0}, {"seconds": 80.0, "after_first": 70.0}],
    "tune": [{"seconds": 50.0, "after_first": 30.0}, {"seconds": 60.0, "after_first": 40.0}],
    "tune-1": [{"seconds": 110.0, "after_first": 90.0}, {"seconds": 110.0, "after_first": 99.0}],
}


def test_summary():
    """Ratios are medians of those of each round, and overhead is per trial after the first."""
    found = script.summarize(RUNS, n_trials=16)
    assert found["sides"]["sequential"] == {"seconds": 110, "ratio": 0.5}
    assert found["sides"]["threads"] == {"seconds": 140, "ratio": 0.5}
    assert found["sides"]["tune"]["ratio"] == 1
    assert found["overhead"] == pytest.approx((15 / 15 + 9 / 15) / 2)


def test_markdown():
    """Goals stand beside what they are for."""
    report = {"machine": "a machine", "rounds": 2, "versions": {"ray": "2"}, "trials": 16, "timesteps": 5000, "jobs": 2}
    text = script.to_markdown({**report, **script.summarize(RUNS, 16)})
    assert "| `-optimize` | 110.0 | 0.50 | 0.6 |" in text
    assert "| `-optimize --n-jobs 2` | 140.0 | 0.50 | 0.6 |" in text
    assert "| `tune --workers 2` | 55.0 | 1.00 |  |" in text
    assert "A trial took 0.80 s longer" in text


def test_failure(monkeypatch):
    """A command that fails is an error, with what it said."""
    monkeypatch.setattr(script, "command", lambda *args: ["python3", "-c", "raise SystemExit('no such thing')"])
    with pytest.raises(RuntimeError, match=r"tune failed:[\s\S]*no such thing"):
        script.run("tune", 2, 100, 1)


def test_too_few_trials(monkeypatch, capsys):
    """A single trial says nothing about overhead."""
    monkeypatch.setattr("sys.argv", ["benchmark_tune.py", "--trials", "1"])
    with pytest.raises(SystemExit):
        script.main()
    assert "--trials must be at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_end_to_end(monkeypatch, tmp_path):
    """All sides finish all trials, and the table is written."""
    arguments = ["--trials", "2", "--timesteps", "300", "--rounds", "1", "--output", str(tmp_path / "tune")]
    monkeypatch.setattr("sys.argv", ["benchmark_tune.py", *arguments])
    script.main()
    report = json.loads((tmp_path / "tune.json").read_text())
    assert list(report["sides"]) == list(script.SIDES)
    assert all(row["seconds"] > 0 for row in report["sides"].values())
    assert "| `tune --workers 2` |" in (tmp_path / "tune.md").read_text()
