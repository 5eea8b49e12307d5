"""comparison.json: what changed between two measurements of the same clusters."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from environments.base import Rollout, Score
from environments.measurement import Array, Direction, Measurement, Metric, quotient
from equipoise.statistics.evaluation import json_number
from equipoise.statistics.intervals import (
    Clusters,
    Interval,
    Key,
    Shares,
    StatisticsSettings,
    beyond_p,
    bootstrap_sums,
    difference_bounds,
    difference_p,
    exceeding_p,
    holm,
    interval,
    mcnemar,
    merge_clusters,
    metric_draws,
    student_quantile,
    swap_p,
)

SCHEMA = 1

Test = Literal["paired bootstrap", "paired permutation", "mid-p McNemar", "Student's t over seeds"]
Verdict = Literal["better", "worse", "changed", "no evidence", "not measured"]
Guard = Literal["preserved", "not preserved", "inconclusive"]


@dataclass(frozen=True, slots=True)
class GuardMargin:
    """Margin of a guarded metric, and the interval of its change that decides.

    All are in the metric's unit or, where `relative`, in parts of its value before. A metric that
    has a `better` direction may move as far as it likes there. `p` is one-sided, of a change that
    is within the margin: a small one says that it is not preserved. `power` is the probability that
    an unchanged model passes; its change has this standard `error`, see `power_of`.
    """

    by: float
    relative: bool
    low: float | None = None
    high: float | None = None
    better: Direction | None = None
    p: float | None = None
    power: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class RemovedShare:
    """The share of a metric that training removed; 1 is all of it, below 0 is more than before."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MetricComparison:
    """One metric before and after; `difference` is after minus before. None: not defined.

    `guard` is None of a metric without a margin. `removed_share` is None of a metric that is not
    unbiased, or where there was nothing clear to remove.
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
    removed_share: RemovedShare | None = None


#: How often replies are halved: with twelve clusters power then was .77 to .95, by one .52 to .95.
_HALVINGS = 8


@dataclass(frozen=True, slots=True)
class Halves:
    """Pairs of parts of one stage's replies to the same prompts, each with this share of them.

    The parts of a pair differ as two evaluations of one model do, except in size. `of` measures a
    pair when it is asked for, and once: all together would take gigabytes.
    """

    pairs: Iterable[tuple[Measurement, Measurement]]
    share: float

    @classmethod
    def of(
        cls,
        measure: Callable[[Sequence[Rollout], Sequence[Score]], Measurement],
        rollouts: Sequence[Rollout],
        scores: Sequence[Score],
    ) -> "Halves | None":
        """Replies halved at random several times; None where a prompt has but one."""
        rows: dict[str, list[int]] = {}
        for row, rollout in enumerate(rollouts):
            rows.setdefault(rollout.prompt_id, []).append(row)
        generations = min(map(len, rows.values()), default=0)
        if (half := generations // 2) == 0:
            return None

        def part(siblings: Iterable[int]) -> Measurement:
            chosen = [of_prompt[n] for of_prompt in rows.values() for n in sorted(siblings)]
            measured = measure([rollouts[n] for n in chosen], [scores[n] for n in chosen])
            guarded = {n: m for n, m in measured.metrics.items() if m.guard and not m.constant}
            return replace(measured, metrics=guarded, breakdowns={}, null_sums=None)

        random = np.random.default_rng(0)
        orders = (random.permutation(generations) for _ in range(_HALVINGS))
        pairs = ((part(order[:half]), part(order[half : 2 * half])) for order in orders)
        return cls(pairs, half / generations)

    def compare(self, settings: StatisticsSettings) -> dict[str, MetricComparison]:
        """The first pair's guards, with the root mean square of all pairs' reaches of the interval.

        A single pair's reach varies by chance: by a fifth with twelve clusters.
        """
        compared = [
            compare(*pair, settings, tested=False) if pair[0].metrics else {} for pair in self.pairs
        ]
        return {
            name: replace(c, margin=_mean_reach([comparison[name] for comparison in compared]))
            for name, c in compared[0].items()
        }


def _mean_reach(pairs: Sequence[MetricComparison]) -> GuardMargin | None:
    """The first margin, its interval as wide as the average of all."""
    first, change = pairs[0].margin, change_in_unit(pairs[0])
    if first is None or change is None:
        return first
    reaches = [reach for pair in pairs if (reach := _reach_of(pair))]
    if not reaches:
        return first
    below, above = np.sqrt(np.mean(np.square(reaches), axis=0)).tolist()
    return replace(first, low=change - below, high=change + above)


def _reach_of(comparison: MetricComparison) -> tuple[float, float] | None:
    """Measure how far the margin's interval reaches below and above the change, if it has one."""
    margin, change = comparison.margin, change_in_unit(comparison)
    if margin is None or margin.low is None or margin.high is None or change is None:
        return None
    return change - margin.low, margin.high - change


