from pathlib import Path

import gymnasium as gym
import pytest
import rl_zoo3
import rl_zoo3.import_envs
import yaml
from gymnasium.envs import _raise_mujoco_py_error

from tests.test_zoo_contract import check_block
from zoo_plugins.specs import MASKABLE_PPO_LSTM_SEQ, PPO_LSTM_SEQ

FILE = Path(__file__).parents[1] / "hyperparams" / "ppo_lstm_seq.yml"
OURS = yaml.safe_load(FILE.read_text())
UPSTREAM = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams" / "ppo_lstm.yml").read_text())
# Environments that gymnasium has renewed since
RENEWED = {
    "LunarLanderNoVel-v2": "LunarLanderNoVel-v3",
    "LunarLanderContinuousNoVel-v2": "LunarLanderContinuousNoVel-v3",
    "HumanoidStandup-v2": "HumanoidStandup-v4",
    "InvertedDoublePendulum-v2": "InvertedDoublePendulum-v4",
    "InvertedPendulum-v2": "InvertedPendulum-v4",
    "Reacher-v2": "Reacher-v4",
}
# Environments tuned for SeqRecurrentPPO, and where the zoo's values are
ZOOS = {env_id: f"{env_id}-upstream" for env_id in ("PendulumNoVel-v1", "CartPoleNoVel-v1")}


def test_environments_of_the_zoo():
    """The environments are those of the zoo's ppo_lstm.yml, in its order, under their current ids."""
    zoos = [name for name in OURS if name not in ZOOS.values() and not name.startswith("Tensor")]
    assert zoos == [RENEWED.get(env_id, env_id) for env_id in UPSTREAM]
    assert set(RENEWED) <= set(UPSTREAM)


@pytest.mark.parametrize("env_id", [env_id for env_id in UPSTREAM if env_id != "default"])
def test_values_of_the_zoo(env_id):
    """Every hyperparameter of the zoo's ppo_lstm.yml has the same value, of the same type."""
    ours = OURS[ZOOS.get(env_id) or RENEWED.get(env_id, env_id)]
    assert ours == UPSTREAM[env_id]
    assert repr(sorted(ours.items())) == repr(sorted(UPSTREAM[env_id].items()))


@pytest.mark.parametrize("env_id", ZOOS)
def test_tuned(env_id):
    """What was tuned differs from the zoo's values, and trains as long."""
    assert OURS[env_id] != OURS[ZOOS[env_id]]
    assert OURS[env_id]["n_timesteps"] == UPSTREAM[env_id]["n_timesteps"]


def test_default():
    """An environment that is not listed gets a policy that the algorithm has; the zoo's own default names none."""
    assert OURS["default"] == {**UPSTREAM["default"], "policy": "MlpLstmPolicy"}


@pytest.mark.parametrize("env_id", [name for name in UPSTREAM if name not in ("default", "atari") and "Bullet" not in name])
def test_environments_exist(env_id):
    """Every environment but PyBullet's, which are not gymnasium's, is registered and has not moved elsewhere."""
    assert gym.spec(RENEWED.get(env_id, env_id)).entry_point is not _raise_mujoco_py_error


def test_moved_environments_are_recognised():
    """The ids that the zoo's file still has are those that the test above is about."""
    moved = [env_id for env_id in RENEWED if env_id in gym.registry]
    assert moved == [env_id for env_id in RENEWED if not env_id.startswith("Lunar")]
    assert all(gym.spec(env_id).entry_point is _raise_mujoco_py_error for env_id in moved)


def test_file_in_use():
    """An editable install reads the very file that one edits."""
    assert PPO_LSTM_SEQ.load().hyperparams.samefile(FILE)


@pytest.mark.parametrize("env_id", OURS)
def test_blocks_are_accepted(env_id):
    """Every block passes all checks of the algorithm."""
    assert "policy" in check_block("ppo_lstm_seq", OURS[env_id])


def test_maskable():
    """The maskable algorithm has a block for environments not listed, the one of ppo_lstm_seq, and passes all checks."""
    path = FILE.with_name("maskable_ppo_lstm_seq.yml")
    assert MASKABLE_PPO_LSTM_SEQ.load().hyperparams.samefile(path)
    blocks = yaml.safe_load(path.read_text())
    assert blocks == {"default": OURS["default"]}
    assert "policy" in check_block("maskable_ppo_lstm_seq", blocks["default"])
