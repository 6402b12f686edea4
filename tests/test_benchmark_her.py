"""The benchmark of FastHerReplayBuffer's speed: its work, what it computes from measurements, and one run of each kind."""

import json

import benchmark_her as her
import gymnasium as gym
import her_timings
import her_work
import numpy as np
import pytest
import torch as th
from gymnasium.utils.env_checker import check_env

# The work


def test_environment():
    """It is one of gymnasium's, of FetchPush's shapes; rewards tell whether the goal is near, for any number of goals."""
    env = gym.make(her_work.TOY)
    check_env(env.unwrapped, skip_render_check=True)
    obs, _ = env.reset(seed=0)
    assert {key: value.shape for key, value in obs.items()} == {
        "observation": (25,),
        "achieved_goal": (3,),
        "desired_goal": (3,),
    }
    assert [env.step(np.zeros(4, np.float32))[3] for _ in range(50)] == [False] * 49 + [True]
    goals = np.array([[0, 0, 0], [0, 0.04, 0], [0, 0, 0.06]])
    assert env.unwrapped.compute_reward(goals, np.zeros((3, 3)), [{}] * 3).tolist() == [0, 0, -1]
    assert env.unwrapped.compute_reward(goals[2], np.zeros(3), {}) == -1


@pytest.mark.parametrize("side", her_work.BUFFERS)
def test_full_buffers(side):
    """Both buffers are full, of episodes of 50 steps that the environment ended, all of which can be sampled."""
    env = her_timings.make_envs(her_work.TOY, 2)
    feed = her_work.Feed(her_work.make_buffer(side, env, 200), env)
    feed.fill()
    assert feed.buffer.full
    assert feed.buffer.size() * 2 == 200
    assert (np.asarray(feed.buffer.ep_length) == 50).all()
    assert feed.buffer.dones.sum() == feed.buffer.timeouts.sum() == 4
    # A step more overwrites the oldest episodes
    feed.add()
    assert (np.asarray(feed.buffer.ep_length) > 0).sum() == 2 * 50


def test_content_is_the_same():
    """Both sides are given the same transitions, each of which goes on where the one before ended."""
    env = her_timings.make_envs(her_work.TOY, 3)
    sides = [her_work.Feed(her_work.make_buffer(side, env, 300), env) for side in her_work.BUFFERS]
    for feed in sides:
        feed.fill()
    theirs, ours = (feed.buffer for feed in sides)
    for key in theirs.observations:
        np.testing.assert_allclose(theirs.observations[key], ours.observations[key], rtol=1e-6)
        np.testing.assert_array_equal(theirs.next_observations[key][:49], theirs.observations[key][1:50])


@pytest.mark.parametrize(
    ("n_rows", "n_envs", "expected"), [(1e5, 8, 100_000), (1e6, 1, 1_000_000), (999, 4, 800), (0, 8, 800), (10_000, 32, 9600)]
)
def test_whole_episodes(n_rows, n_envs, expected):
    """Numbers of transitions are those of whole episodes, and of two of each environment at least."""
    assert her_work.whole_episodes(n_rows, n_envs) == expected


def test_taking_turns():
    """The order alternates, and the first round does not count."""
    order = []

    def measure(side):
        order.append(side)
        return len(order)

    assert her_timings.take_turns(measure, 3) == {"sb3": [4, 5, 8], "ours": [3, 6, 7]}
    assert order == ["sb3", "ours", "ours", "sb3", "sb3", "ours", "ours", "sb3"]


# From measurements to tables


def test_comparison():
    """Ratios are of measurements that were made together."""
    assert her.compare([10, 20, 60], [1, 4, 10]) == {"sb3": 20, "ours": 4, "ratio": 6, "quartiles": [5.5, 8]}
    assert her.compare([6], [3]) == {"sb3": 6, "ours": 3, "ratio": 2, "quartiles": [2, 2]}


def make_samples(theirs, ours):
    return [
        {"batch_size": batch_size, "normalized": normalized, "n_samples": n, "microseconds": {"sb3": theirs, "ours": ours}}
        for batch_size in (256, 2048)
        for normalized in (False, True)
        for n in (1, 8)
    ]


