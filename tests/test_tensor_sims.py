"""Simulators of one's own: memory, shapes, automatic resets, last observations, and what is refused."""

import warnings

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN, PPO, SAC

from tests.tensor_sims import CountingSim, Syncs, on_device, run
from zoo_plugins import TensorVecEnv
from zoo_plugins.vec_envs import BatchSim

ARRAYS = ("torch", "numpy", "dlpack")
MODES = list(AutoresetMode)


def make(*args, check_finite=None, **kwargs):
    return TensorVecEnv(CountingSim(*args, **kwargs), device="cpu", check_finite=check_finite)


def column(steps, part, env=0):
    """List one number of each step: the time of an observation, or a value."""
    values = [getattr(step, part)[env] for step in steps]
    return [(value[1] if value.dim() else value).item() for value in values]


@pytest.mark.parametrize("arrays", ARRAYS)
@pytest.mark.parametrize("mode", MODES)
def test_memory_is_not_shared(arrays, mode):
    """A simulator that always fills the same memory, and writes into actions, changes neither stored steps nor actions."""
    vec_env = make((5, 5), arrays=arrays, mode=mode)
    first = vec_env.reset_tensors()
    actions = th.ones(2, 2)
    steps = [vec_env.step_tensors(actions) for _ in range(8)]
    assert (actions == 1).all()
    assert first[:, 1].tolist() == [0, 0]
    expected = {
        AutoresetMode.SAME_STEP: [1, 2, 3, 4, 0, 1, 2, 3],
        AutoresetMode.DISABLED: [1, 2, 3, 4, 0, 1, 2, 3],
        AutoresetMode.NEXT_STEP: [1, 2, 3, 4, 5, 0, 1, 2],
    }
    assert column(steps, "obs") == expected[mode]
    assert column(steps, "terminated").index(True) == 4
    assert steps[4].final_obs.tolist() == [[0, 5], [1, 5]]
    tensors = [tensor for step in steps for tensor in step if tensor is not None]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


@pytest.mark.parametrize("arrays", ARRAYS)
def test_next_step_resets_are_not_valid(arrays):
    """The step that a NEXT_STEP simulator spends on a reset is no transition: no reward, no end, not counted."""
    steps = run(make((3, 4), mode=AutoresetMode.NEXT_STEP, arrays=arrays), 9)
    assert column(steps, "valid") == [True, True, True, False, True, True, True, False, True]
    assert column(steps, "rewards") == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert column(steps, "terminated") == [False, False, True, False, False, False, True, False, False]
    assert [int(steps[i].episode_lengths[0]) for i in (2, 6)] == [3, 3]
    assert [float(steps[i].episode_returns[0]) for i in (2, 6)] == [6, 6]
    assert column(steps, "valid", env=1) == [True, True, True, True, False, True, True, True, True]


