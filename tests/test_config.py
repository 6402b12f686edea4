import collections
import math
import sys
import threading
from pathlib import Path

import pytest
import rl_zoo3
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rl_zoo3 import exp_manager
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from torch import nn

from tests.envs import LenEnv
from zoo_plugins.config import (
    COUNTS,
    SCHEDULES,
    Block,
    UnreadableError,
    as_number,
    check_importable,
    check_kwargs,
    copy_containers,
    parse_kwargs,
)
from zoo_plugins.registry import PluginError

ZOO_FILES = sorted(Path(rl_zoo3.__file__).parent.glob("hyperparams/*.yml"))
ZOO_STRINGS = {
    f"{file.stem}/{env_id}/{key}": block[key]
    for file in ZOO_FILES
    for env_id, block in yaml.safe_load(file.read_text()).items()
    for key in ("policy_kwargs", "replay_buffer_kwargs", "normalize")
    if isinstance(block.get(key), str)
}


# Keyword arguments


@pytest.mark.parametrize("text", sorted(set(ZOO_STRINGS.values())))
def test_strings_of_the_zoo(text):
    """Every ``"dict(...)"`` of the zoo's own files is data, and read as upstream evaluates it, types and order included."""
    expected = eval(text, vars(exp_manager))
    found = parse_kwargs(text, vars(exp_manager))
    assert found == expected
    assert repr(found) == repr(expected)


def test_strings_of_the_zoo_are_found():
    """The files that the test above reads are there, and hold strings of each kind."""
    assert len(ZOO_FILES) == 13
    assert {name.rpartition("/")[2] for name in ZOO_STRINGS} == {"policy_kwargs", "replay_buffer_kwargs", "normalize"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dict()", {}),
        (" dict(a=1,\n  b='x',) ", {"a": 1, "b": "x"}),
        ("{'a': -1.5, 'b': None}", {"a": -1.5, "b": None}),
        ("dict(a=dict(b=[1, (2, 'c'), {'d': True}]))", {"a": {"b": [1, (2, "c"), {"d": True}]}}),
        ("dict(a={1, 2}, b=1j)", {"a": {1, 2}, "b": 1j}),
        ("dict(a=nn.ReLU, b=[th.optim.Adam])", {"a": nn.ReLU, "b": [torch.optim.Adam]}),
        ("dict(a=torch.nn.Tanh)", {"a": nn.Tanh}),
        ("dict(a=tests.envs.LenEnv)", {"a": LenEnv}),
        ("dict(a='1e-4', b='1e3', c='lin_1')", {"a": 1e-4, "b": 1000, "c": "lin_1"}),
        ({"a": "1e-4", "b": {"c": "nn.ReLU"}}, {"a": 1e-4, "b": {"c": "nn.ReLU"}}),
    ],
)
def test_parse_kwargs(text, expected):
    """Literals, nested dicts, lists and tuples, names of the zoo and importable dotted names are read."""
    assert parse_kwargs(text) == expected


