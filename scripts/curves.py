"""
Learning curves of several seeds: interquartile means with bootstrap intervals.

After Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice,
https://arxiv.org/abs/2108.13264.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

RESAMPLES = 2000  # of the bootstrap


def at_points(times: Array, values: Array, points: Array) -> Array:
    """
    Look up what was known at some points in time.

    :param times: When the values became known, ascending
    :param values: The values
    :param points: Points in time
    :return: the latest value at each point; the first one before there is any
    """
    return values[np.maximum(np.searchsorted(times, points, side="right") - 1, 0)]


def iqm(values: Array, axis: int = 0) -> Array:
    """
    Average over the middle half: a quarter of the values, rounded down, is left out at each end.

    :param values: The values
    :param axis: The axis to average over
    :return: interquartile means
    """
    n_values = values.shape[axis]
    cut = n_values // 4
    middle: Array = np.take(np.sort(values, axis=axis), range(cut, n_values - cut), axis=axis)
    return middle.mean(axis=axis)


def bootstrap_interval(values: Array, baseline: Array | None = None) -> tuple[Array, Array]:
    """
    Estimate how far an interquartile mean, or the difference of two, may be off, by drawing other seeds from those there are.

    Resampling is stratified: within one environment and side.

    :param values: Values by seed, along the first axis
    :param baseline: Values to subtract the interquartile mean of
    :return: lower and upper ends of the 95 % percentile interval
    """
    rng = np.random.default_rng(0)

    def resampled(group: Array) -> Array:
        return iqm(group[rng.integers(len(group), size=(RESAMPLES, len(group)))], axis=1)

    estimates = resampled(values)
    if baseline is not None:
        estimates = estimates - resampled(baseline)
    low, high = np.percentile(estimates, [2.5, 97.5], axis=0)
    return low, high


def describe(values: Array, baseline: Array | None = None) -> dict[str, Any]:
    """
    Summarize values of the seeds.

    :param values: Values by seed
    :param baseline: Values of the side to compare with
    :return: the values; their interquartile mean, its interval, mean and extremes; and the difference from the baseline
    """
    found = {
        "by_seed": rounded(values),
        "iqm": rounded(iqm(values)),
        "interval": rounded(bootstrap_interval(values)),
        "mean": rounded(values.mean()),
        "min": rounded(values.min()),
        "max": rounded(values.max()),
    }
    if baseline is not None:
        found["difference"] = rounded(iqm(values) - iqm(baseline))
        found["difference_interval"] = rounded(bootstrap_interval(values, baseline))
    return found


def make_curve(points: Array, values: Array) -> dict[str, Any]:
    """
    Summarize curves of the seeds.

    :param points: Points in time
    :param values: Values by seed and point
    :return: columns: the points, interquartile means, ends of their intervals, means and extremes
    """
    low, high = bootstrap_interval(values)
    return {
        "x": rounded(points),
        "iqm": rounded(iqm(values)),
        "low": rounded(low),
        "high": rounded(high),
        "mean": rounded(values.mean(axis=0)),
        "min": rounded(values.min(axis=0)),
        "max": rounded(values.max(axis=0)),
    }


def rounded(values: Any) -> Any:
    """
    Prepare numbers for JSON, which has no infinity.

    :param values: Numbers of any shape
    :return: the same as (nested lists of) floats with two decimals, and None for those that are not finite
    """
    if np.ndim(values):
        return [rounded(value) for value in values]
    return round(float(values), 2) if np.isfinite(values) else None


def draw_curve(panel: "Axes", curve: dict[str, Any], color: str, label: str) -> None:
    """
    Draw a curve and its intervals.

    :param panel: Where to draw it
    :param curve: What make_curve() returned
    :param color: Its color
    :param label: Its name in the legend
    """
    panel.plot(curve["x"], curve["iqm"], color=color, label=label)
    panel.fill_between(curve["x"], curve["low"], curve["high"], color=color, alpha=0.2, linewidth=0)