def test_next_step_is_refused_in_numpy():
    """SB3 has no way to leave such steps out."""
    vec_env = make(mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(ValueError, match=r"CountingSim spends a step .*NEXT_STEP.*choose SAME_STEP"):
        vec_env.reset()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
def test_ends(end, mode):
    """Both flags at once are an end in a terminal state; the last observation and statistics are of the episode that ended."""
    vec_env = make((3, 5), end=end, mode=mode)
    step = run(vec_env, 3)[-1]
    assert step.terminated.tolist() == [end != "truncated", False]
    assert step.truncated.tolist() == [end == "truncated", False]
    assert step.obs.tolist() == [[0, 0], [1, 3]]
    assert step.final_obs[0].tolist() == [0, 3]
    assert (step.episode_lengths[0].item(), step.episode_returns[0].item()) == (3, 6)

    vec_env.reset()
    for _ in range(3):
        observations, rewards, dones, infos = vec_env.step(np.zeros((2, 2), np.float32))
    assert dones.tolist() == [True, False]
    assert rewards.tolist() == [3, 13]
    assert observations.tolist() == [[0, 0], [1, 3]]
    assert infos[0]["TimeLimit.truncated"] is (end == "truncated")
    assert infos[0]["terminal_observation"].tolist() == [0, 3]
    assert infos[1] == {"TimeLimit.truncated": False}


def test_no_final_observations():
    """Without last observations, one warning; SB3 is told of no truncation, so that it uses no other observation's value."""
    with pytest.warns(UserWarning, match=r"CountingSim does not tell last observations .*count as 0") as warned:
        vec_env = make((3, 5), end="truncated", final_obs="none")
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = run(vec_env, 3)[-1]
        vec_env.reset()
        for _ in range(3):
            _, _, dones, infos = vec_env.step(np.zeros((2, 2), np.float32))
    assert step.final_obs is None
    assert step.truncated.tolist() == [True, False]
    assert dones.tolist() == [True, False]
    assert infos[0].keys() == {"TimeLimit.truncated", "episode"}
    assert infos[0]["TimeLimit.truncated"] is False


def test_final_observations_that_do_not_come():
    """A simulator that promises last observations has to have them; no other observations take their place."""
    sim = CountingSim((3, 5))
    vec_env = TensorVecEnv(sim, device="cpu")
    step = sim.step
    sim.step = lambda actions: (*step(actions)[:4], {})
    vec_env.reset_tensors()
    vec_env.step_tensors(th.zeros(2, 2))
    vec_env.step_tensors(th.zeros(2, 2))
    with pytest.raises(KeyError, match="CountingSim has exact final_obs, and none in the info"):
        vec_env.step_tensors(th.zeros(2, 2))


def value_at_the_cut(**kwargs):
    """Collect 4 steps of an episode of 3, with the critic V(obs) = t and gamma 0.5; return the reward stored at its end."""
    sim = CountingSim((3,), **kwargs)
    sim.single_action_space = spaces.Box(-1, 1, (2,))
    vec_env = TensorVecEnv(sim, device="cpu")
    model = PPO("MlpPolicy", vec_env, n_steps=4, batch_size=4, gamma=0.5, learning_rate=0.0, device="cpu")
    model.policy.predict_values = lambda obs: obs[:, 1:2]
    model.learn(4)
    return model.rollout_buffer.rewards[2, 0]


@pytest.mark.filterwarnings("ignore:.*does not tell last observations")
def test_bootstrap():
    """SB3's PPO adds the value of a truncated episode's last observation, if there is one, and never another one's."""
    assert value_at_the_cut(end="truncated") == 3 + 0.5 * 3
    assert value_at_the_cut(end="truncated", mode=AutoresetMode.DISABLED) == 3 + 0.5 * 3
    assert value_at_the_cut(end="truncated", final_obs="none") == 3
    assert value_at_the_cut(end="terminated") == 3
    assert value_at_the_cut(end="both") == 3


def in_shape(*shape, dtype=th.float32):
    return lambda values: values.to(dtype).reshape(shape)


@pytest.mark.parametrize("arrays", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", [th.float64, th.uint8, th.bool])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_shapes_and_types(arrays, dtype, shape):
    """Columns are squeezed, and types are float32 and bool, whatever the simulator has."""
    vec_env = make((1, 5), arrays=arrays)
    vec_env.batch.sim.rewards_as = in_shape(*shape, dtype=th.float64)
    vec_env.batch.sim.flags_as = in_shape(*shape, dtype=dtype)
    step = run(vec_env, 1)[0]
    for part, expected in ((step.rewards, [1, 11]), (step.terminated, [True, False]), (step.truncated, [False, False])):
        assert part.shape == (2,)
        assert part.tolist() == expected
    assert (step.rewards.dtype, step.terminated.dtype, step.truncated.dtype) == (th.float32, th.bool, th.bool)
    assert (step.episode_lengths.dtype, step.episode_returns.dtype) == (th.int32, th.float32)


@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        ("rewards_as", lambda values: values[:1], r"rewards have shape \(1,\), and not \(2,\)"),
        ("rewards_as", lambda values: values[0], r"rewards have shape \(\), and not \(2,\)"),
        ("rewards_as", lambda values: values[None], r"rewards have shape \(1, 2\), and not \(2,\)"),
        ("flags_as", lambda values: values[0], r"terminated have shape \(\), and not \(2,\)"),
        ("flags_as", lambda values: values.expand(2, 2), r"terminated have shape \(2, 2\), and not \(2,\)"),
    ],
)
def test_wrong_shapes(which, change, message):
    """Anything that is not one value for each environment is refused, and never repeated."""
    vec_env = make()
    setattr(vec_env.batch.sim, which, change)
    with pytest.raises(ValueError, match=message):
        run(vec_env, 1)


def test_wrong_scalar_flag():
    """So is the one flag of simulators that never truncate."""
    sim = CountingSim()
    step = sim.step
    sim.step = lambda actions: (*step(actions)[:3], False, {"final_obs": sim.obs})
    with pytest.raises(ValueError, match=r"truncated have shape \(\), and not \(2,\): one for each environment"):
        run(TensorVecEnv(sim, device="cpu"), 1)


