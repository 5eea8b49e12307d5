"""Compare two measurements of the same clusters, metric by metric."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from environments.base import Rollout, Score
from environments.measurement import Direction, Measurement, Metric
from equipoise.statistics.evaluation import json_number
from equipoise.statistics.intervals import (
    Change,
    Interval,
    Key,
    RemovedShare,
    StatisticsSettings,
    Test,
    changes_of,
    holm,
)

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