def make_learning(seconds):
    phases = {"collect_seconds": seconds / 5, "update_seconds": seconds / 2}
    return {"seconds": seconds, **phases, "timesteps": 1000, "updates": 500}


def test_markdown():
    """Each kind of case has its table, and each row of it as many cells as its head."""
    learning = {
        side: [make_learning(seconds)] * 2
        for side, seconds in zip(her_timings.LEARNING_SIDES, (40, 20, 10, 8, 9), strict=True)
    }
    three = {side: learning[side] for side in her.THREE_SIDES}
    construction = {
        "sb3": [{"seconds": 2.0, "empty_mib": 70.0, "full_mib": 600.0}],
        "ours": [{"seconds": 0.001, "empty_mib": 0.4, "full_mib": 300.0}],
    }
    report = {
        "machine": "a machine",
        "versions": {"torch": "2.0"},
        "seeds": [0, 1],
        "scale": 0.5,
        "cases": {
            "sample-8-1e5": her.summarize_calls([make_samples([70, 80], [10, 10]), make_samples([90, 100], [10, 20])]),
            "sample-1-1e5": her.summarize_calls([make_samples([70], [10])]),
            "add-8": her.summarize_calls([[{"microseconds": {"sb3": [12.0, 12.0], "ours": [10.0, 12.0]}}]]),
            "construct-8-1e6": her.summarize_sides(construction),
            "dqn": her.summarize_sides(learning),
            "sac-FetchPush": her.summarize_sides(three),
        },
    }
    text = her.to_markdown(report)
    assert text.startswith(
        "a machine; seeds 0, 1; one torch thread per process; 0.5 of each case's transitions and timesteps.\ntorch 2.0.\n"
    )
    ratio = "85 | 10 | **7.50** (6.50-8.25)"
    for row in (
        f"| sample-8-1e5 | 256 |  | {ratio} | {ratio} | 6.4 | 7 |",
        f"| sample-8-1e5 | 256 | yes | {ratio} | {ratio} | 4.9 | 5.5 |",
        f"| sample-8-1e5 | 2048 | yes | {ratio} | {ratio} | 4.4 | 5 |",
        "| sample-1-1e5 | 256 |  | 70 | 10 | **7.00** (7.00-7.00) | 70 | 10 | **7.00** (7.00-7.00) |  |  |",
        "| add-8 | 12.0 | 11.0 | **1.10** (1.05-1.15) | 1.1 | 1 |",
        "| construct-8-1e6 | 2000.0 | 1.0 | 70 | 0 | 600 | 300 |",
        "| dqn | 25 | 50 | 100 | **2.00** (2.00-2.00) | **2.50** (2.50-2.50) | **2.22** (2.22-2.22) | 1.19 | 1.3 |",
        "| sac-FetchPush | 25 | 50 | 100 | **2.00** (2.00-2.00) |  |  |  |  |",
        "| dqn | 8000 | 4000 | 2000 | 40000 | 20000 | 10000 |",
    ):
        assert f"\n{row}\n" in text
    tables = [block.splitlines() for block in text.split("\n\n")[1:]]
    assert [len(table) for table in tables] == [10, 3, 3, 4, 4]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1


# The script


@pytest.fixture
def call_main(monkeypatch, tmp_path):
    """Call the script with arguments, without new processes; the report is returned, and what was measured."""
    measured = []

    def run_alone(_script, option, settings):
        assert option == "--settings"
        settings = json.loads(settings)
        measured.append((settings["seed"], settings["side"]))
        return json.loads(json.dumps({"rows": her.measure(settings)}))

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["benchmark_her.py", "--output", str(tmp_path / "v1.0"), *arguments])
        her.main()
        assert (tmp_path / "v1.0.md").read_text() == her.to_markdown(json.loads((tmp_path / "v1.0.json").read_text()))
        return json.loads((tmp_path / "v1.0.json").read_text()), measured

    monkeypatch.setattr(her, "run_alone", run_alone)
    monkeypatch.setattr(her_timings, "N_ROUNDS", 1)
    yield call
    th.distributions.Distribution.set_default_validate_args(True)


