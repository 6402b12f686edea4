"""The scripts that measure: what they compute from runs, and one run of each kind."""

import argparse
import json
import math
from pathlib import Path

import benchmark_learning as learning
import benchmark_recurrent as recurrent
import curves
import numpy as np
import processes
import pytest
import recurrent_runs

from zoo_plugins import SeqRecurrentPPO
from zoo_plugins.registry import PluginError

CARTPOLE = "CartPoleNoVel-v1"


def make_run(returns, side="upstream", seed=0, fps=10, budget=None, length=10):
    """Make a run whose episodes have equal lengths; a wall second is half a CPU second."""
    timesteps = [length * (i + 1) for i in range(len(returns))]
    cpu = [steps / fps for steps in timesteps]
    return {
        "settings": {"env": CARTPOLE, "side": side, "seed": seed, "timesteps": budget or timesteps[-1], "hyperparams": {}},
        "timesteps": timesteps[-1],
        "cpu": cpu[-1],
        "wall": cpu[-1] / 2,
        "episodes": {"timesteps": timesteps, "cpu": cpu, "wall": [value / 2 for value in cpu], "return": list(returns)},
    }


# Learning: statistics


def test_rolling_mean():
    """Each mean is over the last episodes, of which there are fewer at the start."""
    np.testing.assert_allclose(learning.rolling_mean(np.array([1.0, 3.0, 5.0, 1.0]), window=3), [1, 2, 3, 3])


def test_at_points():
    """A value holds from its time until the next; the first one also before."""
    found = curves.at_points(np.array([10.0, 20.0]), np.array([1.0, 2.0]), np.array([5.0, 10.0, 19.9, 20.0, 99.0]))
    np.testing.assert_array_equal(found, [1, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], 7),
        ([1, 2], 1.5),
        ([100, 1, 2], 103 / 3),  # a quarter of three is no value
        ([0, 4, 5, 6, -99], 3),  # without the highest and lowest
        ([1, 2, 3, 4, 5, 6, 7, 80, -9, 1000], (2 + 3 + 4 + 5 + 6 + 7) / 6),
    ],
)
def test_iqm(values, expected):
    """A quarter of the values, rounded down, is left out at each end, as by scipy.stats.trim_mean."""
    values = np.array(values, dtype=float)
    assert curves.iqm(values) == pytest.approx(expected)
    np.testing.assert_allclose(curves.iqm(np.stack([values, values + 1]), axis=1), [expected, expected + 1])


def test_interval_of_equal_seeds_is_a_point():
    """Seeds that agree leave no doubt."""
    low, high = curves.bootstrap_interval(np.array([[1.0, 2.0]] * 5))
    np.testing.assert_array_equal([low, high], [[1, 2], [1, 2]])


def test_interval_is_that_of_theory():
    """For normal values, the interval is about 1.96 standard errors of the mean on each side, and the same each time."""
    values = np.random.default_rng(1).normal(size=400)
    low, high = curves.bootstrap_interval(values)
    assert low < curves.iqm(values) < high
    assert high - low == pytest.approx(2 * 1.96 / math.sqrt(400), rel=0.25)
    assert curves.bootstrap_interval(values) == (low, high)


def test_interval_of_a_difference():
    """The baseline is resampled by itself, so that its spread widens the interval."""
    rng = np.random.default_rng(2)
    values, baseline = rng.normal(5, 1, size=200), rng.normal(2, 1, size=200)
    low, high = curves.bootstrap_interval(values, baseline)
    assert low < 3 < high
    alone = curves.bootstrap_interval(values)
    assert high - low == pytest.approx(math.sqrt(2) * (alone[1] - alone[0]), rel=0.2)
    assert curves.bootstrap_interval(values, np.full(3, 2.0)) == pytest.approx((alone[0] - 2, alone[1] - 2))


def test_rounded():
    """JSON gets numbers, or null where there is none."""
    found = curves.rounded(np.array([[1.234, math.inf], [math.nan, -2.0]]))
    assert json.loads(json.dumps(found, allow_nan=False)) == [[1.23, None], [None, -2.0]]


