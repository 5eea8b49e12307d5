"""Figures of one configuration over several training seeds: what they say of training in general.

The interval of one run says what other test items would show of its model. That of several runs
says what other seeds would: other data, another model to begin with, another training. Each run's
figure is one value, and the runs are the sample.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev

from environments.measurement import Metric
from equipoise.statistics.compare import MetricComparison, change_in_unit, guard_of
from equipoise.statistics.evaluation import Breakdowns, Estimate, Estimates
from equipoise.statistics.intervals import Interval, guarding_level, student_quantile

#: Values of so many characters are shown beside the name of what differs.
_LONGEST_VALUES = 60


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
    values: Sequence[float], intervals: Sequence[Interval], *, confidence: float, same_items: bool
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
    t = student_quantile((1 + confidence) / 2, count - 1)
    error = _error(intervals, confidence)
    half = _half_width(confidence, count, spread, error if same_items else 0.0)
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


def _error(intervals: Sequence[Interval], confidence: float) -> float:
    """The mean square error of the runs' own figures."""
    normal = student_quantile((1 + confidence) / 2, math.inf)
    return fmean(((bounds.high - bounds.low) / 2 / normal) ** 2 for bounds in intervals)


def _half_width(confidence: float, count: int, spread: float, shared: float) -> float:
    """Half of the interval of a mean over runs, with the square error that all of them share."""
    t, normal = (student_quantile((1 + confidence) / 2, n) for n in (count - 1, math.inf))
    return math.sqrt(t**2 * spread**2 / count + normal**2 * shared)


def compare_over_seeds(
    metric: Metric, runs: Sequence[MetricComparison], *, confidence: float, same_items: bool
) -> MetricComparison:
    """The mean change of a metric over pairs of runs [S], with its interval over all seeds.

    p is the level at which that interval just reaches 0, and the guard is decided as that of one
    pair is. A change or a guard that one of the pairs does not have is not known of the mean.
    """
    changes = [Interval(r.low, r.high) for r in runs if r.low is not None and r.high is not None]
    values = [r.difference for r in runs if r.difference is not None]
    comparison = MetricComparison(
        before=_mean([r.before for r in runs]),
        after=_mean([r.after for r in runs]),
        difference=_mean([r.difference for r in runs]),
        test="Student's t over seeds",
    )
    if len(changes) == len(values) == len(runs) > 1:
        summary = over_seeds(values, changes, confidence=confidence, same_items=same_items)
        assert summary.interval is not None
        p = _p_value(values, _error(changes, confidence) if same_items else 0.0)
        comparison = replace(comparison, low=summary.interval.low, high=summary.interval.high, p=p)
    return _guarded(comparison, metric, runs, confidence, same_items=same_items)


def mean_estimate(
    estimates: Sequence[Estimate], confidence: float, *, same_items: bool
) -> Estimate:
    """The mean of a figure over several runs; not defined where it is not in one of them."""
    values = [e.value for e in estimates if e.value is not None]
    bounds = [
        Interval(e.low, e.high) for e in estimates if e.low is not None and e.high is not None
    ]
    if len(values) < len(estimates) or len(bounds) < len(estimates):
        return Estimate()
    summary = over_seeds(values, bounds, confidence=confidence, same_items=same_items)
    assert summary.interval is not None, "there are several"
    return Estimate(summary.mean, summary.interval.low, summary.interval.high)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if len(numbers) == len(values) else None


def _p_value(values: Sequence[float], shared: float) -> float:
    """The level whose interval has 0 at its end, by halving."""
    mean, spread, count = abs(fmean(values)), stdev(values), len(values)
    low, high = 0.0, 1.0
    for _ in range(40):
        p = (low + high) / 2
        wide = _half_width(1 - p, count, spread, shared) > mean
        low, high = (p, high) if wide else (low, p)
    return high


def _guarded(
    comparison: MetricComparison,
    metric: Metric,
    runs: Sequence[MetricComparison],
    confidence: float,
    *,
    same_items: bool,
) -> MetricComparison:
    """The guard of the mean change, in the unit of the margin."""
    margins = [run.margin for run in runs if run.margin]
    if metric.guard is None or not margins:
        return comparison
    values = [change_in_unit(run) for run in runs]
    bounds = [Interval(m.low, m.high) for m in margins if m.low is not None and m.high is not None]
    changes = [value for value in values if value is not None]
    bare_margin = replace(margins[0], low=None, high=None, p=None, power=None, error=None)
    if len(changes) < len(runs) or len(bounds) < len(runs) or len(runs) < 2:
        return replace(comparison, guard="inconclusive", margin=bare_margin)
    level = guarding_level(confidence)
    interval = over_seeds(changes, bounds, confidence=level, same_items=same_items).interval
    assert interval is not None
    margin = replace(bare_margin, low=interval.low, high=interval.high)
    return replace(
        comparison, guard=guard_of(interval, metric.guard.by, metric.better), margin=margin
    )


# --- compare.json ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that decides a reply, by name, and its value on both sides."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        values = f"{self.first} and {self.second}"
        return f"{self.name} {values}" if len(values) <= _LONGEST_VALUES else self.name


@dataclass(frozen=True, slots=True)
class ComparedEntry:
    """A row of a comparison: one run, or the runs of several seeds of one configuration.

    `breakdowns` are those that the task draws: section, key and metric. Several seeds have none.
    """

    name: str
    runs: tuple[str, ...]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    variants: tuple[Mapping[str, object], ...]
    caveats: tuple[str, ...]
    n_rollouts: int
    n_failed: int
    metrics: Estimates
    breakdowns: Breakdowns


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """The first entry against another one.

    `items` and `replies` are of each pair of runs; `own_references` are metrics that are distances
    from two references.
    """

    first: str
    second: str
    items: tuple[int, ...]
    replies: tuple[tuple[int, int], ...]
    drawn_differently: tuple[Difference, ...]
    own_references: tuple[str, ...]
    metrics: Mapping[str, MetricComparison]


@dataclass(frozen=True, slots=True)
class EntriesComparison:
    """The content of compare.json; `allowed` names the differences that the user allows."""

    schema: int = field(default=1, init=False)
    task: str
    confidence: float
    allowed: tuple[str, ...]
    entries: tuple[ComparedEntry, ...]
    comparisons: tuple[ComparedPair, ...]
