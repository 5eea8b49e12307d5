"""comparison.json: what changed between two measurements of the same clusters."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from environments.measurement import Array, Direction, Margin, Measurement, Metric, quotient
from equipoise.evaluation.evaluate import json_number
from equipoise.evaluation.statistics import (
    Clusters,
    Interval,
    StatisticsSettings,
    bootstrap_sums,
    difference_p,
    holm,
    interval,
    mcnemar,
    merge_clusters,
    metric_draws,
)

SCHEMA = 1

Test = Literal["paired bootstrap", "exact McNemar"]
Verdict = Literal["better", "worse", "changed", "no evidence"]
Guard = Literal["kept", "lost", "not shown"]


@dataclass(frozen=True, slots=True)
class GuardMargin:
    """How far a guarded metric may move, and the interval of its change that decides.

    All are in the metric's unit or, where `relative`, in parts of its value before.
    """

    by: float
    relative: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric before and after; `difference` is after minus before. None: not defined.

    `guard` is None of a metric without a margin.
    """

    before: float | None = None
    after: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    test: Test = "paired bootstrap"
    verdict: Verdict = "no evidence"
    guard: Guard | None = None
    margin: GuardMargin | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """A metric of joint sums [..., K before + K after] of the same clusters."""

    before: Callable[[Array], Array]
    after: Callable[[Array], Array]
    better: Direction | None
    guard: Margin | None

    def difference(self, sums: Array) -> Array:
        return self.after(sums) - self.before(sums)

    def guarded(self, sums: Array) -> Array:
        """The change in the unit of the margin."""
        relative = self.guard is not None and self.guard.relative
        return self.difference(sums) / (np.abs(self.before(sums)) if relative else 1.0)