# Learning: runs


def test_episodes_after_the_budget_do_not_count():
    """A longer last rollout is no advantage."""
    run = make_run([1.0, 2.0, 3.0, 99.0], budget=35)
    found = learning.cut_episodes(run)
    assert found["return"].tolist() == [1, 2, 3]
    assert found["mean"].tolist() == [1, 1.5, 2]


def test_run_without_episode():
    """A run that is too short for one episode says so."""
    with pytest.raises(SystemExit, match=r"no episode of CartPoleNoVel-v1 ended within 9 timesteps: raise --scale"):
        learning.cut_episodes(make_run([1.0], budget=9))


@pytest.mark.parametrize(
    ("returns", "n_episodes"),
    [
        ([100.0] * 30, 20),  # as many as are averaged have to be there
        ([0.0] * 30 + [100.0] * 30, 40),  # half of the last 20
        ([0.0] * 30 + [100.0] * 10 + [0.0] * 30, 40),  # once is enough
        ([0.0] * 30 + [100.0] * 9 + [0.0] * 30, math.inf),
        ([100.0] * 19, math.inf),
    ],
)
def test_time_to_threshold(returns, n_episodes):
    """The first time at which the mean of the last 20 episodes reaches the threshold."""
    found = learning.time_to_threshold(learning.cut_episodes(make_run(returns, fps=5)), threshold=50)
    assert found == {"timesteps": 10 * n_episodes, "cpu": 2 * n_episodes, "wall": n_episodes}


def test_final_return():
    """It is the mean of the episodes of the last tenth, which starts after nine tenths."""
    episodes = learning.cut_episodes(make_run([0.0] * 18 + [4.0, 8.0]))  # they end at 10, 20, ... 200
    assert learning.final_return(episodes, budget=200) == 6
    assert learning.final_return(episodes, budget=300) == pytest.approx(12 / 20)  # none ended in it: the last 20


def learned(level, start):
    """Returns of an agent that learns all at once."""
    return [0.0] * start + [level] * (100 - start)


@pytest.fixture
def runs():
    """Two sides by four seeds: ours learns 1, 2, 3, 4 returns more, ten times as fast in each second."""
    return {
        "upstream": [make_run(learned(100.0, 50), seed=seed) for seed in range(4)],
        "equal": [make_run(learned(101.0 + seed, 50), "equal", seed, fps=100) for seed in range(4)],
    }


def test_summary(runs):
    """Final returns, areas, times to the threshold and ratios are those that the runs were made with."""
    found = learning.summarize(CARTPOLE, runs, threshold=50)
    assert found["timesteps"] == 1000
    upstream, equal = found["sides"]["upstream"], found["sides"]["equal"]
    assert upstream["final"] == {
        "by_seed": [100.0] * 4,
        "iqm": 100.0,
        "interval": [100.0, 100.0],
        "mean": 100.0,
        "min": 100.0,
        "max": 100.0,
    }
    assert equal["final"]["iqm"] == 102.5
    assert equal["final"]["difference"] == 2.5
    assert 1 <= equal["final"]["difference_interval"][0] < 2.5 < equal["final"]["difference_interval"][1] <= 4
    assert equal["area"]["difference"] == pytest.approx(upstream["area"]["iqm"] * 0.025, abs=0.02)
    assert upstream["to_threshold"] == {
        "reached": 4,
        "timesteps": {"by_seed": [600.0] * 4, "median": 600.0},
        "cpu": {"by_seed": [60.0] * 4, "median": 60.0},
        "wall": {"by_seed": [30.0] * 4, "median": 30.0},
    }
    assert equal["to_threshold"]["timesteps"]["ratio"] == 1
    assert equal["to_threshold"]["cpu"]["ratio"] == equal["to_threshold"]["wall"]["ratio"] == 10
    assert (upstream["fps"], equal["fps"]) == (10, 100)


