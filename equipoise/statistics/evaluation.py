"""evaluation.json: every metric of one measurement with its uncertainty, and the signal in it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from environments.base import UNPARSEABLE, FailureKind, Rollout, Score
from environments.measurement import Array, Measurement, Metric
from environments.presentation import Presentation
from equipoise.statistics.intervals import (
    Clusters,
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

SCHEMA = 1

#: Section, key within it, name; the headline metrics have section "metrics" and key "".
Address = tuple[str, str, str]
Figures = dict[str, float | None]

_HEADLINES = "metrics"


def evaluation_dict(
    measurement: Measurement,
    *,
    task: str,
    split: str,
    model: str,
    n_prompts: int,
    n_rollouts: int,
    failures: Mapping[FailureKind, int],
    settings: StatisticsSettings,
    presentation: Presentation,
) -> dict[str, Any]:
    """The content of evaluation.json; null is a figure that is not defined.

    Each figure has an interval over clusters: Wilson's of a share, else the bootstrap's. One with a
    floor has the median and the upper bound of the null and the one-sided p in place of it: noise
    biases it and resampling adds the noise again, so an interval of the largest of four means over
    the smallest never contains 1. An unbiased one has both. In a breakdown the p are Holm-corrected
    over the figures of their section.
    """
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "task": task,
        "split": split,
        "model": model,
        "n_prompts": n_prompts,
        "n_rollouts": n_rollouts,
        "n_failed": sum(failures.values()),
        "failures": dict(failures),
        "confidence": settings.confidence,
        "presentation": presentation.to_json(),
        _HEADLINES: {},
    }
    figures = _figures(measurement, settings)
    for section in measurement.breakdowns:
        result[section] = {}
        _add_holm({address: figure for address, figure in figures.items() if address[0] == section})
    for (section, key, name), figure in figures.items():
        target = result[section] if section == _HEADLINES else result[section].setdefault(key, {})
        target[name] = figure
    return result


def headline_figures(measurement: Measurement, settings: StatisticsSettings) -> dict[str, Figures]:
    """The headline metrics alone, each with its interval."""
    return figures_by_section(replace(measurement, breakdowns={}), settings)[0]


def figures_by_section(
    measurement: Measurement, settings: StatisticsSettings
) -> tuple[dict[str, Figures], dict[str, dict[str, dict[str, Figures]]]]:
    """Return the headline metrics, and section, key and metric of every breakdown."""
    headlines: dict[str, Figures] = {}
    sections: dict[str, dict[str, dict[str, Figures]]] = {}
    for (section, key, name), figure in _figures(measurement, settings).items():
        target = headlines
        if section != _HEADLINES:
            target = sections.setdefault(section, {}).setdefault(key, {})
        target[name] = figure
    return headlines, sections


def json_number(value: float | None) -> float | None:
    """A finite number or None: JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _figures(measurement: Measurement, settings: StatisticsSettings) -> dict[Address, Figures]:
    metrics = {(_HEADLINES, "", name): metric for name, metric in measurement.metrics.items()}
    for section, keys in measurement.breakdowns.items():
        for key, of_key in keys.items():
            metrics |= {(section, key, name): metric for name, metric in of_key.items()}
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    null = _null_draws(measurement, settings)
    resampled = {
        address: m for address, m in metrics.items() if not m.floor or m.unbiased or null is None
    }
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), resampled)
    figures = {}
    for address, metric in metrics.items():
        figure = _with_interval(metric, clusters, draws.get(address), settings.confidence)
        if metric.floor and null is not None:
            figure |= _floor_of(metric, clusters, null, settings.confidence)
        figures[address] = figure
    return figures


def _null_draws(measurement: Measurement, settings: StatisticsSettings) -> Array | None:
    """Total sums [D, K] under the null; None of a task without one."""
    if measurement.null_sums is None:
        return None
    null_rng = np.random.default_rng(settings.seed).spawn(2)[1]
    return measurement.null_sums(null_rng, settings.permutations)


def _with_interval(
    metric: Metric, clusters: Clusters, draws: Array | None, confidence: float
) -> Figures:
    value = json_number(float(metric.at(clusters.total)))
    bounds = None
    if value is not None and draws is not None:
        shares = Shares.of(metric, clusters.sums, clusters.strata)
        bounds = (
            interval(draws, confidence, clusters.degrees)
            if shares is None
            else Interval(*map(float, share_bounds(shares, confidence)))
        )
    return {
        "value": value,
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
    }


def _floor_of(metric: Metric, clusters: Clusters, null: Array, confidence: float) -> Figures:
    """The noise floor of a metric, and how likely noise is to reach the observed value."""
    noise = floor(float(metric.at(clusters.total)), metric.at(null), confidence)
    return {
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
    }


def _add_holm(figures: Mapping[Address, Figures]) -> None:
    """Add p_holm beside every p of one family."""
    tested = {
        address: p for address, figure in figures.items() if (p := figure.get("p")) is not None
    }
    adjusted = holm(tested)
    for address, figure in figures.items():
        if "p" in figure:
            figure["p_holm"] = adjusted.get(address)


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
    return LearningSignal(
        groups=len(several),
        tied=fmean(not values or max(values) - min(values) <= _TIED for values in compared),
        spread=fmean(pstdev(values) if values else 0.0 for values in compared),
        unreadable=fmean(unreadable),
        commonest=_commonest(rollouts, scores, broken=any(unreadable)),
    )


def _commonest(
    rollouts: Sequence[Rollout], scores: Sequence[Score], *, broken: bool
) -> tuple[Reply, ...]:
    """The commonest unreadable replies, or else the commonest of all."""
    replies = Counter(
        Reply(rollout.completion, score.evidence.get(UNPARSEABLE), score.value)
        for rollout, score in zip(rollouts, scores, strict=True)
        if not broken or UNPARSEABLE in score.evidence
    )
    return tuple(
        Reply(reply.text, reply.problem, reply.value, count)
        for reply, count in replies.most_common(_EXAMPLES)
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 1 else f"{share:.0%}"