def test_parse_kwargs_leaves_the_map():
    """A map is copied, not changed."""
    given_map = {"a": "1e-4"}
    assert parse_kwargs(given_map) == {"a": 1e-4}
    assert given_map == {"a": "1e-4"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dict(a=torc)", "unknown name 'torc', did you mean 'torch'?"),
        ("dict(a=zzzz)", "unknown name 'zzzz'."),
        ("dict(a=nn.RelU)", "'nn.RelU' does not exist, did you mean 'ReLU'?"),
        ("dict(a=no_such_module.X)", "importing 'no_such_module' failed with ModuleNotFoundError"),
        ("dict(a=tests.envs.LenEnw)", "module 'tests.envs' has no 'LenEnw', did you mean 'LenEnv'?"),
        ("dict(a=1", "expected a map or 'dict(...)', but can't read it: "),
        ("", "expected a map or 'dict(...)', but can't read it: "),
        ("import os", "expected a map or 'dict(...)', but can't read it: "),
        ("[1, 2]", "expected a map of keyword arguments, not list"),
        ("3", "expected a map of keyword arguments, not int"),
        ("'dict(a=1)'", "expected a map of keyword arguments, not str"),
        (3, "expected a map of keyword arguments, not int"),
        (None, "expected a map of keyword arguments, not NoneType"),
        ("dict(a={[1]: 2})", "unhashable"),
        ("dict(a=[f(i) for i in (1,)])", "unknown name 'f' in 'dict(a=[f(i) for i in (1,)])'"),
    ],
)
def test_parse_kwargs_errors(value, message):
    """What is no map, or names what does not exist, is refused with the cause and a close match."""
    with pytest.raises(PluginError) as raised:
        parse_kwargs(value)
    assert not isinstance(raised.value, UnreadableError)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "code",
    [
        "touch(1)",
        "dict(a=touch(1))",
        "dict(a=[touch(1)])",
        "dict(a=(1, {'b': touch(1)}))",
        "{touch(1): 2}",
        "dict(a=print(touch(1)))",
        "dict(a=__import__('os'))",
        "dict(a=lambda: touch(1))",
        "dict(a=lambda y: y)",
        "dict(a=[touch(i) for i in (1,)])",
        "dict(a=f'{touch(1)}')",
        "dict(**touch(1))",
        "dict(**x)",
        "{**x}",
        "dict(x)",
        "dict([('a', 1)])",
        "dict(a=touch(1).b)",
        "dict(a=x['b'])",
        "dict(a=x['b'].c)",
        "dict(a=2 * 3)",
        "dict(a=1 if touch(1) else 2)",
        "(y := touch(1))",
    ],
)
def test_code_is_not_executed(code):
    """Python code that is more than data is recognised as such, and not executed."""
    touched = []
    with pytest.raises(UnreadableError, match="is not data, but code"):
        parse_kwargs(code, {"touch": touched.append, "x": {"b": math}})
    assert touched == []


# Numbers and containers