def test_curves(runs):
    """Curves end with the run, start where all seeds have an episode, and have as many values as points."""
    runs["upstream"][0]["episodes"]["timesteps"][:10] = [91, 92, 93, 94, 95, 96, 97, 98, 99, 100]
    found = learning.summarize(CARTPOLE, runs, threshold=50)
    for side, fps in (("upstream", 10), ("equal", 100)):
        curves = found["sides"][side]["curves"]
        assert curves["timesteps"]["x"] == [float(x) for x in range(100, 1001, 20)]
        assert (curves["cpu"]["x"][0], curves["cpu"]["x"][-1]) == (10 / fps, 1000 / fps)
        for curve in curves.values():
            assert {len(column) for column in curve.values()} == {len(curve["x"])}
            order = np.array([curve[key] for key in ("min", "low", "iqm", "high", "max")])
            assert (np.diff(order, axis=0) >= 0).all()
            assert curve["iqm"][0] == 0
        assert curves["timesteps"]["iqm"][-1] == curves["cpu"]["iqm"][-1] == found["sides"][side]["final"]["iqm"]


def test_threshold_that_only_some_reach(runs):
    """The median is over all seeds, and a ratio with a side that mostly fails does not exist."""
    found = learning.summarize(CARTPOLE, runs, threshold=103.5)["sides"]
    assert (found["upstream"]["to_threshold"]["reached"], found["equal"]["to_threshold"]["reached"]) == (0, 1)
    assert found["equal"]["to_threshold"]["cpu"] == {"by_seed": [None, None, None, 7.0], "median": None, "ratio": None}
    found = learning.summarize(CARTPOLE, runs, threshold=101.5)["sides"]
    assert found["equal"]["to_threshold"]["cpu"] == {"by_seed": [None, 7.0, 7.0, 7.0], "median": 7.0, "ratio": None}


def test_side_without_upstream(runs):
    """A side alone is compared with nothing."""
    del runs["upstream"]
    found = learning.summarize(CARTPOLE, runs, threshold=50)["sides"]["equal"]
    assert "difference" not in found["final"]
    assert "ratio" not in found["to_threshold"]["cpu"]


def test_learning_markdown(runs):
    """The tables have a row for each side, with as many cells as their head."""
    report = {"machine": "a machine", "versions": {"torch": "2.0"}, "seeds": [0, 1, 2, 3], "jobs": 2}
    report["envs"] = [learning.summarize(CARTPOLE, runs, threshold=101.5)]
    text = learning.to_markdown(report)
    assert text.startswith("a machine; seeds 0, 1, 2, 3; one torch thread per process; 2 run(s) at a time.\ntorch 2.0.\n")
    assert "| CartPoleNoVel-v1 | SeqRecurrentPPO | 102.5 [" in text
    assert "| CartPoleNoVel-v1 | 101.5 | RecurrentPPO | 0 of 4 | never | never |  | never |  | 1,000 | 100.0 | 10 |" in text
    assert "| CartPoleNoVel-v1 | 101.5 | SeqRecurrentPPO | 3 of 4 | 700 | 7.0 |  | 3.5 |  | 1,000 | 10.0 | 100 |" in text
    tables = [block.splitlines() for block in text.split("\n\n")[1:]]
    assert [len(table) for table in tables] == [4, 4]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1


# Learning: the script


def run_in_this_process(script, option, settings):
    """Stand in for run_alone(), without a new process."""
    assert (Path(script).name, option) == ("benchmark_learning.py", "--settings")
    return json.loads(json.dumps(learning.train(json.loads(settings))))


@pytest.fixture
def call_main(monkeypatch, tmp_path):
    """Call the script with arguments; the sides that were trained are returned."""
    trained = []

    def run_alone(*arguments):
        found = run_in_this_process(*arguments)
        trained.append((found["settings"]["seed"], found["settings"]["side"]))
        return found

    def call(*arguments):
        trained.clear()
        output = ["--output", str(tmp_path / "results" / "v1.0")]
        monkeypatch.setattr("sys.argv", ["benchmark_learning.py", "--envs", CARTPOLE, *output, *arguments])
        learning.main()
        return list(trained)

    monkeypatch.setattr(processes, "run_alone", run_alone)
    return call


