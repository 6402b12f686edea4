"""``python -m zoo_plugins benchmark``: both sides do the same work, in turns, and the table says how long it took them."""

import dataclasses
import io
import json
import time

import pytest
import torch as th
from rich.console import Console
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO, HerReplayBuffer

from tests.fakes import run_python
from zoo_plugins import FastHerReplayBuffer, SeqRecurrentPPO, TensorPPO
from zoo_plugins.benchmark import command, comparisons, timing
from zoo_plugins.benchmark.comparisons import COMPARISONS, compare_her, compare_recurrent, compare_tensor
from zoo_plugins.benchmark.table import print_table
from zoo_plugins.benchmark.timing import Comparison, Pair, summarize, take_turns
from zoo_plugins.registry import PluginError


def tiny_recurrent():
    return compare_recurrent(n_envs=2, n_rollouts=1, n_steps=8, batch_size=16, n_epochs=1)


def tiny_her():
    return compare_her(n_envs=2, buffer_size=80, batch_size=4, n_samples=2, n_steps=3, length=5)


def tiny_tensor():
    return compare_tensor(n_envs=2, n_steps=8, batch_size=8)


@pytest.fixture
def tiny(monkeypatch):
    """Comparisons of next to no work."""
    for name, make in (("recurrent", tiny_recurrent), ("her", tiny_her), ("tensor", tiny_tensor), ("tensor-8", tiny_tensor)):
        monkeypatch.setitem(COMPARISONS, name, dataclasses.replace(COMPARISONS[name], make=make))
    n_threads = th.get_num_threads()
    yield
    th.set_num_threads(n_threads)


# --- the work


def test_recurrent():
    """Both sides start from the same seed, and have the same weights after the same number of turns."""
    pair = tiny_recurrent()
    theirs, ours = pair.theirs.func.__self__, pair.ours.func.__self__
    assert (type(theirs), type(ours)) == (RecurrentPPO, SeqRecurrentPPO)
    start = {name: value.clone() for name, value in ours.policy.state_dict().items()}
    take_turns(pair, 0)
    assert theirs.num_timesteps == ours.num_timesteps == 4 * 16 == 4 * pair.size
    expected = theirs.policy.state_dict()
    for name, value in ours.policy.state_dict().items():
        th.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5)
    assert any(not th.equal(value, start[name]) for name, value in expected.items())
    pair.close()


def test_her():
    """Both buffers are full of the same transitions, and give as many samples."""
    pair = tiny_her()
    theirs, ours = pair.theirs.args[0], pair.ours.args[0]
    assert (type(theirs), type(ours)) == (HerReplayBuffer, FastHerReplayBuffer)
    counts = {"theirs": 0, "ours": 0}
    for side, buffer in (("theirs", theirs), ("ours", ours)):
        assert buffer.full
        sample = buffer.sample

        def counted(batch_size, side=side, sample=sample):
            counts[side] += 1
            found = sample(batch_size)
            assert found.rewards.shape == (4, 1)
            return found

        buffer.sample = counted
    take_turns(pair, 0)
    assert counts["theirs"] == counts["ours"] == 4 * pair.size == 4 * 6
    assert theirs.pos == ours.pos
    for key, value in theirs.observations.items():
        assert (value == ours.observations[key]).all()
    assert (theirs.dones == ours.dones).all()
    pair.close()


def test_tensor():
    """Both sides train for the same number of timesteps."""
    pair = tiny_tensor()
    theirs, ours = pair.theirs.func.__self__, pair.ours.func.__self__
    assert (type(theirs), type(ours)) == (PPO, TensorPPO)
    take_turns(pair, 0)
    assert theirs.num_timesteps == ours.num_timesteps == 4 * pair.size == 4 * 16
    assert theirs._n_updates == ours._n_updates == 4 * 4
    pair.close()


# --- the measurement


