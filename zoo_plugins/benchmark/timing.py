"""Let two sides do the same work in turns, and compare how long it takes them."""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.utils import set_random_seed

MIN_ROUNDS = 3
SIDES = ("theirs", "ours")


@dataclass(frozen=True)
class Pair:
    """
    Two sides, ready to work.

    :param theirs: Does the work of a turn with upstream's class
    :param ours: Does the same work with ours
    :param size: Timesteps, batches, ... of a turn
    :param close: Frees what both hold
    """

    theirs: Callable[[], object]
    ours: Callable[[], object]
    size: int
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Comparison:
    """
    What is compared.

    :param theirs: Upstream's class
    :param ours: Ours
    :param work: What both do, in one line
    :param unit: What is counted: "timesteps", "batches", ...
    :param page: The page of the documentation with the full benchmark
    :param make: Makes both sides
    """

    theirs: str
    ours: str
    work: str
    unit: str
    page: str
    make: Callable[[], Pair]


def take_turns(pair: Pair, seconds: float) -> dict[str, list[float]]:
    """
    Let both sides work, in an order that changes from round to round, after one round that warms up.

    :param pair: The two sides
    :param seconds: For how long, on the clock; three rounds at least
    :return: CPU seconds of each turn, by side
    """
    work = {"theirs": pair.theirs, "ours": pair.ours}
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    end = time.perf_counter() + seconds
    for i in itertools.count():
        if i > MIN_ROUNDS and time.perf_counter() >= end:
            break
        for side in SIDES[:: 1 if i % 2 == 0 else -1]:
            # The same random numbers for both, who draw from the same generators
            set_random_seed(i)
            start = time.process_time()
            work[side]()
            found[side].append(time.process_time() - start)
    return {side: values[1:] for side, values in found.items()}


def summarize(comparison: Comparison, size: int, turns: dict[str, list[float]]) -> dict[str, Any]:
    """
    Compare two sides.

    :param comparison: What was compared
    :param size: Timesteps, batches, ... of a turn
    :param turns: What :func:`take_turns` returned
    :return: per CPU second, the median of each side; ``"ratio"``: theirs to ours in CPU time, the median over rounds, and
        ``"ratio_quartiles"``, between which half of the rounds are
    """
    ratios = [theirs / ours for theirs, ours in zip(turns["theirs"], turns["ours"], strict=True)]
    first, median, third = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "theirs": comparison.theirs,
        "ours": comparison.ours,
        "work": comparison.work,
        "unit": comparison.unit,
        "page": comparison.page,
        "theirs_per_second": size / statistics.median(turns["theirs"]),
        "ours_per_second": size / statistics.median(turns["ours"]),
        "ratio": median,
        "ratio_quartiles": [first, third],
        "size_of_turn": size,
        "seconds_of_turns": turns,
    }