def test_learning_end_to_end(call_main, tmp_path, capsys):
    """All sides are trained in alternating order, all files are written, and what is there is not trained again."""
    arguments = ["--seeds", "3", "4", "--scale", "0.005", "--thresholds", f"{CARTPOLE}=1"]
    assert call_main(*arguments) == [(3, "upstream"), (3, "equal"), (3, "tuned"), (4, "tuned"), (4, "equal"), (4, "upstream")]
    folder = tmp_path / "results"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    raw = {f"v1.0-runs/{CARTPOLE}-{side}-{seed}.json" for side in learning.SIDES for seed in (3, 4)}
    assert names == {"v1.0.json", "v1.0.md", f"v1.0-{CARTPOLE}.png", *raw}
    assert (folder / f"v1.0-{CARTPOLE}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "v1.0.md").read_text() in capsys.readouterr().out
    report = json.loads((folder / "v1.0.json").read_text())
    (env,) = report["envs"]
    assert (env["env"], env["timesteps"], env["threshold"]) == (CARTPOLE, 500, 1)
    # Weights are equal, and so are the returns; times are not
    upstream, equal = env["sides"]["upstream"], env["sides"]["equal"]
    assert upstream["final"]["by_seed"] == equal["final"]["by_seed"]
    assert upstream["curves"]["timesteps"] == equal["curves"]["timesteps"]
    assert upstream["to_threshold"]["timesteps"]["by_seed"] == equal["to_threshold"]["timesteps"]["by_seed"] != [None, None]

    for name in raw:
        run = json.loads((folder / name).read_text())
        assert run["timesteps"] == 512 or "tuned" in name  # two rollouts
        episodes = run["episodes"]
        assert len({len(column) for column in episodes.values()}) == 1
        for axis in ("timesteps", "cpu", "wall"):
            assert episodes[axis] == sorted(episodes[axis])
            assert episodes[axis][0] >= 0
            assert episodes[axis][-1] <= run[axis]
        assert sum(episodes["return"]) <= run["timesteps"]  # CartPole's return is an episode's length

    (folder / f"v1.0-runs/{CARTPOLE}-equal-4.json").unlink()
    assert call_main(*arguments, "--resume") == [(4, "equal")]
    assert call_main(*arguments, "--resume") == []
    changed = folder / f"v1.0-runs/{CARTPOLE}-tuned-3.json"
    run = json.loads(changed.read_text())
    run["settings"]["hyperparams"]["n_epochs"] += 1
    changed.write_text(json.dumps(run))
    assert call_main(*arguments, "--resume") == [(3, "tuned")]
    assert f"{CARTPOLE}-tuned-3: the settings have changed since its last run" in capsys.readouterr().out


def test_a_process_of_its_own():
    """A run is what the script prints when it is given settings."""
    hyperparams = {"policy": "MlpLstmPolicy", "n_steps": 32, "n_envs": 2, "policy_kwargs": "dict(lstm_hidden_size=8)"}
    settings = {"env": CARTPOLE, "side": "tuned", "seed": 0, "timesteps": 64, "hyperparams": hyperparams}
    found = processes.run_alone(learning.__file__, "--settings", json.dumps(settings))
    assert found["settings"] == settings
    assert found["timesteps"] == 64


def test_a_process_that_fails(capfd):
    """It tells why by itself; what is raised here is one line."""
    with pytest.raises(SystemExit, match=r"^-c raise SystemExit\('why'\) failed with exit status 1$"):
        processes.run_alone("-c", "raise SystemExit('why')")
    assert capfd.readouterr().err == "why\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--envs", "CartPole-v1"], "argument --envs: invalid choice: 'CartPole-v1'"),
        (["--sides", "ours"], "argument --sides: invalid choice: 'ours'"),
        (["--thresholds", "CartPole-v1=400"], "'CartPole-v1=400' is not ENV=RETURN; environments are PendulumNoVel-v1, "),
        (["--thresholds", f"{CARTPOLE}=high"], f"'{CARTPOLE}=high' is not ENV=RETURN"),
        (["--scale", "0"], "--scale must be positive, and --jobs at least 1"),
        (["--jobs", "0"], "--scale must be positive, and --jobs at least 1"),
    ],
)
def test_bad_arguments(call_main, capsys, arguments, message):
    """argparse refuses them in one line."""
    with pytest.raises(SystemExit, match="2"):
        call_main(*arguments)
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_parse_threshold():
    """An environment and its return, which may be negative."""
    assert learning.parse_threshold("PendulumNoVel-v1=-300") == ("PendulumNoVel-v1", -300.0)
    with pytest.raises(argparse.ArgumentTypeError):
        learning.parse_threshold("PendulumNoVel-v1")


