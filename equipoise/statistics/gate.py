"""Test whether a model is worse than another by more than a margin: one verdict over all tasks.

Of each task the objective and the guarded metrics are compared in pairs, on the same items. A
metric is *preserved* where the interval of its change is within its margin, by two one-sided tests;
it is *not preserved* where its change is shown to be beyond the margin, after Holm's correction
over all metrics of all tasks; else it is *inconclusive*. A pass means that everything is preserved;
it needs no correction, because every test must reject (Berger 1982).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from environments.base import REWARD, Rollout, Score
from environments.contract import Environment
from environments.measurement import Margin, Mean, Measurement, measure_means
from environments.presentation import Presentation
from equipoise.statistics.compare import (
    Guard,
    GuardMargin,
    Halves,
    MetricComparison,
    compare,
    error_of,
)
from equipoise.statistics.intervals import StatisticsSettings, holm
from equipoise.statistics.seeds import Difference, EntriesComparison

#: No run's own settings: neither side says how sure a verdict is.
SETTINGS = StatisticsSettings()
#: Coverage was simulated with 40 clusters and more (docs/report.md).
LEAST_CLUSTERS = 40
#: What more data are to do: show of a model in which nothing changed that a metric is kept.
POWER = 0.9

Key = tuple[str, str]  # task, metric
Verdict = Literal["passed", "failed", "not enough data"]
Replies = tuple[Sequence[Rollout], Sequence[Score]]
Measure = Callable[[Sequence[Rollout], Sequence[Score]], Measurement]


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard error of a change of 0, its margin, and the clusters that it was measured on.

    `ways` is 1 where a change for the better may be of any size, else 2.
    """

    error: float
    by: float
    ways: int
    clusters: int

    def power(self, times: float) -> float:
        """Return how likely an unchanged model passes with this many times the replies."""
        if not self.error:
            return 1.0
        normal = NormalDist()
        reach = self.by / self.error * math.sqrt(times) - normal.inv_cdf(SETTINGS.confidence)
        return max(0.0, 1 - self.ways * normal.cdf(-reach))


def times_needed(spreads: Iterable[Spread], power: float) -> float:
    """Return how many times the replies let an unchanged model pass in all metrics at once.

    The metrics are taken as independent. Those of one task rise and fall together, so it asks for
    too many replies rather than too few.
    """
    spreads, low, high = list(spreads), 1e-4, 1e6
    while high / low > 1 + 1e-9:
        middle = math.sqrt(low * high)
        enough = math.prod(spread.power(middle) for spread in spreads) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class GatedMetric:
    """A guarded metric's change over so many clusters, and the verdict on it.

    `unscored` are the replies of either side without a score. `p_holm` is one-sided, of a change
    within the margin.
    """

    comparison: MetricComparison
    clusters: int
    unscored: tuple[int, int] = (0, 0)
    status: Guard = "inconclusive"
    p_holm: float | None = None

    @property
    def margin(self) -> GuardMargin:
        assert self.comparison.margin is not None, "it is guarded"
        return self.comparison.margin

    def with_error(self, error: float) -> "GatedMetric":
        margin = replace(self.margin, error=error)
        return replace(self, comparison=replace(self.comparison, margin=margin))

    @property
    def spread(self) -> Spread | None:
        """The spread of a change of 0; None where its error is not known."""
        margin = self.margin
        if margin.error is None:
            return None
        return Spread(margin.error, margin.by, 1 if margin.better else 2, self.clusters)

    @property
    def gap(self) -> str:
        """The reasons why the metric cannot be decided; empty where there are none."""
        sides = zip(("before", "after"), self.unscored, strict=True)
        reasons = [f"{n:,} replies {side} have no score" for side, n in sides if n]
        if self.clusters < LEAST_CLUSTERS:
            reasons.append(f"{self.clusters} clusters, of {LEAST_CLUSTERS} that it takes")
        values = (self.comparison.before, self.comparison.after)
        undefined = zip(("before", "after"), values, strict=True)
        reasons += [f"not defined {side}" for side, value in undefined if value is None]
        return "; ".join(reasons)

    @property
    def times(self) -> float | None:
        """Times as many items that would keep it with `POWER`, if nothing changed."""
        if not self.spread or not self.clusters:
            return None
        return max(times_needed([self.spread], POWER), LEAST_CLUSTERS / self.clusters)


