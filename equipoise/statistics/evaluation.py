"""Estimates of one measurement, every metric with its uncertainty, and the signal in rewards."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

import numpy as np

from environments.base import UNPARSEABLE, Rollout, Score
from environments.measurement import Array, Measurement, Metric
from equipoise.statistics.intervals import (
    Interval,
    Shares,
    StatisticsSettings,
    bootstrap_sums,
    floor,
    holm,
    interval,
    merge_clusters,
    metric_draws,
    share_bounds,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its interval, what sampling noise alone would give, and its p-values."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    floor_high: float | None = None
    p: float | None = None
    p_holm: float | None = None


#: By metric.
Estimates = Mapping[str, Estimate]
#: By section, key within it, and metric.
Breakdowns = Mapping[str, Mapping[str, Estimates]]


def estimates_of(
    measurement: Measurement, settings: StatisticsSettings
) -> tuple[dict[str, Estimate], Breakdowns]:
    """Estimate every metric and breakdown; None is a figure that is not defined.

    Each figure has an interval over clusters: Wilson's of a share, else the bootstrap's. One with a
    floor has the median and the upper bound of the null and the one-sided p in place of it: noise
    biases it and resampling adds the noise again, so an interval of the largest of four means over
    the smallest never contains 1. An unbiased one has both. In a breakdown the p are Holm-corrected
    over the figures of their section.
    """
    metrics = {("", "", name): metric for name, metric in measurement.metrics.items()}
    for section, keys in measurement.breakdowns.items():
        for key, of_key in keys.items():
            metrics |= {(section, key, name): metric for name, metric in of_key.items()}
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    null = None
    if measurement.null_sums is not None:
        null_rng = np.random.default_rng(settings.seed).spawn(2)[1]
        null = measurement.null_sums(null_rng, settings.permutations)
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(
        bootstrap_sums(clusters, settings.bootstrap_draws, rng),
        {a: m for a, m in metrics.items() if not m.floor or m.unbiased or null is None},
    )

    def estimate(metric: Metric, resampled: Array | None) -> Estimate:
        observed, bounds, noise = float(metric.at(clusters.total)), None, None
        if math.isfinite(observed) and resampled is not None:
            shares = Shares.of(metric, clusters.sums, clusters.strata)
            bounds = (
                interval(resampled, settings.confidence, clusters.degrees)
                if shares is None
                else Interval(*map(float, share_bounds(shares, settings.confidence)))
            )
        if metric.floor and null is not None:
            noise = floor(observed, metric.at(null), settings.confidence)
        low, high = (bounds.low, bounds.high) if bounds else (None, None)
        return Estimate(json_number(observed), low, high, *(noise or ()))

    estimates = {address: estimate(m, draws.get(address)) for address, m in metrics.items()}
    headlines = {name: estimates["", "", name] for name in measurement.metrics}
    breakdowns: dict[str, dict[str, dict[str, Estimate]]] = {}
    for section in measurement.breakdowns:
        of_section = {a: e for a, e in estimates.items() if a[0] == section}
        corrected = holm({a: e.p for a, e in of_section.items() if e.p is not None})
        breakdowns[section] = {}
        for address, e in of_section.items():
            _, key, name = address
            with_holm = replace(e, p_holm=corrected.get(address))
            breakdowns[section].setdefault(key, {})[name] = with_holm
    return headlines, breakdowns


def headline_figures(measurement: Measurement, settings: StatisticsSettings) -> dict[str, Estimate]:
    """Estimate the headline metrics alone."""
    return estimates_of(replace(measurement, breakdowns={}), settings)[0]


def json_number(value: float | None) -> float | None:
    """A finite number or None: JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


# --- learning signal ------------------------------------------------------------------------------
# GRPO compares the generations of one prompt. Where all score the same, their advantages are
# 0 and the prompt changes nothing. A model that never writes what the environment can read has no
# other prompts.

#: Shares from which on training is doubtful, though not in vain.
MANY_TIED, MANY_UNREADABLE = 0.9, 0.5
#: Rewards closer than this differ by rounding.
_TIED = 1e-9
_EXAMPLES, _EXAMPLE_CHARACTERS = 3, 160


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that occurs `count` times. `problem` is why it could not be read, if it was not."""

    text: str
    problem: str | None
    value: float | None
    count: int = 1

    def __str__(self) -> str:
        line = " ".join(self.text.split())
        excerpt = line[:_EXAMPLE_CHARACTERS] + ("..." if len(line) > _EXAMPLE_CHARACTERS else "")
        score = "not scored" if self.value is None else f"score {self.value:g}"
        return f"{self.count:,}x, {self.problem or score}: {excerpt!r}"


@dataclass(frozen=True, slots=True)
class LearningSignal:
    """Rewards of the frozen model's replies, as training compares them.

    A group is the generations of one prompt. `tied` is the share of `groups` whose rewards are all
    the same, `spread` the mean over groups of the standard deviation of their rewards, `unreadable`
    the share of all replies that the environment could not read. Where each prompt has but one
    generation `groups` is empty, and all of them are compared with each other.
    """

    groups: int
    tied: float
    spread: float
    unreadable: float
    commonest: tuple[Reply, ...] = ()

    @property
    def none(self) -> bool:
        return self.tied == 1.0 and (self.groups > 0 or self.unreadable == 1.0)

    @property
    def little(self) -> bool:
        return self.tied >= MANY_TIED or self.unreadable >= MANY_UNREADABLE

    def __str__(self) -> str:
        tied = "all generations score the same"
        where = f"in {_percent(self.tied)} of {self.groups:,} prompts {tied}, and within one"
        if not self.groups:
            where = f"{'' if self.tied else 'not '}{tied}, one for each prompt, and"
        return (
            f"{where} rewards spread by {self.spread:.3g}; "
            f"{_percent(self.unreadable)} of the replies could not be read"
        )


def learning_signal(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> LearningSignal:
    """Measure it on scored rollouts."""
    groups: dict[str, list[float]] = {}
    for rollout, score in zip(rollouts, scores, strict=True):
        if score.value is not None:
            groups.setdefault(rollout.prompt_id, []).append(score.value)
    several = [values for values in groups.values() if len(values) > 1]
    compared = several or [[value for values in groups.values() for value in values]]
    unreadable = [UNPARSEABLE in score.evidence for score in scores]
    # The unreadable replies, or else all.
    replies = Counter(
        Reply(rollout.completion, score.evidence.get(UNPARSEABLE), score.value)
        for rollout, score in zip(rollouts, scores, strict=True)
        if not any(unreadable) or UNPARSEABLE in score.evidence
    )
    return LearningSignal(
        groups=len(several),
        tied=fmean(not values or max(values) - min(values) <= _TIED for values in compared),
        spread=fmean(pstdev(values) if values else 0.0 for values in compared),
        unreadable=fmean(unreadable),
        commonest=tuple(replace(r, count=n) for r, n in replies.most_common(_EXAMPLES)),
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 1 else f"{share:.0%}"