@settings(deadline=None)
@given(st.from_regex(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", fullmatch=True) | st.text() | st.integers().map(str))
@example("1\x1f")
def test_as_number(text):
    """Text is read as the number that ``float`` reads, as an int if it is whole, or left alone."""
    number = as_number(text)
    if isinstance(number, str):
        assert number is text
    else:
        assert number == float(text.strip())
        assert isinstance(number, int) == float(text.strip()).is_integer()


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_as_number_reads_every_float(number):
    """Any way to write a finite float is read."""
    for text in (repr(number), f"{number:e}", f"{number:E}", f" {number:+f}\n"):
        assert as_number(text) == float(text)
        assert not isinstance(as_number(text), str)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1e-4", 1e-4), ("1e5", 100_000), ("-.5", -0.5), ("5.", 5), ("1E+2", 100), ("0", 0), ("-3.0", -3)],
)
def test_as_number_examples(value, expected):
    """YAML's text ``1e-4`` is a float, and ``1e5`` is an int."""
    assert as_number(value) == expected
    assert type(as_number(value)) is type(expected)


@pytest.mark.parametrize(
    "value",
    ["lin_1e-3", "abc", "", " ", ".", "e5", "1e", "nan", "inf", "1_000", "0x10", "1 2", "--1", True, None, 1.0, [1], ("1",)],
)
def test_as_number_leaves_the_rest(value):
    """What is no number in text stays the very object that it is."""
    assert as_number(value) is value


def test_copy_containers():
    """Nested dicts, lists and tuples are copied; other objects, even those that can't be copied, are the same."""
    point = collections.namedtuple("Point", "x")([1])
    leaves = [int, sys, threading.Lock(), point, "text", {1}]
    value = {"a": [{"b": leaves}], "c": (leaves, 1)}
    copied = copy_containers(value)
    assert copied == value
    assert copied is not value
    assert copied["a"] is not value["a"]
    assert copied["a"][0] is not value["a"][0]
    assert copied["a"][0]["b"] is not leaves
    assert copied["c"][0] is not leaves
    assert type(copy_containers(collections.OrderedDict(a=leaves))) is collections.OrderedDict
    assert all(new is old for new, old in zip(copied["a"][0]["b"], leaves, strict=True))


# Blocks


def test_block_leaves_the_values():
    """A block reads numbers, and changes nothing in the map that it is made of."""
    values = {"n_steps": "1e3", "gamma": 0.9, "policy_kwargs": {"net_arch": [64]}}
    block = Block(values, "conf.yml")
    assert block.values == {"n_steps": 1000, "gamma": 0.9, "policy_kwargs": {"net_arch": [64]}}
    block.values["policy_kwargs"]["net_arch"].append(1)
    block.check_numbers()
    assert values == {"n_steps": "1e3", "gamma": 0.9, "policy_kwargs": {"net_arch": [64]}}


def test_block_error():
    """An error names the key, its value if it has one, and the file, or the flag that overrides it."""
    block = Block({"gamma": "high", "n_steps": 3}, "conf.yml", overrides={"n_steps": 3})
    assert str(block.error("gamma", "wrong")) == "gamma: 'high' in conf.yml: wrong"
    assert str(block.error("n_steps", "wrong")) == "n_steps: 3 in -params: wrong"
    assert str(block.error("policy", "missing")) == "policy: in conf.yml: missing"


def test_block_pop():
    """A value is converted and taken out; without one, or with None, the default is the result."""
    block = Block({"a": 3, "b": None}, "conf.yml")
    assert block.pop("a", lambda value: value + 1) == 4
    assert block.pop("b", str, "default") == "default"
    assert block.pop("c", str) is None
    assert block.values == {}


def test_block_pop_errors():
    """A failed conversion leaves the value, and says where it stands; code may be left for others without an error."""
    block = Block({"a": "dict(b=torc)", "code": "dict(b=abs(1))"}, "conf.yml")
    with pytest.raises(PluginError, match=r"^a: 'dict\(b=torc\)' in conf\.yml: unknown name 'torc', did you mean 'torch'\?$"):
        block.pop("a", parse_kwargs, leave_code=True)
    with pytest.raises(PluginError, match=r"^code: 'dict\(b=abs\(1\)\)' in conf\.yml: 'abs\(1\)' is not data, but code$"):
        block.pop("code", parse_kwargs)
    assert block.pop("code", parse_kwargs, leave_code=True) is None
    assert set(block.values) == {"a", "code"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"n_steps": 1, "gama": 2},
            r"gama: 2 in f\.yml: unknown hyperparameter, did you mean 'gamma'\? Valid: gamma, n_steps$",
        ),
        ({"n_steps": 1, "zzz": 2}, r"zzz: 2 in f\.yml: unknown hyperparameter\. Valid: gamma, n_steps$"),
        ({"n_steps": 1, "seed": 2}, r"seed: 2 in f\.yml: it is set from the command line, not from hyperparameters$"),
        ({"gamma": 2}, r"n_steps: in f\.yml: it is missing$"),
        ({1: 2}, r"1: 2 in f\.yml: unknown hyperparameter"),
    ],
)
def test_check_keys(values, message):
    """Unknown keys, keys of the command line and missing keys are refused."""
    with pytest.raises(PluginError, match=message):
        Block(values, "f.yml").check_keys(["gamma", "n_steps", "seed"], ["n_steps"], ["seed"])


def test_check_keys_accepts():
    """A block of valid keys with all required ones passes unchanged."""
    block = Block({"gamma": None, "n_steps": 3}, "f.yml")
    block.check_keys(["gamma", "n_steps", "seed"], ["n_steps"], ["seed"])
    assert block.values == {"gamma": None, "n_steps": 3}


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", "1.5", "inf", [3], math.inf, math.nan])
def test_wrong_counts(key, value):
    """A count that is no whole number of at least 1 is refused."""
    with pytest.raises(PluginError, match=f"^{key}: .* in f.yml: expected a whole number, at least 1$"):
        Block({key: value}, "f.yml").check_numbers()