def test_wrong_observations():
    """Observations of another shape than the space's are refused."""
    vec_env = make()
    vec_env.batch.sim.give = lambda tensor: tensor[:, :1]
    with pytest.raises(ValueError, match=r"observations have shape \(2, 1\), and not \(2, 2\)"):
        vec_env.reset_tensors()


def test_step_before_reset():
    """A step needs a reset before it."""
    with pytest.raises(RuntimeError, match="have to be reset before they are stepped"):
        make().step_tensors(th.zeros(2, 2))


def test_wrong_actions():
    """Actions of another shape, or from elsewhere, are refused."""
    vec_env = make()
    vec_env.reset_tensors()
    with pytest.raises(ValueError, match=r"actions have shape \(2,\) on cpu, and not \(2, 2\) on cpu"):
        vec_env.step_tensors(th.zeros(2))
    with pytest.raises(ValueError, match=r"actions have shape \(2, 2\) on meta, and not \(2, 2\) on cpu"):
        vec_env.step_tensors(th.zeros(2, 2, device="meta"))


class Hiding:
    """A wrapper that forwards next to nothing."""

    def __init__(self, sim):
        self.unwrapped = sim
        self.reset, self.step = sim.reset, sim.step


class Asking(Hiding):
    """One of gymnasium's kind, in which attributes are asked for."""

    def __init__(self, sim):
        super().__init__(sim)
        self.hidden, self.unwrapped = sim, self

    def get_wrapper_attr(self, name):
        return getattr(self.hidden, name)


@pytest.mark.parametrize("wrapper", [Hiding, Asking])
def test_hidden_attributes(wrapper):
    """Attributes are found through wrappers."""
    vec_env = TensorVecEnv(wrapper(CountingSim((5, 6, 7))), device="cpu")
    assert vec_env.num_envs == 3
    assert vec_env.observation_space == CountingSim.single_observation_space
    assert column(run(vec_env, 2), "obs") == [1, 2]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("num_envs", "num_envs"),
        ("single_observation_space", "single_observation_space"),
        ("single_action_space", "single_action_space"),
        ("final_obs", "final_obs"),
        ("autoreset_mode", r"neither autoreset_mode nor metadata\['autoreset_mode'\]"),
    ],
)
def test_missing_attributes(name, told):
    """The missing one is named; spaces of the whole batch are not taken for those of one environment."""

    class Lacking:
        def __getattribute__(self, asked):
            if asked == name:
                raise AttributeError(asked)
            return object.__getattribute__(self, asked)

        num_envs, final_obs, autoreset_mode = 2, "exact", AutoresetMode.SAME_STEP
        single_observation_space = single_action_space = spaces.Box(-1, 1, (3,))
        observation_space = action_space = spaces.Box(-1, 1, (2, 3))

    with pytest.raises(AttributeError, match=f"Lacking has .*{told}"):
        TensorVecEnv(Lacking(), device="cpu")


def test_gymnasiums_place_for_the_mode():
    """The mode may stand in metadata, also as text."""
    sim = CountingSim()
    del sim.autoreset_mode
    sim.metadata = {"autoreset_mode": "NextStep"}
    assert TensorVecEnv(sim, device="cpu").batch.autoreset_mode is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["obs", "rewards", "final_obs"])
def test_not_finite_raises(bad, where):
    """NaN and infinity stop the run, with environment and step, also in a last observation."""
    vec_env = make((5, 4, 5), check_finite="raise")
    _poison(vec_env.batch.sim, bad, where, env=1, at=4)
    with pytest.raises(FloatingPointError, match="of environment 1 is not finite in step 4"):
        run(vec_env, 5)


def _poison(sim, bad, where, env, at):
    step, count = sim.step, [0]

    def poisoned(actions):
        obs, rewards, terminated, truncated, info = step(actions)
        count[0] += 1
        if count[0] == at:
            target = {"obs": obs, "rewards": rewards, "final_obs": info.get("final_obs")}[where]
            target.view(sim.num_envs, -1)[env, -1] = bad
        return obs, rewards, terminated, truncated, info

    sim.step = poisoned


def test_not_finite_in_nobodys_observation():
    """What stands in the place of a last observation where no episode has ended does not matter."""
    vec_env = make((5, 4, 5), check_finite="raise")
    _poison(vec_env.batch.sim, np.nan, "final_obs", env=0, at=2)
    assert len(run(vec_env, 3)) == 3