@dataclass(frozen=True, slots=True)
class _Change:
    """A metric of joint sums [..., K before + K after] of the same clusters.

    `shares` are those of a metric that is one, before and after.
    """

    before: Callable[[Array], Array]
    after: Callable[[Array], Array]
    metric: Metric
    shares: tuple[Shares, Shares] | None = None

    def difference(self, sums: Array) -> Array:
        return self.after(sums) - self.before(sums)

    @property
    def is_relative(self) -> bool:
        return self.metric.guard is not None and self.metric.guard.relative

    def guarded(self, sums: Array) -> Array:
        return self.difference(sums) / (np.abs(self.before(sums)) if self.is_relative else 1.0)


def compare(
    before: Measurement,
    after: Measurement,
    settings: StatisticsSettings,
    *,
    frozen: bool = False,
    halves: Halves | None = None,
    tested: bool = True,
) -> dict[str, MetricComparison]:
    """Compare every metric that both have and a model can change, on their shared clusters.

    A metric with outcomes gets McNemar's test, on the clusters in which it is defined both
    before and after, another share the test that swaps before and after within clusters; both have
    the interval of `difference_bounds`. Every other metric has interval and test of the paired
    bootstrap: a draw takes the same clusters before and after. Holm's correction is over all the
    metrics; guards need none, because all of their tests must reject. An unbiased metric also has
    its removed share. Where one of the two is the `frozen` model, a distance from its reference is
    0 there by construction, so its verdict is "changed". The power of guards is that of the
    `halves` of the stage before, else of the comparison itself. If only guards matter, shares are
    not `tested`, because swapping takes most of the time. Raises `ValueError` where no cluster is
    shared, or one is in two strata.
    """
    changeable = [name for name, metric in before.metrics.items() if not metric.constant]
    names = [name for name in changeable if name in after.metrics]
    pairs = {name: _paired_outcomes(before, after, name) for name in names}
    bootstrap_names = [name for name in names if pairs[name] is None]
    changes = _bootstrapped(before, after, bootstrap_names, settings, tested=tested)
    changes |= {
        name: _exactly_tested(pair, before.metrics[name], settings)
        for name, pair in pairs.items()
        if pair is not None
    }
    removed = _removed_shares(before, after, names, settings)
    comparisons = {name: replace(changes[name], removed_share=removed.get(name)) for name in names}
    directions = {name: direction_of(before.metrics[name], frozen=frozen) for name in names}
    compared = with_verdicts(comparisons, directions, settings)
    clusters, split = _shared_clusters(before, after), before.sums.shape[1]

    def degrees(name: str) -> int:
        shares = Shares.of(before.metrics[name], clusters.sums[:, :split], clusters.strata)
        return shares.degrees if shares else clusters.degrees

    return _with_power(compared, degrees, settings, halves)


