"""Compare two measurements of the same clusters, metric by metric."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
    guarding_level,
    holm,
    interval,
    mcnemar,
    merge_clusters,
    metric_draws,
    student_quantile,
    swap_p,
)

Verdict = Literal["better", "worse", "changed", "no evidence", "not measured"]
Guard = Literal["preserved", "not preserved", "inconclusive"]
Test = Literal["paired bootstrap", "paired permutation", "mid-p McNemar", "Student's t over seeds"]


@dataclass(frozen=True, slots=True)
class RemovedShare:
    """The share of a metric that training removed; 1 is all of it, below 0 is more than before."""

    value: float
    low: float
    high: float


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


@dataclass(frozen=True, slots=True)
class Change:
    """A metric before and after, the test of its change, and its removed share.

    Of a guarded metric also the interval of the guarded change, and the one-sided p of a change
    `beyond` the margin. `quantile` is Student's of one tail, for an unchanged model's power.
    """

    metric: Metric
    before: float
    after: float
    test: Test
    bounds: Interval | None = None
    p: float | None = None
    guarding: Interval | None = None
    beyond: float | None = None
    quantile: float = math.inf
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
    changes = changes_of(before, after, settings, tested=tested)
    comparisons = {name: _compared(change) for name, change in changes.items()}
    directions = {name: direction_of(c.metric, frozen=frozen) for name, c in changes.items()}
    compared = with_verdicts(comparisons, directions, settings)
    unchanged, part = (halves.compare(settings), halves.share) if halves else (compared, 1.0)
    for name, c in compared.items():
        if c.margin:
            still, quantile = unchanged.get(name, c), changes[name].quantile
            power, error = power_of(still, quantile, part), error_of(still, quantile, part)
            compared[name] = replace(c, margin=replace(c.margin, power=power, error=error))
    return compared


def direction_of(metric: Metric, *, frozen: bool) -> Direction | None:
    """Which way is better; neither for what is 0 by construction, see `compare`."""
    return None if frozen and metric.zero_if_frozen else metric.better


# --- guards and verdicts --------------------------------------------------------------------------


def _compared(change: Change) -> MetricComparison:
    """The comparison with its guard, not yet corrected."""
    guard, difference = change.metric.guard, json_number(change.after - change.before)
    bounds = change.bounds if difference is not None else None
    margin: GuardMargin | None = None
    status: Guard | None = None
    if guard:
        margin = GuardMargin(guard.by, guard.relative, better=change.metric.better)
        status = "inconclusive"
        if change.guarding:
            low, high = change.guarding.low, change.guarding.high
            margin = replace(margin, low=low, high=high, p=change.beyond)
            status = guard_of(change.guarding, guard.by, change.metric.better)
    return MetricComparison(
        before=json_number(change.before),
        after=json_number(change.after),
        difference=difference,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        p=change.p if bounds else None,
        test=change.test,
        guard=status,
        margin=margin,
        removed_share=change.removed_share,
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


# --- changes --------------------------------------------------------------------------------------
# Two measurements of the same clusters, metric by metric: what their tests and draws say.


def changes_of(
    before: Measurement, after: Measurement, settings: StatisticsSettings, *, tested: bool
) -> dict[str, Change]:
    """Test every metric that both have and a model can change, all on one resampling."""
    names = [n for n, m in before.metrics.items() if not m.constant and n in after.metrics]
    clusters, split = _shared_clusters(before, after), before.sums.shape[1]
    pairs = {
        name: _outcomes_pair(before, after, name) or _pair(before, after, name, clusters)
        for name in names
    }
    draws = _draws(pairs, clusters, settings)
    changes = {}
    for name, pair in pairs.items():
        shares = Shares.of(pair.metric, clusters.sums[:, :split], clusters.strata)
        degrees = shares.degrees if shares else clusters.degrees
        changes[name] = replace(
            _tested(pair, name, draws, settings, tested=tested),
            quantile=student_quantile(settings.confidence, degrees),
            removed_share=_removed_share(pair, name, draws, settings),
        )
    return changes


@dataclass(frozen=True, slots=True)
class _Pair:
    """A metric before and after, as functions of joint sums [..., K] of the same clusters.

    `shares` are those of a metric that is one, `outcomes` those of McNemar's test. A `removable`
    one is unbiased, of measurements with the same clusters.
    """

    metric: Metric
    clusters: Clusters
    before: Callable[[Array], Array]
    after: Callable[[Array], Array]
    shares: tuple[Shares, Shares] | None
    outcomes: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    removable: bool = False

    def difference(self, sums: Array) -> Array:
        return self.after(sums) - self.before(sums)

    def guarded(self, sums: Array) -> Array:
        relative = self.metric.guard is not None and self.metric.guard.relative
        return self.difference(sums) / (np.abs(self.before(sums)) if relative else 1.0)

    def removed(self, sums: Array) -> Array:
        return 1 - self.after(sums) / self.before(sums)


def _pair(before: Measurement, after: Measurement, name: str, clusters: Clusters) -> _Pair:
    split = before.sums.shape[1]
    first, second = before.metrics[name], after.metrics[name]
    shares = (
        Shares.of(first, clusters.sums[:, :split], clusters.strata),
        Shares.of(second, clusters.sums[:, split:], clusters.strata),
    )
    return _Pair(
        first,
        clusters,
        lambda t: first.at(t[..., :split]),
        lambda t: second.at(t[..., split:]),
        None if shares[0] is None or shares[1] is None else (shares[0], shares[1]),
        removable=first.unbiased and set(before.clusters) == set(after.clusters),
    )


def _shared_clusters(before: Measurement, after: Measurement) -> Clusters:
    """The shared clusters, their sums those before and those after side by side."""
    first, second = (merge_clusters(m.clusters, m.sums, m.strata) for m in (before, after))
    shared, at_first, at_second = np.intersect1d(first.names, second.names, return_indices=True)
    if not len(shared):
        raise ValueError("the two measurements have no cluster in common")
    sums = np.hstack([first.sums[at_first], second.sums[at_second]])
    return merge_clusters(shared.tolist(), sums, _shared_strata(before, after, shared.tolist()))


def _shared_strata(before: Measurement, after: Measurement, shared: Sequence[str]) -> list[str]:
    """The stratum of each shared cluster. Raises `ValueError` where the two do not agree."""
    first, second = (
        dict(zip(m.clusters, m.strata or [""] * len(m.clusters), strict=True))
        for m in (before, after)
    )
    if torn := [cluster for cluster in shared if first[cluster] != second[cluster]]:
        raise ValueError(f"cluster {torn[0]!r} is in two strata")
    return [first[cluster] for cluster in shared]


def _outcomes_pair(before: Measurement, after: Measurement, name: str) -> _Pair | None:
    """The change of the clusters that have an outcome both times; None without outcomes.

    Their sums are whether it is a yes before, whether after, and 1.
    """
    first, second = _outcomes(before, name), _outcomes(after, name)
    if first is None or second is None:
        return None
    shared = [cluster for cluster in first if cluster in second]
    rows = [(first[cluster], second[cluster], True) for cluster in shared]
    sums = np.array(rows, dtype=np.float64).reshape(-1, 3)
    pairs = merge_clusters(shared, sums, _shared_strata(before, after, shared))
    yes, yes_after, ones = pairs.sums.T
    shares = (Shares(yes, ones, pairs.strata), Shares(yes_after, ones, pairs.strata))
    return _Pair(
        before.metrics[name],
        pairs,
        lambda t: quotient(t[..., 0], t[..., 2]),
        lambda t: quotient(t[..., 1], t[..., 2]),
        shares if len(pairs.names) > 1 else None,
        outcomes=(yes > 0, yes_after > 0),
    )


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


_Draws = Mapping[tuple[str, str], Array]


def _draws(pairs: Mapping[str, _Pair], clusters: Clusters, settings: StatisticsSettings) -> _Draws:
    """The paired bootstrap of the metrics that are neither shares nor outcomes: name and figure."""
    metrics: dict[tuple[str, str], Metric] = {}
    for name, pair in pairs.items():
        if pair.removable:
            metrics[name, "before"] = Metric(pair.before)
            metrics[name, "removed"] = Metric(pair.removed)
        if pair.shares or pair.outcomes:
            continue
        metrics[name, "difference"] = Metric(pair.difference)
        if pair.metric.guard:
            metrics[name, "guarded"] = Metric(pair.guarded)
    if not metrics:  # draws take a second
        return {}
    rng = np.random.default_rng(settings.seed)
    return metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), metrics)


def _tested(
    pair: _Pair, name: str, draws: _Draws, settings: StatisticsSettings, *, tested: bool
) -> Change:
    metric, guard, total = pair.metric, pair.metric.guard, pair.clusters.total
    test: Test = "mid-p McNemar" if pair.outcomes else "paired bootstrap"
    level, guarding_at = settings.confidence, guarding_level(settings.confidence)
    bounds = p = guarding = beyond = None
    if pair.shares:
        bounds = _defined_interval(difference_bounds(*pair.shares, level))
        if pair.outcomes:
            p = mcnemar(*pair.outcomes)
        elif tested and bounds:
            rng = np.random.default_rng(settings.seed)
            p = swap_p(*pair.shares, settings.bootstrap_draws, rng)
            test = "paired permutation"
        if guard:
            guarding = _defined_interval(difference_bounds(*pair.shares, guarding_at))
            beyond = beyond_p(*pair.shares, guard.by, metric.better)
    elif not pair.outcomes:  # else they are of one cluster, or of none
        drawn, degrees = draws[name, "difference"], pair.clusters.degrees
        bounds, p = interval(drawn, level, degrees), difference_p(drawn, degrees)
        if guard:
            drawn = draws[name, "guarded"]
            sides = (drawn, metric.better != "higher"), (-drawn, metric.better != "lower")
            ps = [exceeding_p(side, guard.by, degrees) for side, is_guarded in sides if is_guarded]
            beyond = min((p for p in ps if p is not None), default=None)
            guarding = interval(drawn, guarding_at, degrees)
    before, after = float(pair.before(total)), float(pair.after(total))
    return Change(metric, before, after, test, bounds, p, guarding, beyond)


def _defined_interval(bounds: tuple[Array, Array]) -> Interval | None:
    low, high = map(float, bounds)
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) else None


def _removed_share(
    pair: _Pair, name: str, draws: _Draws, settings: StatisticsSettings
) -> RemovedShare | None:
    if not pair.removable:
        return None
    before, removed = (
        interval(draws[name, figure], settings.confidence, pair.clusters.degrees)
        for figure in ("before", "removed")
    )
    value = float(Metric(pair.removed).at(pair.clusters.total))
    if before is None or removed is None or before.low <= 0 or not math.isfinite(value):
        return None
    return RemovedShare(value, removed.low, removed.high)