def test_environment_without_block(call_main, monkeypatch, tmp_path):
    """Before anything is trained or written, one line says that there are no hyperparameters."""
    monkeypatch.setitem(learning.SIDES["tuned"], "file", str(tmp_path / "other.yml"))
    (tmp_path / "other.yml").write_text("CartPole-v1: {policy: MlpLstmPolicy}")
    with pytest.raises(PluginError, match=rf"other.yml has no hyperparameters for {CARTPOLE}$"):
        call_main()
    assert not (tmp_path / "results").exists()


def test_without_matplotlib(call_main, monkeypatch):
    """Plots are what matplotlib is needed for; that it is missing is told before hours of training."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"plots need matplotlib: pip install 'zoo-plugins\[plots\]'"):
        call_main()


# Models


@pytest.mark.parametrize("file", [recurrent_runs.UPSTREAM_FILE, recurrent_runs.OUR_FILE])
@pytest.mark.parametrize("env_id", learning.ENVS)
def test_models_of_all_environments(file, env_id):
    """The block of each environment makes a model."""
    hyperparams = recurrent_runs.read_hyperparams(file, env_id)
    model = recurrent_runs.make_model(SeqRecurrentPPO, env_id, hyperparams, seed=0)
    assert model.n_envs == hyperparams["n_envs"]
    assert model.get_vec_normalize_env().gamma == model.gamma == hyperparams["gamma"]


def test_forms_of_hyperparameters():
    """Schedules, numbers that YAML takes for text, normalisation of one of the two, and our own options are understood."""
    hyperparams = {
        "n_timesteps": 1e5,
        "policy": "MlpLstmPolicy",
        "policy_kwargs": "dict(lstm_hidden_size=8, activation_fn=nn.ReLU)",
        "learning_rate": "lin_1e-3",
        "clip_range": "1e-1",
        "batch_size": 64.0,
        "n_steps": 16,
        "normalize": "dict(norm_obs=False)",
        "sampling": "sequences",
        "max_seq_length": 4,
    }
    model = recurrent_runs.make_model(SeqRecurrentPPO, CARTPOLE, hyperparams, seed=0)
    assert model.lr_schedule(0.25) == 0.25e-3
    assert model.clip_range(0.25) == 0.1
    assert (model.batch_size, model.n_envs, model.policy.lstm_actor.hidden_size) == (64, 1, 8)
    assert (model.rollout_buffer.sampling, model.rollout_buffer.max_seq_length) == ("sequences", 4)
    assert (model.env.norm_obs, model.env.norm_reward) == (False, True)
    plain = recurrent_runs.make_model(SeqRecurrentPPO, CARTPOLE, {"policy": "MlpLstmPolicy"}, seed=0)
    assert plain.get_vec_normalize_env() is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"env_wrapper": "my_package.Wrapper"}, "env_wrapper: 'my_package.Wrapper' in .*: unknown hyperparameter"),
        ({"vec_env_class": "subproc"}, "vec_env_class: .*: unknown hyperparameter"),
        ({"seed": 1}, "seed: 1 in .*: it is set from the command line"),
        ({"learning_rate": "cos_1"}, None),
        ({"n_steps": 0}, "n_steps: 0 in .*: expected a whole number, at least 1"),
    ],
)
def test_hyperparameters_that_are_not_supported(wrong, message):
    """What only the zoo's own manager understands is refused by name, not left out."""
    with pytest.raises(ValueError, match=message):
        recurrent_runs.make_model(SeqRecurrentPPO, CARTPOLE, {"policy": "MlpLstmPolicy", **wrong}, seed=0)