#: The guarded metrics of a task by name.
GatedMetrics = dict[str, GatedMetric]


@dataclass(frozen=True, slots=True)
class Watched:
    """The watched metrics of a task: those that are guarded, the objective among them.

    `margins` are those that replace the environment's, in the unit of each.
    """

    environment: Environment
    margins: Mapping[str, float]

    @property
    def objective(self) -> str:
        return self.environment.objective

    def compare(self, before: Replies, after: Replies) -> GatedMetrics:
        """Compare every watched metric; one that either side lacks is not defined there."""

        def compared(measure: Measure, lacks: Callable[[Score], bool]) -> GatedMetrics:
            unscored = sum(map(lacks, before[1])), sum(map(lacks, after[1]))
            return compare_watched(measure(*before), measure(*after), unscored)

        # A reply with an outcome is in a metric of the task though it has no reward.
        metrics = compared(self.measure_task, lambda s: s.error is not None and s.outcome is None)
        if self.objective == REWARD:
            (reward,) = compared(self.measure_reward, lambda s: s.value is None).values()
            low, span = self.reward_scale
            comparison = _scaled(reward.comparison, low, span)
            metrics = {REWARD: replace(reward, comparison=comparison), **metrics}
        return metrics

    def with_errors(self, metrics: GatedMetrics, before: Replies) -> GatedMetrics:
        """The metrics, each with the error of a change where nothing did, from halves of before.

        That takes as long as measuring a side. Without it the comparison's own stands in, which is
        larger where some of the items changed.
        """
        errors = _errors(Halves.of(self.measure_task, *before))
        if self.objective == REWARD:
            span = self.reward_scale[1]
            of_reward = _errors(Halves.of(self.measure_reward, *before))
            errors |= {name: span * error for name, error in of_reward.items()}
        return {n: m.with_error(errors[n]) if n in errors else m for n, m in metrics.items()}

    def measure_task(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The guarded metrics of the task, its objective among them where that is one."""
        measured = self.environment.measure(rollouts, scores)
        margins = dict(self.margins)
        if self.objective != REWARD:
            margins[self.objective] = self._margin_of(self.objective)
        return watched(measured, margins)

    def measure_reward(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The mean reward from 0 to 1: the interval of a share has a width if no reply differs."""
        low, span = self.reward_scale
        values = [None if s.value is None else (s.value - low) / span for s in scores]
        share = self.environment.reward_range() is not None
        means = {REWARD: Mean(values, better="higher", share=share)}
        measured = measure_means([rollout.set_id for rollout in rollouts], means)
        return watched(measured, {REWARD: self._margin_of(REWARD) / span})

    def _margin_of(self, name: str) -> float:
        margin = self.margins.get(name, self.environment.margin())
        assert margin is not None, "a task without a margin is refused before"
        return margin

    @property
    def reward_scale(self) -> tuple[float, float]:
        """The lowest reward and how much there is above it; 0 and 1 where neither is known."""
        low, high = self.environment.reward_range() or (0.0, 1.0)
        return low, high - low


def watched(measured: Measurement, margins: Mapping[str, float]) -> Measurement:
    """The guarded metrics of a measurement, with these margins where they are named."""
    metrics = {}
    for name, metric in measured.metrics.items():
        guard = metric.guard
        if name in margins:
            guard = Margin(margins[name], relative=guard is not None and guard.relative)
        if guard and not metric.constant:
            metrics[name] = replace(metric, guard=guard)
    return replace(measured, metrics=metrics, breakdowns={}, null_sums=None)


def compare_watched(
    before: Measurement,
    after: Measurement,
    unscored: tuple[int, int] = (0, 0),
    settings: StatisticsSettings = SETTINGS,
) -> GatedMetrics:
    """Compare every metric of either side; one that a side lacks is not defined there.

    Missing answers can leave a metric undefined, which is not a pass.
    """
    metrics = {**after.metrics, **before.metrics}
    comparisons = compare(before, after, settings, tested=False) if metrics else {}
    gated = {}
    for name, metric in metrics.items():
        assert metric.guard is not None
        margin = GuardMargin(metric.guard.by, metric.guard.relative, better=metric.better)
        undefined = MetricComparison(guard="inconclusive", margin=margin)
        clusters = len(_clusters_of(name, before) & _clusters_of(name, after))
        gated[name] = GatedMetric(comparisons.get(name, undefined), clusters, unscored)
    return gated


def _clusters_of(name: str, measured: Measurement) -> set[str]:
    """The clusters that a metric is of."""
    metric = measured.metrics.get(name)
    if metric is None or metric.trials is None or not metric.of_part:
        return set(measured.clusters)
    has_trials = metric.trials(measured.sums) > 0
    return {
        cluster for cluster, is_asked in zip(measured.clusters, has_trials, strict=True) if is_asked
    }


def _errors(halves: Halves | None) -> dict[str, float]:
    """The standard error of each guarded change between two evaluations of one model."""
    if halves is None:
        return {}
    unchanged = halves.compare(SETTINGS)
    quantile = NormalDist().inv_cdf(SETTINGS.confidence)
    errors = {name: error_of(c, quantile, halves.share) for name, c in unchanged.items()}
    return {name: error for name, error in errors.items() if error is not None}


def _scaled(comparison: MetricComparison, low: float, span: float) -> MetricComparison:
    """A comparison of (value - low) / span as one of the value."""

    def scaled(value: float | None, start: float = 0.0) -> float | None:
        return None if value is None else start + span * value

    assert comparison.margin is not None
    margin = replace(
        comparison.margin,
        by=span * comparison.margin.by,
        low=scaled(comparison.margin.low),
        high=scaled(comparison.margin.high),
        error=scaled(comparison.margin.error),
    )
    return replace(
        comparison,
        before=scaled(comparison.before, low),
        after=scaled(comparison.after, low),
        difference=scaled(comparison.difference),
        low=scaled(comparison.low),
        high=scaled(comparison.high),
        margin=margin,
    )


def gate(metrics: Mapping[Key, GatedMetric]) -> dict[Key, GatedMetric]:
    """Decide on each metric, one family over all tasks."""
    ps = {key: m.margin.p for key, m in metrics.items() if m.clusters >= LEAST_CLUSTERS}
    corrected = holm({key: p for key, p in ps.items() if p is not None})
    gated = {}
    for key, metric in metrics.items():
        p_holm = corrected.get(key)
        preserved = metric.comparison.guard == "preserved" and not metric.gap
        status: Guard = "preserved" if preserved else "inconclusive"
        if p_holm is not None and p_holm < 1 - SETTINGS.confidence:
            status = "not preserved"
        gated[key] = replace(metric, status=status, p_holm=p_holm)
    return gated


def verdict_of(metrics: Iterable[GatedMetric]) -> Verdict:
    """Failed if a metric is not preserved, passed if all are; no metrics at all is not a pass."""
    statuses = {metric.status for metric in metrics}
    if "not preserved" in statuses:
        return "failed"
    return "passed" if statuses == {"preserved"} else "not enough data"


@dataclass(frozen=True, slots=True)
class GatedTask:
    """One task that both sides have, `before` and `after` being the folders of its evaluations.

    `left_out` counts the prompts that the model was trained on, or that are of one set with such a
    prompt; `sides` has the figures of both that a reader is told first.
    """

    before: str
    after: str
    prompts: int
    replies: int
    left_out: int
    objective: str
    drawn_differently: tuple[Difference, ...]
    metrics: Mapping[str, GatedMetric]
    presentation: Presentation
    sides: EntriesComparison

    def prompts_needed(self, metric: str) -> int | None:
        """About how many would show that the metric is kept, if nothing changed."""
        times = self.metrics[metric].times
        if times is None:
            return None
        needed = times * self.prompts
        # Rounded up to two significant digits: it is an estimate.
        step = int(10 ** max(0, math.floor(math.log10(max(needed, 1))) - 1))
        return math.ceil(needed / step) * step


@dataclass(frozen=True, slots=True)
class GateResult:
    """A gate between two sides; `missing` are tasks of one side alone, with the side's name."""

    before: str
    after: str
    tasks: Mapping[str, GatedTask]
    missing: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all tasks: a task that one side lacks is inconclusive."""
        verdict = verdict_of(m for task in self.tasks.values() for m in task.metrics.values())
        return "not enough data" if verdict == "passed" and self.missing else verdict