@pytest.mark.parametrize("key", COUNTS)
@pytest.mark.parametrize(("value", "expected"), [(1, 1), (512.0, 512), ("1e3", 1000), (None, None)])
def test_counts(key, value, expected):
    """A count may be written in any way that is whole, and is an int afterwards."""
    block = Block({key: value}, "f.yml")
    block.check_numbers()
    assert block.values == {key: expected}
    assert type(block.values[key]) is type(expected)


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize("value", ["lin_", "fast", "lin_fast", "lin-1e-3", "lin_1_0", "lin_1e", "_", ""])
def test_wrong_schedules(key, value):
    """A schedule that is neither a number nor ``lin_<number>`` is refused."""
    with pytest.raises(
        PluginError, match=rf"^{key}: '{value}' in f\.yml: expected a number or lin_<number>, as in lin_2\.5e-4$"
    ):
        Block({key: value}, "f.yml").check_numbers()


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize(
    ("value", "expected"), [(1e-3, 1e-3), ("1e-3", 1e-3), ("lin_1e-3", "lin_1e-3"), ("lin_0.1", "lin_0.1")]
)
def test_schedules(key, value, expected):
    """A number, also as text, and ``lin_<number>`` are schedules."""
    block = Block({key: value}, "f.yml")
    block.check_numbers()
    assert block.values == {key: expected}


@pytest.mark.parametrize("key", SCHEDULES)
def test_no_schedule(key):
    """A schedule of None is as good as none."""
    block = Block({key: None, "gamma": None}, "f.yml")
    block.check_numbers()
    assert block.values == {"gamma": None}


@pytest.mark.parametrize("value", [0, -1, -0.2, "-1"])
def test_value_clipping_of_nothing(value):
    """SB3's old habit of a negative clip_range_vf is refused with the right way to switch it off."""
    with pytest.raises(PluginError, match=r"clip_range_vf: .*: must be positive; leave the key out for no clipping"):
        Block({"clip_range_vf": value}, "f.yml").check_numbers()


# Classes


class Open(ReplayBuffer):
    def __init__(self, *args, tag=0, **kwargs):
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("cls", "key", "message"),
    [
        (
            SubprocVecEnv,
            "start_metod",
            r"^SubprocVecEnv has no argument 'start_metod' to set, did you mean 'start_method'\? Valid: ",
        ),
        (SubprocVecEnv, "env_fns", r"^SubprocVecEnv has no argument 'env_fns' to set\. Valid: start_method$"),
        (DummyVecEnv, "start_method", r"^DummyVecEnv has no argument 'start_method' to set\. Valid: none$"),
        (Open, "env_fns", r"^Open has no argument 'env_fns' to set\. Valid: tag$"),
        (Open, "args", None),
        (Open, "tag", None),
        (Open, "anything", None),
        (SubprocVecEnv, "start_method", None),
    ],
)
def test_check_kwargs(cls, key, message):
    """Arguments that a class does not take, or that its caller fills in, are refused; ``**kwargs`` takes any other."""
    if message is None:
        assert check_kwargs(cls, {key: 1}, ["env_fns"]) is None
    else:
        with pytest.raises(PluginError, match=message):
            check_kwargs(cls, {key: 1}, ["env_fns"])


def test_check_importable():
    """A class that only exists where it was made is refused; classes of modules and other values are not."""
    made = {}
    exec("class Memory: ...\nclass Open: ...", made)

    class Local: ...

    pretender = type("Open", (), {"__module__": __name__})
    for cls in (made["Memory"], made["Open"], Local, pretender):
        with pytest.raises(
            PluginError, match=rf"^class .*{cls.__name__} can't be imported from elsewhere; move it to a module$"
        ):
            check_importable(cls)
    for value in (Open, int, "Memory", None, made, made["Memory"]()):
        assert check_importable(value) is None