@pytest.mark.parametrize("where", ["obs", "rewards"])
def test_not_finite_resets(where):
    """Or that environment's episode is truncated, with finite numbers only, and it is reset."""
    vec_env = make((5, 5), mode=AutoresetMode.DISABLED, check_finite="reset")
    _poison(vec_env.batch.sim, np.nan, where, env=1, at=3)
    steps = run(vec_env, 5)
    assert steps[2].truncated.tolist() == [False, True]
    assert steps[2].rewards.tolist() == [3, 0]
    assert steps[2].obs[1, 1] == 0
    assert steps[2].final_obs[1].tolist() == [1, 2]
    assert (steps[2].episode_returns[1].item(), steps[2].episode_lengths[1].item()) == (11 + 12, 3)
    assert column(steps, "obs") == [1, 2, 3, 4, 0]
    assert all(part.isfinite().all() for step in steps for part in (step.obs, step.rewards, step.final_obs))


def test_looking_costs_a_wait_only_if_wanted():
    """Nothing waits for the device but the check that raises."""
    for mode, check, n_waiting in (("SAME_STEP", None, 0), ("SAME_STEP", "raise", 1), ("DISABLED", "reset", 0)):
        vec_env = make((2, 3), mode=AutoresetMode[mode], check_finite=check)
        vec_env.reset_tensors()
        for _ in range(4):
            with Syncs() as syncs:
                vec_env.step_tensors(on_device(th.zeros(2, 2)))
            assert len(syncs.waiting) == n_waiting


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"check_finite": "ignore"}, "check_finite: 'ignore' is none of raise, reset, None"),
        ({"check_finite": "reset"}, "check_finite: reset needs a simulator that resets when it is asked to, and CountingSim"),
        ({"num_envs": 3}, "num_envs: 3, but CountingSim has 2"),
        ({"length": 3}, "CountingSim is made already: it can't be given length"),
    ],
)
def test_bad_arguments(kwargs, message):
    """Arguments that can't be are refused."""
    with pytest.raises(ValueError, match=message):
        TensorVecEnv(CountingSim(), device="cpu", **kwargs)


def test_bad_final_obs():
    """So is a declaration that is none."""
    with pytest.raises(ValueError, match="final_obs: 'some' is none of exact, none"):
        make(final_obs="some")


@pytest.mark.parametrize("low_high", [(-np.inf, np.inf), (np.float32([-1, -np.inf]), np.float32([1, np.inf]))])
def test_unbounded_actions(low_high):
    """Actions reach the simulator as they are, in both faces; the space stays as it is, and SB3's SAC refuses it."""
    sim = CountingSim()
    sim.single_action_space = spaces.Box(*low_high, (2,), np.float32)
    vec_env = TensorVecEnv(sim, device="cpu")
    taken = []
    step = sim.step
    sim.step = lambda actions: (taken.append(actions.clone()), step(actions))[1]
    actions = th.tensor([[-3.0, -300.0], [2.0, 1e9]])
    vec_env.reset_tensors()
    vec_env.step_tensors(actions)
    vec_env.step(actions.numpy())
    assert all((seen == actions).all() for seen in taken)
    assert vec_env.action_space == sim.single_action_space
    with pytest.raises(AssertionError, match="finite lower and upper bound"):
        SAC("MlpPolicy", vec_env, device="cpu")


def test_seeds_and_options():
    """Seeds and options are used once; one dict of options serves the batch."""
    vec_env = make()
    sim = vec_env.batch.sim
    assert vec_env.seed(7) == [7, 8]
    vec_env.set_options({"k": 1})
    vec_env.reset()
    vec_env.reset()
    assert (sim.seeds, sim.options) == ([7, None], [{"k": 1}, {}])
    vec_env.set_options([{"k": 1}, {"k": 2}])
    with pytest.raises(ValueError, match="have the same options"):
        vec_env.reset()


def test_dict_observations():
    """Observations may be dicts, with images and numbers in them."""

    class DictSim(CountingSim):
        single_observation_space = spaces.Dict(
            {"image": spaces.Box(0, 255, (2, 3, 1), np.uint8), "vector": spaces.Box(-9, 99, (2,), np.float64)}
        )

        def give(self, tensor):
            if tensor is not None and tensor.dim() == 2:
                return {"vector": tensor, "image": tensor[:, 1].view(-1, 1, 1, 1).expand(-1, 2, 3, 1)}
            return tensor

    vec_env = TensorVecEnv(DictSim((3, 5)), device="cpu", check_finite="raise")
    step = run(vec_env, 3)[-1]
    assert step.obs["image"].dtype is th.uint8
    assert step.obs["image"].shape == (2, 2, 3, 1)
    assert step.obs["vector"].dtype is th.float64
    assert step.final_obs["image"][0].unique().tolist() == [3]
    vec_env.reset()
    for _ in range(3):
        observations, *_, infos = vec_env.step(np.zeros((2, 2), np.float32))
    assert {key: (part.shape, part.dtype) for key, part in observations.items()} == {
        "image": ((2, 2, 3, 1), np.uint8),
        "vector": ((2, 2), np.float64),
    }
    assert infos[0]["terminal_observation"]["vector"].tolist() == [0, 3]