# Speed


def test_by_fifth():
    """Iterations are shared out evenly, and none is lost; a run of fewer than five has fewer parts."""
    assert recurrent.by_fifth([1.0] * 10) == [2.0] * 5
    assert recurrent.by_fifth([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    found = recurrent.by_fifth([2.0**i for i in range(13)])
    assert len(found) == 5
    assert sum(found) == 2**13 - 1


def make_speed_run(collect, update, mib):
    return {
        "seconds": 5 * (collect + update),
        "timesteps": 1000,
        "collect_by_iteration": [collect] * 5,
        "update_by_iteration": [update] * 5,
        "peak_mib": mib,
    }


def test_speed_summary():
    """Ratios are medians of pairs of the same seed."""
    runs = {
        "upstream": [make_speed_run(2, 18, 100), make_speed_run(2, 18, 100), make_speed_run(4, 36, 100)],
        "ours": [make_speed_run(1, 1, 50), make_speed_run(1, 3, 100), make_speed_run(1, 4, 200)],
    }
    found = recurrent.summarize("cartpole", runs)
    assert found == {
        "case": "cartpole",
        "upstream_fps": 10,
        "ours_fps": 50,
        "ratio": 8,  # of 10, 5 and 8
        "collect_ratio": 2,  # of 2, 2 and 4
        "update_ratio": 9,  # of 18, 6 and 9
        "ratio_by_fifth": [8] * 5,
        "memory_ratio": 1,
        "floor": 4.3,
        "goal": 6.5,
    }


def test_speed_markdown():
    """The table has a row for each case; one without a floor has empty cells."""
    runs = {"upstream": [make_speed_run(2, 18, 100)], "ours": [make_speed_run(1, 1, 50)]}
    report = {"machine": "a machine", "versions": {"torch": "2.0"}, "seeds": [0], "scale": 0.5, "jobs": 1}
    report["cases"] = [recurrent.summarize(name, runs) for name in ("cartpole", "pendulum-1024-both")]
    lines = recurrent.to_markdown(report).splitlines()
    assert lines[0].endswith(
        "; seeds 0; one torch thread per process; CPU time; 0.5 of each case's timesteps; 1 pair(s) at a time."
    )
    assert lines[-2:] == [
        "| cartpole | 10 | 100 | **10.0** | 10.0, 10.0, 10.0, 10.0, 10.0 | 2.0 | 18.0 | 2.00 | 4.3 | 6.5 |",
        "| pendulum-1024-both | 10 | 100 | **10.0** | 10.0, 10.0, 10.0, 10.0, 10.0 | 2.0 | 18.0 | 2.00 |  |  |",
    ]


@pytest.mark.parametrize(("name", "has_episodes"), [("cartpole", True), ("worst", False)])
def test_speed_run(name, has_episodes):
    """A run measures each iteration; episodes of the worst case never end."""
    case = {**recurrent.CASES[name], "timesteps": 512, "both": dict(n_steps=64, n_envs=2, n_epochs=1)}
    found = recurrent.run_side(case, "ours", seed=0, scale=1)
    assert found["timesteps"] == 512
    assert len(found["collect_by_iteration"]) == len(found["update_by_iteration"]) == 4
    assert sum(found["collect_by_iteration"] + found["update_by_iteration"]) <= found["seconds"]
    assert bool(found["reward_by_tenth"]) == has_episodes
