"""Figures of one configuration over several training seeds: what they say of training in general.

The interval of one run says what other test items would show of its model. That of several runs
says what other seeds would: other data, another model to begin with, another training. Each run's
figure is one value, and the runs are the sample.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from equipoise.evaluation.statistics import Interval, student_quantile


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """One figure of several runs; None where there are too few of them.

    `interval` is of the mean over all seeds there could be, `another` that of one more run.
    `between` is the standard deviation of the seeds' true figures: what is left of `spread`, that
    of the measured ones, without the error of each measurement.
    """

    mean: float
    least: float
    greatest: float
    spread: float | None
    between: float | None
    interval: Interval | None
    another: Interval | None


def over_seeds(
    values: Sequence[float],
    intervals: Sequence[Interval],
    *,
    confidence: float,
    same_items: bool,
) -> OverSeeds:
    """A figure of each run [S] with its own interval [S], of this confidence.

    Where every run has test items of its own, their spread holds the sampling of items, and
    Student's interval of the mean over runs is all there is to it. Where all runs share the items,
    a lucky choice of them moves every run alike and no spread shows it: the mean square of the
    runs' own errors is added, which makes the interval a little too wide. `another` is of a run on
    items chosen as these runs' were: anew, or the same. Raises `ValueError` without a value.
    """
    if not values:
        raise ValueError("no run has this figure")
    if len(values) < 2:
        return OverSeeds(values[0], values[0], values[0], None, None, None, None)
    mean, spread, count = fmean(values), stdev(values), len(values)
    normal = student_quantile((1 + confidence) / 2, math.inf)
    t = student_quantile((1 + confidence) / 2, count - 1)
    error = fmean(((one.high - one.low) / 2 / normal) ** 2 for one in intervals)
    shared = normal**2 * error if same_items else 0.0
    half = math.sqrt(t**2 * spread**2 / count + shared)
    next_half = t * spread * math.sqrt(1 + 1 / count)
    return OverSeeds(
        mean,
        min(values),
        max(values),
        spread,
        math.sqrt(max(0.0, spread**2 - error)),
        Interval(mean - half, mean + half),
        Interval(mean - next_half, mean + next_half),
    )