def test_calls(call_main, monkeypatch):
    """Samples and adds of both sides are timed in one process for each seed, worker processes included."""
    monkeypatch.setattr(her_timings, "BATCH_SIZES", (32, 64))
    monkeypatch.setitem(her.CASES["sample-8-1e5-subproc"], "n_envs", 1)
    names = ["sample-8-1e5", "sample-8-1e5-subproc", "add-1"]
    report, measured = call_main("--cases", *names, "--seeds", "3", "4", "--scale", "0.001")
    assert measured == [(3, None)] * 3 + [(4, None)] * 3
    assert [len(report["cases"][name]) for name in names] == [8, 8, 1]
    for rows in report["cases"].values():
        assert all(row["sb3"] > 0 and row["ours"] > 0 and row["ratio"] > 0 for row in rows)
    assert [len(rows) for rows in report["runs"]["add-1"]] == [1, 1]


def test_construction(call_main):
    """SB3's constructor takes longer, and its full buffer more memory."""
    report, measured = call_main("--cases", "construct-8-1e6", "--seeds", "0", "1", "--scale", "0.05")
    assert measured == [(0, "sb3"), (0, "ours"), (1, "ours"), (1, "sb3")]
    sides = report["cases"]["construct-8-1e6"]
    assert sides["ours"]["ratio"] > 1
    assert sides["sb3"]["full_mib"] > sides["sb3"]["empty_mib"]


def test_whole_runs(call_main):
    """All sides do an update per timestep after the first ones, and are compared with SB3 and 8 environments."""
    report, measured = call_main("--cases", "dqn", "--seeds", "0", "--scale", "0.056")
    assert [side for _, side in measured] == list(her_timings.LEARNING_SIDES)
    sides = report["cases"]["dqn"]
    assert {side: row["timesteps"] for side, row in sides.items()} == dict.fromkeys(her_timings.LEARNING_SIDES, 560)
    assert {side: row["updates"] for side, row in sides.items()} == {**dict.fromkeys(sides, 64), "sb3-1-env": 60}
    assert sides["sb3"]["ratio"] == 1
    for row in sides.values():
        assert 0 < row["update_seconds"] + row["collect_seconds"] <= row["seconds"]


def test_settings_of_whole_runs(monkeypatch):
    """A side has the buffer, the optimizer and the checks of distributions that it stands for."""
    models = []
    monkeypatch.setattr("stable_baselines3.SAC.learn", lambda self, total_timesteps: models.append(self))
    case = {"n_envs": 2, **her.CASES["sac"]}
    for side in ("sb3", "ours-fused", "ours-unvalidated"):
        her_timings.learn(case, side, seed=0, scale=1)
    assert [type(model.replay_buffer).__name__ for model in models] == ["HerReplayBuffer"] + 2 * ["FastHerReplayBuffer"]
    for model in models:
        assert (model.gradient_steps, model.train_freq.frequency, model.n_envs) == (2, 1, 2)
    fused_flags = [model.critic.optimizer.defaults["fused"] for model in models]
    assert [bool(flag) for flag in fused_flags] == [False, True, False]
    assert th.distributions.Distribution._validate_args is False
    th.distributions.Distribution.set_default_validate_args(True)


def test_environment_that_is_not_installed(call_main, monkeypatch):
    """Cases of it are left out, and refused in one line if they are asked for."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not her.can_run("sac-FetchPush")
    with pytest.raises(
        SystemExit, match=r"^sac-FetchPush: pip install -c constraints.txt -e '.\[robotics\]', or choose other"
    ):
        call_main("--cases", "sac-FetchPush")


def test_a_process_of_its_own(monkeypatch, capsys):
    """A process prints rows in its last line."""
    settings = {"case": her.CASES["add-1"], "side": None, "seed": 0, "scale": 0}
    monkeypatch.setattr(her_timings, "N_ROUNDS", 1)
    monkeypatch.setattr("sys.argv", ["benchmark_her.py", "--settings", json.dumps(settings)])
    her.main()
    (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert row["microseconds"].keys() == her_work.BUFFERS.keys()
