"""comparison.json: what changed between two measurements of the same clusters."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from environments.measurement import Array, Direction, Measurement, Metric
from equipoise.evaluation.evaluate import json_number
from equipoise.evaluation.statistics import (
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


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric before and after; `difference` is after minus before. None: not defined."""

    before: float | None = None
    after: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    test: Test = "paired bootstrap"
    verdict: Verdict = "no evidence"


@dataclass(frozen=True, slots=True)
class _Change:
    """A metric of joint sums [..., K before + K after] of the same clusters."""

    before: Callable[[Array], Array]
    after: Callable[[Array], Array]

    def difference(self, sums: Array) -> Array:
        return self.after(sums) - self.before(sums)


def compare(
    before: Measurement, after: Measurement, settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """Every metric that both have and a model can change, on the clusters that both have.

    A metric with outcomes gets McNemar's exact test, on the clusters in which it is defined both
    before and after; every other one the paired bootstrap, which also gives both their interval:
    a draw takes the same clusters before and after. Holm's correction is over all the metrics.
    Raises `ValueError` where no cluster is shared.
    """
    changeable = [name for name, metric in before.metrics.items() if not metric.constant]
    names = [name for name in changeable if name in after.metrics]
    pairs = {name: _paired_outcomes(before, after, name) for name in names}
    tested = _bootstrapped(before, after, [n for n in names if pairs[n] is None], settings)
    tested |= {n: _exactly_tested(p, settings) for n, p in pairs.items() if p is not None}
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
    sums = _shared_sums(before, after)
    split = before.sums.shape[1]

    def change(first: Metric, second: Metric) -> _Change:
        return _Change(lambda t: first.at(t[..., :split]), lambda t: second.at(t[..., split:]))

    changes = {name: change(before.metrics[name], after.metrics[name]) for name in names}
    return _changed(sums, changes, settings)


def _shared_sums(before: Measurement, after: Measurement) -> Array:
    """The sums of the shared clusters, those before and those after side by side."""
    names_before, sums_before = merge_clusters(before.clusters, before.sums)
    names_after, sums_after = merge_clusters(after.clusters, after.sums)
    shared, at_before, at_after = np.intersect1d(names_before, names_after, return_indices=True)
    if not len(shared):
        raise ValueError("the two measurements have no cluster in common")
    return np.hstack([sums_before[at_before], sums_after[at_after]])


def _exactly_tested(pairs: NDArray[np.bool_], settings: StatisticsSettings) -> MetricComparison:
    """McNemar's test; the rates and the interval are those of the tested pairs."""
    if not len(pairs):
        return MetricComparison(test="exact McNemar")
    sums = np.column_stack([pairs, np.ones(len(pairs))])
    change = _Change(lambda t: t[..., 0] / t[..., 2], lambda t: t[..., 1] / t[..., 2])
    rate = _changed(sums, {"rate": change}, settings)["rate"]
    return replace(rate, p=mcnemar(pairs[:, 0], pairs[:, 1]), test="exact McNemar")


def _paired_outcomes(
    before: Measurement, after: Measurement, name: str
) -> NDArray[np.bool_] | None:
    """The outcomes before and after of each cluster that has both, [N, 2]; None without any."""
    first, second = _outcomes(before, name), _outcomes(after, name)
    if first is None or second is None:
        return None
    pairs = [(outcome, second[c]) for c, outcome in first.items() if c in second]
    return np.array(pairs, dtype=np.bool_).reshape(-1, 2)


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
    sums: Array, changes: Mapping[str, _Change], settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """The changes with interval and p of the paired bootstrap, not yet corrected."""
    rng = np.random.default_rng(settings.seed)
    metrics = {name: Metric(change.difference) for name, change in changes.items()}
    draws = metric_draws(bootstrap_sums(sums, settings.bootstrap_draws, rng), metrics)
    total = sums.sum(axis=0)
    return {
        name: _comparison(change, total, draws[name], settings.confidence)
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