def compare(
    before: Measurement, after: Measurement, settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """Every metric that both have and a model can change, on the clusters that both have.

    A metric with outcomes gets McNemar's exact test, on the clusters in which it is defined both
    before and after; every other one the paired bootstrap, which also gives both their interval:
    a draw takes the same clusters before and after. Holm's correction is over all the metrics; a
    guard needs none, for it is kept only where all of its tests reject. Raises `ValueError` where
    no cluster is shared, or one is in two strata.
    """
    changeable = [name for name, metric in before.metrics.items() if not metric.constant]
    names = [name for name in changeable if name in after.metrics]
    pairs = {name: _paired_outcomes(before, after, name) for name in names}
    tested = _bootstrapped(before, after, [n for n in names if pairs[n] is None], settings)
    tested |= {
        name: _exactly_tested(pair, before.metrics[name], settings)
        for name, pair in pairs.items()
        if pair is not None
    }
    directions = {name: before.metrics[name].better for name in names}
    return with_verdicts({name: tested[name] for name in names}, directions, settings)


def comparison_dict(
    comparisons: Mapping[str, MetricComparison], before: str = "baseline", after: str = "final"
) -> dict[str, Any]:
    """The content of comparison.json; `before` and `after` name what was compared."""
    metrics = {name: asdict(comparison) for name, comparison in comparisons.items()}
    return {"schema": SCHEMA, "before": before, "after": after, "metrics": metrics}


def _bootstrapped(
    before: Measurement, after: Measurement, names: list[str], settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """The paired bootstrap of all these metrics at once."""
    clusters = _shared_clusters(before, after)
    split = before.sums.shape[1]

    def change(first: Metric, second: Metric) -> _Change:
        return _Change(
            lambda t: first.at(t[..., :split]),
            lambda t: second.at(t[..., split:]),
            first.better,
            first.guard,
        )

    changes = {name: change(before.metrics[name], after.metrics[name]) for name in names}
    return _changed(clusters, changes, settings)


def _shared_clusters(before: Measurement, after: Measurement) -> Clusters:
    """The shared clusters, their sums those before and those after side by side."""
    first, second = (merge_clusters(m.clusters, m.sums, m.strata) for m in (before, after))
    shared, at_first, at_second = np.intersect1d(first.names, second.names, return_indices=True)
    if not len(shared):
        raise ValueError("the two measurements have no cluster in common")
    sums = np.hstack([first.sums[at_first], second.sums[at_second]])
    return merge_clusters(shared.tolist(), sums, _shared_strata(before, after, shared.tolist()))


def _shared_strata(
    before: Measurement, after: Measurement, shared: Sequence[str]
) -> list[str] | None:
    """The stratum of each shared cluster. Raises `ValueError` where the two do not agree."""
    first, second = (
        dict(zip(m.clusters, m.strata or [""] * len(m.clusters), strict=True))
        for m in (before, after)
    )
    if torn := [cluster for cluster in shared if first[cluster] != second[cluster]]:
        raise ValueError(f"cluster {torn[0]!r} is in two strata")
    return [first[cluster] for cluster in shared]


def _exactly_tested(
    pairs: Clusters, metric: Metric, settings: StatisticsSettings
) -> MetricComparison:
    """McNemar's test; the rates and the interval are those of the tested pairs."""
    change = _Change(
        lambda t: quotient(t[..., 0], t[..., 2]),
        lambda t: quotient(t[..., 1], t[..., 2]),
        metric.better,
        metric.guard,
    )
    if not len(pairs.names):
        return _checked(MetricComparison(test="exact McNemar"), change, None)
    rate = _changed(pairs, {"rate": change}, settings)["rate"]
    outcomes = pairs.sums[:, :2] > 0
    return replace(rate, p=mcnemar(*outcomes.T), test="exact McNemar")


def _paired_outcomes(before: Measurement, after: Measurement, name: str) -> Clusters | None:
    """The clusters that have an outcome both times; None for a metric without outcomes.

    The sums are whether it is a yes before, whether after, and 1.
    """
    first, second = _outcomes(before, name), _outcomes(after, name)
    if first is None or second is None:
        return None
    shared = [cluster for cluster in first if cluster in second]
    pairs = [(first[cluster], second[cluster], True) for cluster in shared]
    sums = np.array(pairs, dtype=np.float64).reshape(-1, 3)
    return merge_clusters(shared, sums, _shared_strata(before, after, shared))


def _outcomes(measurement: Measurement, name: str) -> dict[str, bool] | None:
    """The outcome of each cluster in which the metric is defined."""
    metric = measurement.metrics[name]
    if metric.outcomes is None:
        return None
    if len(set(measurement.clusters)) != len(measurement.clusters):
        raise ValueError(f"metric {name!r} has outcomes, so it needs one row for each cluster")
    defined = np.isfinite(metric.at(measurement.sums))
    outcomes = zip(measurement.clusters, metric.outcomes, defined, strict=True)
    return {cluster: bool(outcome) for cluster, outcome, known in outcomes if known}


def _changed(
    clusters: Clusters, changes: Mapping[str, _Change], settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """The changes with interval, p and guard of the paired bootstrap, not yet corrected."""
    rng = np.random.default_rng(settings.seed)
    metrics = {(name, False): Metric(change.difference) for name, change in changes.items()}
    metrics |= {(name, True): Metric(c.guarded) for name, c in changes.items() if c.guard}
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), metrics)
    return {
        name: _checked(
            _comparison(change, clusters.total, draws[name, False], settings.confidence),
            change,
            _guarding(draws.get((name, True)), settings.confidence),
        )
        for name, change in changes.items()
    }


def _comparison(change: _Change, total: Array, draws: Array, confidence: float) -> MetricComparison:
    difference = json_number(float(change.difference(total)))
    bounds = interval(draws, confidence) if difference is not None else None
    return MetricComparison(
        before=json_number(float(change.before(total))),
        after=json_number(float(change.after(total))),
        difference=difference,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        p=difference_p(draws) if bounds else None,
    )


def _guarding(draws: Array | None, confidence: float) -> Interval | None:
    """The interval whose bounds are those of two one-sided tests at level 1 - confidence.

    It is of confidence 1 - 2 (1 - confidence), 90% for 95% (Schuirmann 1987,
    doi:10.1007/BF01068419).
    """
    return None if draws is None else interval(draws, 2 * confidence - 1)


def _checked(
    comparison: MetricComparison, change: _Change, bounds: Interval | None
) -> MetricComparison:
    """The comparison with its guard, where the metric has one."""
    if (guard := change.guard) is None:
        return comparison
    margin = GuardMargin(guard.by, guard.relative)
    if bounds is None:
        return replace(comparison, guard="not shown", margin=margin)
    status = _guard(bounds, guard.by, change.better)
    return replace(
        comparison, guard=status, margin=replace(margin, low=bounds.low, high=bounds.high)
    )


def _guard(bounds: Interval, margin: float, better: Direction | None) -> Guard:
    """Kept where the interval is within the margin, lost where it is wholly outside."""
    allowed = Interval(
        -math.inf if better == "lower" else -margin, math.inf if better == "higher" else margin
    )
    if allowed.low < bounds.low and bounds.high < allowed.high:
        return "kept"
    return "lost" if bounds.high < allowed.low or bounds.low > allowed.high else "not shown"


def with_verdicts(
    comparisons: Mapping[str, MetricComparison],
    directions: Mapping[str, Direction | None],
    settings: StatisticsSettings,
) -> dict[str, MetricComparison]:
    """Add Holm's correction over all that have a p, and what follows from it."""
    adjusted = holm({name: c.p for name, c in comparisons.items() if c.p is not None})
    level = 1 - settings.confidence
    return {
        name: replace(
            c,
            p_holm=adjusted.get(name),
            verdict=_verdict(c.difference, directions[name], adjusted.get(name, 1.0) < level),
        )
        for name, c in comparisons.items()
    }


def _verdict(difference: float | None, better: Direction | None, evidence: bool) -> Verdict:
    if not evidence or not difference:
        return "no evidence"
    if better is None:
        return "changed"
    return "better" if (difference > 0) == (better == "higher") else "worse"