def test_turns_alternate():
    """The order changes from round to round; the first round is not counted; three are, at least."""
    calls = []
    found = take_turns(Pair(lambda: calls.append("theirs"), lambda: calls.append("ours"), 1), 0)
    assert calls == ["theirs", "ours", "ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert {side: len(values) for side, values in found.items()} == {"theirs": 3, "ours": 3}


def test_turns_take_their_time():
    """Rounds go on until the time is over."""
    start = time.perf_counter()
    found = take_turns(Pair(lambda: time.sleep(0.002), lambda: None, 1), 0.05)
    assert time.perf_counter() - start >= 0.05
    assert len(found["ours"]) >= 3


def test_cpu_time_is_measured(monkeypatch):
    """What a side costs is CPU time of its own turns."""
    clock = iter(range(100))
    monkeypatch.setattr(timing.time, "process_time", lambda: next(clock))
    found = take_turns(Pair(lambda: next(clock), lambda: None, 1), 0)
    assert found == {"theirs": [2, 2, 2], "ours": [1, 1, 1]}


def test_summary():
    """Rates are medians of turns; the ratio is the median of those of each round, with quartiles."""
    comparison = Comparison("A", "B", "work", "samples", "page.md", tiny_her)
    turns = {"theirs": [2.0, 4.0, 6.0], "ours": [1.0, 1.0, 2.0]}
    found = summarize(comparison, 12, turns)
    assert (found["theirs_per_second"], found["ours_per_second"]) == (3.0, 12.0)
    assert found["ratio"] == 3.0
    assert found["ratio_quartiles"] == [2.5, 3.5]
    assert (found["theirs"], found["ours"], found["unit"], found["page"]) == ("A", "B", "samples", "page.md")
    assert found["seconds_of_turns"] == turns


# --- the command


@pytest.mark.usefixtures("tiny")
def test_all(capsys, tmp_path):
    """All comparisons run, and what was measured is in the table and in the file."""
    path = tmp_path / "speed.json"
    assert command.main(["--seconds", "0.001", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert list(report["comparisons"]) == list(COMPARISONS)
    assert report["seconds"] == 0.001
    assert report["versions"]["torch"] == th.__version__
    printed = capsys.readouterr().out
    for name, row in report["comparisons"].items():
        assert len(row["seconds_of_turns"]["theirs"]) == len(row["seconds_of_turns"]["ours"]) >= 3
        assert f"{row['ratio']:.2f}" in printed
        assert row["work"] in " ".join(printed.split())
        assert name in printed
    assert report["machine"] in " ".join(printed.split())


@pytest.mark.usefixtures("tiny")
def test_what_was_measured_is_kept(monkeypatch, tmp_path):
    """If a comparison fails, those before it are in the file."""

    def fail():
        raise RuntimeError("no memory")

    monkeypatch.setitem(COMPARISONS, "tensor", dataclasses.replace(COMPARISONS["tensor"], make=fail))
    path = tmp_path / "speed.json"
    with pytest.raises(RuntimeError, match="no memory"):
        command.main(["--only", "her", "tensor", "--seconds", "0.001", "--json", str(path)])
    assert list(json.loads(path.read_text())["comparisons"]) == ["her"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--only", "recurent"],
            "unknown comparison 'recurent', did you mean 'recurrent'? Valid: recurrent, her, tensor, tensor-8",
        ),
        (["--seconds", "0"], "expected a number of seconds above 0, not '0'"),
        (["--seconds", "nan"], "expected a number of seconds above 0, not 'nan'"),
        (["--seconds", "long"], "expected a number of seconds above 0, not 'long'"),
        (["--no-hub"], "unrecognized arguments: --no-hub"),
    ],
)
def test_bad_options(arguments, message, capsys):
    """A wrong option is one line, and nothing runs."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_bad_file(tmp_path, monkeypatch):
    """A file that can't be written is noticed before anything runs."""
    monkeypatch.setattr(command, "take_turns", lambda *_: pytest.fail("something ran"))
    with pytest.raises(PluginError, match="is a folder, expected the name of a file"):
        command.main(["--json", str(tmp_path)])
    with pytest.raises(PluginError, match=r"there is no folder '.*/missing'"):
        command.main(["--json", str(tmp_path / "missing" / "speed.json")])


def test_table():
    """A bar is as long as its ratio, the greatest over the whole width."""
    rows = {}
    for name, seconds in (("fast", 8.0), ("slow", 0.5)):
        comparison = Comparison("Theirs", "Ours", f"work of {name}", "timesteps", "docs/x.md", tiny_her)
        rows[name] = summarize(comparison, 1000, {"theirs": [seconds] * 3, "ours": [1.0] * 3})
    report = {"machine": "a machine", "versions": {"torch": "2.0"}, "comparisons": rows}
    file = io.StringIO()
    print_table(report, Console(file=file, width=100))
    lines = file.getvalue().splitlines()
    (fast,) = [line for line in lines if " fast " in line]
    (slow,) = [line for line in lines if " slow " in line]
    assert [cell.strip() for cell in fast.split("│")[1:5]] == ["fast", "125", "1,000", "8.00 (8.00 to 8.00)"]
    assert [cell.strip() for cell in slow.split("│")[1:5]] == ["slow", "2,000", "1,000", "0.50 (0.50 to 0.50)"]
    n_full, n_part = fast.count("█"), slow.count("█")
    assert n_full >= 20
    assert n_part in (n_full // 16, n_full // 16 + 1)
    assert "a machine; one thread; torch 2.0." in lines
    assert "slow: timesteps of Theirs and Ours (work of slow); in full: docs/x.md" in lines


def test_pages_exist():
    """The full results are where the table says."""
    root = comparisons.__file__.rpartition("/zoo_plugins/")[0]
    for comparison in COMPARISONS.values():
        with open(f"{root}/{comparison.page}") as page:  # noqa: PTH123
            assert page.read().startswith("# ")


def test_zoo_benchmark():
    """The zoo's script of the same name is there by another one, and told where one looks for it."""
    done = run_python("-m", "zoo_plugins", "zoo-benchmark", "--help")
    assert done.returncode == 0, done.stderr
    assert "--with-mujoco" in done.stdout
    done = run_python("-m", "zoo_plugins", "benchmark", "--help")
    assert done.returncode == 0, done.stderr
    assert f"python -m zoo_plugins {command.ZOO_COMMAND}" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_full_sizes():
    """All comparisons work as they are, though here for a moment only."""
    done = run_python("-m", "zoo_plugins", "benchmark", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert " ".join(done.stdout.split()).count("in full: docs/") == len(COMPARISONS)