def _with_power(
    compared: Mapping[str, MetricComparison],
    degrees: Callable[[str], int],
    settings: StatisticsSettings,
    halves: Halves | None,
) -> dict[str, MetricComparison]:
    """The comparisons, their margins with the power of the guard."""
    unchanged, share = compared, 1.0
    if halves is not None:
        unchanged, share = halves.compare(settings), halves.share

    def with_power(name: str, margin: GuardMargin) -> GuardMargin:
        comparison = unchanged.get(name, compared[name])
        quantile = student_quantile(settings.confidence, degrees(name))
        error = error_of(comparison, quantile, share)
        return replace(margin, power=power_of(comparison, quantile, share), error=error)

    return {
        name: replace(c, margin=with_power(name, c.margin)) if c.margin else c
        for name, c in compared.items()
    }


def direction_of(metric: Metric, *, frozen: bool) -> Direction | None:
    """Which way is better; neither for what is 0 by construction, see `compare`."""
    return None if frozen and metric.zero_if_frozen else metric.better


def _removed_shares(
    before: Measurement, after: Measurement, names: Sequence[str], settings: StatisticsSettings
) -> dict[str, RemovedShare | None]:
    """The removed share of each unbiased metric, where both measurements have the same clusters."""
    unbiased = {name: before.metrics[name] for name in names if before.metrics[name].unbiased}
    if not unbiased or set(before.clusters) != set(after.clusters):
        return {}
    joint = _shared_clusters(before, after)
    split = before.sums.shape[1]

    def share(metric: Metric) -> Metric:
        return Metric(lambda t: 1 - metric.at(t[..., split:]) / metric.at(t[..., :split]))

    def first(metric: Metric) -> Metric:
        return Metric(lambda t: metric.at(t[..., :split]))

    shares = {name: share(metric) for name, metric in unbiased.items()}
    drawn = {(name, "removed"): metric for name, metric in shares.items()}
    drawn |= {(name, "before"): first(metric) for name, metric in unbiased.items()}
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(bootstrap_sums(joint, settings.bootstrap_draws, rng), drawn)
    bounds = {key: interval(d, settings.confidence, joint.degrees) for key, d in draws.items()}
    return {
        name: _removed_share(
            float(metric.at(joint.total)), bounds[name, "before"], bounds[name, "removed"]
        )
        for name, metric in shares.items()
    }


def _removed_share(
    value: float, before: Interval | None, share: Interval | None
) -> RemovedShare | None:
    if before is None or share is None or before.low <= 0 or not math.isfinite(value):
        return None
    return RemovedShare(value, share.low, share.high)


def comparison_dict(comparisons: Mapping[str, MetricComparison]) -> dict[str, Any]:
    metrics = {name: asdict(comparison) for name, comparison in comparisons.items()}
    return {"schema": SCHEMA, "before": "baseline", "after": "final", "metrics": metrics}


