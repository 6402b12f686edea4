"""The zoo's scripts with FastHerReplayBuffer, as users run them."""

import pickle
from pathlib import Path

import pytest
import yaml

from tests.fakes import run_python

ENV = "GoalEnv-v0"
BLOCK = dict(
    policy="MultiInputPolicy",
    n_timesteps=260,
    n_envs=4,
    normalize=True,
    buffer_size=4000,
    learning_starts=200,
    batch_size=16,
    replay_buffer_kwargs={"n_sampled_goal": 2},
    policy_kwargs="dict(net_arch=[4])",
)
NOTATIONS = {
    "name": "FastHerReplayBuffer",
    "dotted path": "zoo_plugins.buffers.FastHerReplayBuffer",
    "module:Class": "zoo_plugins.buffers:FastHerReplayBuffer",
}


def run_script(script: str, *arguments: object) -> str:
    """Run a script of the zoo that knows GoalEnv-v0; record_video.py has no --gym-packages."""
    code = f"import sys, runpy, tests.goal_envs; sys.argv[0] = {script!r}; runpy.run_module({script!r}, run_name='__main__')"
    done = run_python("-c", code, "--algo", "sac", "--env", ENV, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def write_block(folder: Path, **more: object) -> Path:
    path = folder / "conf.yml"
    path.write_text(yaml.safe_dump({ENV: {**BLOCK, **more}}))
    return path


@pytest.mark.parametrize("notation", [*NOTATIONS, "class in .py"])
def test_train_watch_and_film(tmp_path, notation):
    """However the buffer is named, agents are trained, watched and filmed; nobody who watches makes a large buffer."""
    if notation == "class in .py":
        config = tmp_path / "conf.py"
        config.write_text(
            "from zoo_plugins.buffers import FastHerReplayBuffer\n"
            f"hyperparams = {{{ENV!r}: dict({BLOCK!r}, replay_buffer_class=FastHerReplayBuffer)}}\n"
        )
    else:
        config = write_block(tmp_path, replay_buffer_class=NOTATIONS[notation])
    logs = tmp_path / "logs"
    output = run_script("rl_zoo3.train", "-c", config, "-f", logs, "--eval-freq", 100, "--eval-episodes", 1)
    assert "Eval num_timesteps=200" in output
    assert "Mean reward: -50.00" in run_script("rl_zoo3.enjoy", "-f", logs, "--no-render", "-n", 60)
    run_script("rl_zoo3.record_video", "-f", logs, "-n", 10)
    assert len(list((logs / "sac" / f"{ENV}_1" / "videos").glob("*.mp4"))) == 1


def test_resume_with_another_number_of_environments(tmp_path):
    """-i goes on with the saved buffer: its finished episodes, laid out for the new environments."""
    logs = tmp_path / "logs"
    config = write_block(tmp_path, replay_buffer_class="FastHerReplayBuffer", vec_env_class="subproc")
    run_script("rl_zoo3.train", "-c", config, "-f", logs, "--eval-freq", -1, "--save-replay-buffer")
    agent = logs / "sac" / f"{ENV}_1" / f"{ENV}.zip"
    arguments = ["-i", agent, "-n", 40, "-params", "n_envs:2", "--eval-freq", -1, "--save-replay-buffer"]
    output = run_script("rl_zoo3.train", "-c", config, "-f", logs, *arguments)
    assert "Loading replay buffer" in output
    before, after = (pickle.loads((logs / "sac" / f"{ENV}_{i}" / "replay_buffer.pkl").read_bytes()) for i in (1, 2))
    assert (before.n_envs, before.size(), before.n_sampleable) == (4, 65, 200)
    assert (after.n_envs, after.size(), after.n_sampleable) == (2, 120, 200)
