"""Records, and what is looked up among last observations of episodes."""

from collections import deque

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from zoo_plugins.buffers.records import RecordLayout
from zoo_plugins.buffers.transition_storage import FinalObservations

LAYOUT = RecordLayout({"flag": (np.int8, (1,)), "big": (np.int64, ()), "numbers": (np.float32, (2, 3))})
DEVICES = [None, th.device("cpu")]


def make_records(numbers: list[int]) -> np.ndarray:
    records = LAYOUT.zeros(len(numbers))
    for i, number in enumerate(numbers):
        records[i] = (number % 100, number, np.arange(6).reshape(2, 3) + number)
    return records


@pytest.mark.parametrize("device", DEVICES)
def test_records_come_back_as_they_were_stored(device):
    records = LAYOUT.move(LAYOUT.zeros(10), device)
    stored = make_records([3, 1, 4])
    LAYOUT.put(records, np.array([7, 0, 2]), stored)
    LAYOUT.put(records, slice(4, 6), stored[:2])
    taken = LAYOUT.take(records, np.array([2, 7, 5, 9]))
    fields = LAYOUT.fields(taken)
    assert fields["big"].tolist() == [4, 3, 1, 0]
    assert fields["flag"].tolist() == [[4], [3], [1], [0]]
    assert fields["numbers"][1].tolist() == [[3, 4, 5], [6, 7, 8]]
    np.testing.assert_array_equal(LAYOUT.move(taken, None)[:1], make_records([4]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", DEVICES)
def test_records_move(device, target):
    records = LAYOUT.move(LAYOUT.zeros(2), device)
    LAYOUT.put(records, slice(0, 2), make_records([5, 6]))
    moved = LAYOUT.move(records, target)
    assert isinstance(moved, np.ndarray if target is None else th.Tensor)
    assert LAYOUT.fields(moved)["big"].tolist() == [5, 6]


@pytest.mark.parametrize("device", DEVICES)
def test_fields_are_views(device):
    records = LAYOUT.move(LAYOUT.zeros(2), device)
    LAYOUT.fields(records)["numbers"][1] = 5
    LAYOUT.fields(records)["big"][0] = 7
    assert LAYOUT.fields(records)["numbers"].tolist() == [[[0] * 3] * 2, [[5] * 3] * 2]
    assert LAYOUT.fields(records)["big"].tolist() == [7, 0]


@given(st.lists(st.sampled_from([None] * 5 + [1, 2]), min_size=20, max_size=100), st.sampled_from(DEVICES))
def test_last_observations_are_kept_until_they_are_released(operations, device):
    """None appends a record; a number releases as many of the oldest."""
    finals = FinalObservations(LAYOUT)
    finals.records = LAYOUT.move(finals.records, device)
    kept: deque[tuple[int, int]] = deque()
    for step, operation in enumerate(operations):
        if operation is None:
            kept.append((finals.append(make_records([step])), step))
        else:
            for _ in range(min(operation, len(kept))):
                number, _ = kept.popleft()
                finals.release(number)
        numbers = np.array([number for number, _ in kept], dtype=np.int64)
        assert LAYOUT.fields(finals.take(numbers))["big"].tolist() == [step for _, step in kept]
    assert len(finals.records) <= max(16, 2 * len(operations))