def _bootstrapped(
    before: Measurement,
    after: Measurement,
    names: list[str],
    settings: StatisticsSettings,
    *,
    tested: bool,
) -> dict[str, MetricComparison]:
    """The changes of these metrics with interval, p and guard, not yet corrected."""
    clusters = _shared_clusters(before, after)
    split = before.sums.shape[1]

    def change(first: Metric, second: Metric) -> _Change:
        shares = (
            Shares.of(first, clusters.sums[:, :split], clusters.strata),
            Shares.of(second, clusters.sums[:, split:], clusters.strata),
        )
        return _Change(
            lambda t: first.at(t[..., :split]),
            lambda t: second.at(t[..., split:]),
            first,
            None if shares[0] is None or shares[1] is None else (shares[0], shares[1]),
        )

    changes = {name: change(before.metrics[name], after.metrics[name]) for name in names}
    of_shares = {
        name: _of_shares(change, clusters, settings, tested=tested)
        for name, change in changes.items()
        if change.shares
    }
    resampled_changes = {name: change for name, change in changes.items() if not change.shares}
    return of_shares | _resampled(clusters, resampled_changes, settings)


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
    first, second, ones = pairs.sums.T
    change = _Change(
        lambda t: quotient(t[..., 0], t[..., 2]),
        lambda t: quotient(t[..., 1], t[..., 2]),
        metric,
        (Shares(first, ones, pairs.strata), Shares(second, ones, pairs.strata)),
    )
    if len(pairs.names) < 2:
        lone = replace(_comparison(change, pairs.total, None), test="mid-p McNemar")
        return _checked(lone, change, None)
    rate = _of_shares(change, pairs, settings, tested=False)
    return replace(rate, p=mcnemar(first > 0, second > 0), test="mid-p McNemar")


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
    """Outcomes of the clusters in which the metric is defined."""
    metric = measurement.metrics[name]
    if metric.outcomes is None:
        return None
    if len(set(measurement.clusters)) != len(measurement.clusters):
        raise ValueError(f"metric {name!r} has outcomes, so it needs one row for each cluster")
    defined = np.isfinite(metric.at(measurement.sums))
    outcomes = zip(measurement.clusters, metric.outcomes, defined, strict=True)
    return {cluster: bool(outcome) for cluster, outcome, is_defined in outcomes if is_defined}


def _resampled(
    clusters: Clusters, changes: Mapping[str, _Change], settings: StatisticsSettings
) -> dict[str, MetricComparison]:
    """Changes by the paired bootstrap."""
    if not changes:  # draws take a second
        return {}
    rng = np.random.default_rng(settings.seed)
    metrics = {(name, False): Metric(change.difference) for name, change in changes.items()}
    metrics |= {(n, True): Metric(c.guarded) for n, c in changes.items() if c.metric.guard}
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), metrics)
    compared = {}
    for name, change in changes.items():
        bounds = interval(draws[name, False], settings.confidence, clusters.degrees)
        comparison = _comparison(change, clusters.total, bounds)
        if comparison.low is not None:
            p = difference_p(draws[name, False], clusters.degrees)
            comparison = replace(comparison, p=p)
        guarding = draws.get((name, True))
        if guarding is not None:
            level = guarding_level(settings.confidence)
            bounds = interval(guarding, level, clusters.degrees)
            p = _beyond_p(guarding, change.metric, clusters.degrees)
            comparison = _checked(comparison, change, bounds, p)
        compared[name] = comparison
    return compared


def _of_shares(
    change: _Change, clusters: Clusters, settings: StatisticsSettings, *, tested: bool
) -> MetricComparison:
    """A change of shares: their own interval, and the test that swaps before and after."""
    assert change.shares is not None
    bounds = _defined(difference_bounds(*change.shares, settings.confidence))
    comparison = _comparison(change, clusters.total, bounds)
    if tested and comparison.low is not None:
        rng = np.random.default_rng(settings.seed)
        p = swap_p(*change.shares, settings.bootstrap_draws, rng)
        comparison = replace(comparison, p=p, test="paired permutation")
    if (guard := change.metric.guard) is None:
        return comparison
    guarding = difference_bounds(*change.shares, guarding_level(settings.confidence))
    beyond = beyond_p(*change.shares, guard.by, change.metric.better)
    return _checked(comparison, change, _defined(guarding), beyond)


def _beyond_p(draws: Array, metric: Metric, degrees: float) -> float | None:
    """One-sided p of a guarded change that is within its margin, from its draws."""
    assert metric.guard is not None
    sides = (draws, metric.better != "higher"), (-draws, metric.better != "lower")
    p_values = [exceeding_p(side, metric.guard.by, degrees) for side, guarded in sides if guarded]
    return min((p for p in p_values if p is not None), default=None)


def _defined(bounds: tuple[Array, Array]) -> Interval | None:
    low, high = map(float, bounds)
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) else None