def test_tuple_observations():
    """Those of Tuple spaces have no form as tensors."""
    sim = CountingSim()
    sim.single_observation_space = spaces.Tuple([spaces.Discrete(2)])
    with pytest.raises(NotImplementedError, match="use a Dict"):
        TensorVecEnv(sim, device="cpu")


def test_discrete_actions_of_numpy():
    """Discrete actions reach a NumPy simulator as integers, and stock DQN learns on it."""
    sim = CountingSim((3, 5), arrays="numpy")
    sim.single_action_space = spaces.Discrete(3)
    seen = set()
    step = sim.step
    sim.step = lambda actions: (seen.add((actions.shape, actions.dtype.kind)), step(actions))[1]
    DQN("MlpPolicy", TensorVecEnv(sim, device="cpu"), learning_starts=4, buffer_size=50, device="cpu").learn(20)
    assert seen == {((2,), "i")}


def test_extra_infos():
    """What else a simulator tells reaches infos of environments, by gymnasium's convention, and is theirs."""
    sim = CountingSim((2, 3))
    step = sim.step
    battery = np.array([0.5, 0.25])

    def telling(actions):
        *parts, info = step(actions)
        told = {"battery": battery, "goal": th.tensor([1, 2]), "_goal": np.array([True, False]), "sum": 3}
        return *parts, {**info, **told, "nested": {"x": np.arange(2)}}

    sim.step = telling
    vec_env = TensorVecEnv(sim, device="cpu")
    vec_env.reset()
    infos = vec_env.step(np.zeros((2, 2), np.float32))[3]
    battery[:] = 0
    assert infos[0] == {"battery": 0.5, "goal": 1, "nested": {"x": 0}, "TimeLimit.truncated": False}
    assert infos[1] == {"battery": 0.25, "nested": {"x": 1}, "TimeLimit.truncated": False}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"is_success": th.tensor([True, False])}, [1, 0]),
        ({"is_success": np.array([[1.0], [0.0]])}, [1, 0]),
        ({"is_success": np.array([np.True_, None], dtype=object), "_is_success": np.array([True, False])}, [1, np.nan]),
        (
            {"is_success": np.zeros(2), "final_info": {"is_success": th.ones(2), "_is_success": np.array([False, True])}},
            [np.nan, 1],
        ),
        ({"is_success": np.zeros(2), "final_info": {}}, None),
        ({"final_info": np.array([{"is_success": True}, None])}, None),
        ({"success": np.zeros(2)}, None),
    ],
)
def test_successes(told, expected):
    """Successes come from infos, by gymnasium's convention; of those that have ended, if there are new ones already."""
    sim = CountingSim((2, 3))
    step = sim.step
    sim.step = lambda actions: (*(parts := step(actions))[:4], {**parts[4], **told})
    found = run(TensorVecEnv(sim, device="cpu"), 1)[0].success
    if expected is None:
        assert found is None
    else:
        assert found.dtype is th.float32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_infos_of_resets(mode):
    """What a simulator tells of new episodes, at explicit and automatic resets, is in reset_infos."""
    sim = CountingSim((2, 3), mode=mode)
    step, reset, episodes = sim.step, sim.reset, np.zeros(2)

    def telling_reset(**kwargs):
        episodes[(kwargs.get("options") or {}).get("reset_mask", np.full(2, True))] += 1
        return reset(**kwargs)[0], {"episode": episodes}

    def telling_step(actions):
        *parts, info = step(actions)
        if mode is AutoresetMode.SAME_STEP:
            episodes[(parts[2] | parts[3]).numpy()] += 1
        return *parts, {**info, "episode": episodes}

    sim.reset, sim.step = telling_reset, telling_step
    vec_env = TensorVecEnv(sim, device="cpu")
    vec_env.reset()
    told = [vec_env.reset_infos.copy()]
    for _ in range(3):
        vec_env.step(np.zeros((2, 2), np.float32))
        told.append(vec_env.reset_infos.copy())
    expected = [(1, 1), (1, 1), (2, 1), (2, 2)]
    assert told == [[{"episode": episode} for episode in pair] for pair in expected]


def test_protocol():
    """The simulator of these tests is a BatchSim for type checkers too."""
    sim: BatchSim = CountingSim()
    assert set(BatchSim.__annotations__) <= set(dir(sim))