def _comparison(change: _Change, total: Array, bounds: Interval | None) -> MetricComparison:
    difference = json_number(float(change.difference(total)))
    change_bounds = bounds if difference is not None else None
    return MetricComparison(
        before=json_number(float(change.before(total))),
        after=json_number(float(change.after(total))),
        difference=difference,
        low=change_bounds.low if change_bounds else None,
        high=change_bounds.high if change_bounds else None,
    )


def guarding_level(confidence: float) -> float:
    """The confidence of the interval whose bounds are those of two one-sided tests.

    Each test has level 1 - confidence, so the interval is of 90% where others are of 95%
    (Schuirmann 1987, doi:10.1007/BF01068419).
    """
    return 2 * confidence - 1


def _checked(
    comparison: MetricComparison,
    change: _Change,
    bounds: Interval | None,
    p: float | None = None,
) -> MetricComparison:
    """The comparison with its guard, where the metric has one."""
    if (guard := change.metric.guard) is None:
        return comparison
    margin = GuardMargin(guard.by, guard.relative, better=change.metric.better)
    if bounds is None:
        return replace(comparison, guard="inconclusive", margin=margin)
    status = guard_of(bounds, guard.by, change.metric.better)
    return replace(
        comparison, guard=status, margin=replace(margin, low=bounds.low, high=bounds.high, p=p)
    )


def guard_of(bounds: Interval, margin: float, better: Direction | None) -> Guard:
    """Decide by the interval: preserved if within the margin, not preserved if wholly outside."""
    allowed = Interval(
        -math.inf if better == "lower" else -margin, math.inf if better == "higher" else margin
    )
    if allowed.low < bounds.low and bounds.high < allowed.high:
        return "preserved"
    return (
        "not preserved"
        if bounds.high < allowed.low or bounds.low > allowed.high
        else "inconclusive"
    )


def power_of(unchanged: MetricComparison, quantile: float, share: float = 1.0) -> float | None:
    """Probability that an unchanged model passes a guard; None where no interval decides it.

    It passes while the interval of its measured change is within the margin. The change varies by
    the standard error that the interval has from it, half its width over `quantile`, Student's of
    one tail; from parts with this `share` of the replies both are larger by the root of that. The
    measured change itself does not count, so this is not a p-value in other words (Hoenig & Heisey
    2001, doi:10.1198/000313001300339897).
    """
    margin, reach = unchanged.margin, _reach_of(unchanged)
    if margin is None or reach is None:
        return None
    below, above = (side * math.sqrt(share) for side in reach)
    lower = -math.inf if margin.better == "lower" else below - margin.by
    upper = math.inf if margin.better == "higher" else margin.by - above
    if not (error := error_of(unchanged, quantile, share)):
        return float(lower < 0 < upper)
    normal = NormalDist(0.0, error)
    return max(0.0, normal.cdf(upper) - normal.cdf(lower))


def error_of(unchanged: MetricComparison, quantile: float, share: float = 1.0) -> float | None:
    """The standard error of a change of 0, see `power_of`; None where no interval decides."""
    margin = unchanged.margin
    if margin is None or margin.low is None or margin.high is None:
        return None
    return (margin.high - margin.low) / 2 * math.sqrt(share) / quantile


def change_in_unit(comparison: MetricComparison) -> float | None:
    """The change as the guard takes it: in parts of the value before where that is the margin's."""
    relative = comparison.margin is not None and comparison.margin.relative
    if comparison.difference is None or not relative:
        return comparison.difference
    return comparison.difference / abs(comparison.before) if comparison.before else None


def with_verdicts(
    comparisons: Mapping[Key, MetricComparison],
    directions: Mapping[Key, Direction | None],
    settings: StatisticsSettings,
) -> dict[Key, MetricComparison]:
    """Correct every p by Holm's method, and add the verdicts that follow."""
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
    if difference is None:
        return "not measured"
    if not evidence or not difference:
        return "no evidence"
    if better is None:
        return "changed"
    return "better" if (difference > 0) == (better == "higher") else "worse"
