"""evaluation.json: every metric of one measurement with its uncertainty."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environments.base import FailureKind
from environments.measurement import Array, Measurement, Metric, quotient
from environments.presentation import Presentation
from equipoise.statistics.intervals import (
    MAX_UNDEFINED,
    TIE,
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
    student_quantile,
)

# --- excess ---------------------------------------------------------------------------------------
# Excess of a metric over its noise floor, with intervals that cover.
#
# The largest of four means over the smallest is above 1 by noise alone, and a bootstrap adds the
# noise a second time: a percentile interval of it never holds 1. Here a test is inverted instead.
# The observed effect is scaled: at `scale` 0 it is gone, at 1 it is as observed, and at each scale
# the metric has a sampling distribution, with the noise of permutations at 0 and that of resampled
# clusters at 1. The interval has the scales at which the observed value is not too far out
# (DiCiccio & Romano 1990, doi:10.2307/1403474: limits along a family through the estimate), the
# estimate that at which it is the median. Shapes: K statistics, D draws.


#: The metric at a scale, [D]: larger at larger scales.
Draws = Callable[[float], Array]
#: Halvings of a bracket, and the largest scale that is looked at.
_HALVINGS = 10
_LARGEST_SCALE = 2.0**12


@dataclass(frozen=True, slots=True)
class Scales:
    """By how much the observed effect may be scaled: the estimate and the interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Effect:
    """Sums [K] without the effect, what it adds to them, and both kinds of noise [D, K]."""

    null: Array
    effect: Array
    null_noise: Array
    noise: Array

    @classmethod
    def of(
        cls, total: Array, null_sums: Array, bootstrap_sums: Array, widening: float = 1.0
    ) -> "Effect":
        """From the observed sums [K] and draws of them [D, K] under the null and as observed.

        `widening` of the bootstrap's noise is what few clusters need, see `widening_for`.
        """
        null = null_sums.mean(axis=0)
        noise = (bootstrap_sums - total) * widening
        return cls(null, total - null, null_sums - null, noise)

    def truth(self, metric: Metric, scale: float) -> float:
        """The metric without noise at this scale."""
        with np.errstate(invalid="ignore"):  # an infinite scale of no effect
            return float(metric.at(self.null + scale * self.effect))

    def draws_of(self, metric: Metric) -> Draws:
        """The metric with noise, [D], as a function of the scale.

        Only the columns that the metric depends on are drawn: it is drawn at some forty scales.
        """
        observed = self.null + self.effect
        columns = _columns_used(metric, observed)
        null, effect = self.null[columns], self.effect[columns]
        null_noise, noise = self.null_noise[:, columns], self.noise[:, columns]
        sums = np.tile(observed, (len(noise), 1))

        def at(scale: float) -> Array:
            share = min(scale, 1.0)
            drawn = math.sqrt(share) * noise + math.sqrt(1 - share) * null_noise
            sums[:, columns] = drawn + (null + scale * effect)
            return np.array(metric.at(sums))

        return at


def _columns_used(metric: Metric, observed: Array) -> NDArray[np.intp]:
    """The columns of the sums [K] without which the metric is another.

    Each is left out, made huge and made tiny: a largest or smallest of many shows no other change.
    """
    value = metric.at(observed)
    mask = np.zeros(len(observed), dtype=np.bool_)
    for changed in (np.full_like(observed, np.nan), 1e6 * (observed + 1), 1e-6 * observed):
        variants = np.tile(observed, (len(observed), 1))
        np.fill_diagonal(variants, changed)
        mask |= metric.at(variants) != value
    return np.flatnonzero(mask)


@dataclass(frozen=True, slots=True)
class Excess:
    """A metric without noise, above its value without an effect."""

    value: float
    low: float
    high: float


def excess(effect: Effect, metric: Metric, confidence: float) -> Excess | None:
    """The median-unbiased estimate and the interval; None where the metric is not defined."""
    observed = effect.truth(metric, 1.0)
    scales = invert(effect.draws_of(metric), observed, confidence)
    if scales is None:
        return None
    nothing = effect.truth(metric, 0.0)
    ends = (scales.middle, scales.low, scales.high)
    values = [effect.truth(metric, scale) - nothing for scale in ends]
    return Excess(*values) if all(map(math.isfinite, values)) else None


def invert(draws: Draws, observed: float, confidence: float) -> Scales | None:
    """The scales at which the observed value is not too far out.

    Each scale is tested at level 1 - confidence. The level is split evenly between the two tails
    where an effect is clear; at scale 0 all of it is the upper tail's, for no value is too small
    there. So the interval excludes 0 exactly where the one-sided test of the floor rejects, and it
    covers as often at 0 as elsewhere (Feldman & Cousins 1998, doi:10.1103/PhysRevD.57.3873, have
    the same from likelihoods). In between the lower tail's part is what the distribution has moved
    away from the null's median.
    """
    without = draws(0.0)
    if math.isnan(observed) or np.mean(~np.isfinite(without)) > MAX_UNDEFINED:
        return None
    median = float(np.nanmedian(without))
    level = 1 - confidence

    @cache  # the three searches begin at the same scales
    def tails(scale: float) -> tuple[float, float, float]:
        """Shares of the distribution at or above, and below, and what the lower tail may be.

        What is not defined is above: the effect has left what the metric is defined for.
        """
        values = draws(scale)
        above = 1 - float(np.mean(values < observed - TIE))
        below = float(np.mean(values <= observed + TIE))
        unmoved = float(np.mean(values <= median + TIE))
        return above, below, level / 2 * max(0.0, 1 - 2 * unmoved)

    def too_small(scale: float) -> bool:
        above, _, lower_tail = tails(scale)
        return above <= level - lower_tail

    def not_too_large(scale: float) -> bool:
        _, below, lower_tail = tails(scale)
        return below > lower_tail

    middle = _largest(lambda scale: tails(scale)[0] < 0.5)
    low, high = _largest(too_small), _largest(not_too_large)
    return Scales(middle, min(low, middle), max(high, middle))


def _largest(holds: Callable[[float], bool]) -> float:
    """Find the scale up to which a condition holds; infinite where it always does."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
        if high > _LARGEST_SCALE:
            return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def excess_cut(before: Effect, after: Effect, metric: Metric, confidence: float) -> Excess | None:
    """The share of the excess before that is gone after; 1 is all of it, below 0 is more.

    Both effects have the noise of the same resampled clusters. The effect after is scaled, the one
    before is as observed. None where the excess before is not clearly above 0.
    """
    first, second = (excess(effect, metric, confidence) for effect in (before, after))
    if first is None or second is None or first.low <= 0:
        return None
    bases = before.truth(metric, 0.0), after.truth(metric, 0.0)
    excess_draws = before.draws_of(metric)(1.0) - bases[0]
    excess_before = before.truth(metric, 1.0) - bases[0]
    draws = after.draws_of(metric)

    def relative(scale: float) -> Array:
        return quotient(draws(scale) - bases[1], excess_draws)

    scales = invert(relative, (after.truth(metric, 1.0) - bases[1]) / excess_before, confidence)
    if scales is None:
        return None
    value = 1 - second.value / first.value
    low, high = (
        1 - (after.truth(metric, scale) - bases[1]) / excess_before
        for scale in (scales.high, scales.low)
    )
    return Excess(value, min(low, value), max(high, value))


def widening_for(degrees: int, confidence: float) -> float:
    """Student's quantile over that of the normal distribution, as in `statistics.interval`."""
    upper = (1 + confidence) / 2
    return student_quantile(upper, degrees) / student_quantile(upper, math.inf)


# --- evaluation -----------------------------------------------------------------------------------


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
    floor also has the median and the upper bound of the null, the one-sided p, and what it exceeds
    its null by without noise; its `low` and `high` are of `without_noise`, the estimate of the
    metric without it. In a breakdown the p are Holm-corrected over the figures of their section.
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
    return {
        name: figure
        for (section, _, name), figure in _figures(measurement, settings).items()
        if section == _HEADLINES
    }


def json_number(value: float | None) -> float | None:
    """A finite number or None: JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _figures(measurement: Measurement, settings: StatisticsSettings) -> dict[Address, Figures]:
    metrics = {(_HEADLINES, "", name): metric for name, metric in measurement.metrics.items()}
    for section, keys in measurement.breakdowns.items():
        for key, of_key in keys.items():
            metrics |= {(section, key, name): metric for name, metric in of_key.items()}
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    null = null_draws_of(measurement, settings)
    resampled = {
        address: m for address, m in metrics.items() if not m.floor or m.unbiased or null is None
    }
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), resampled)
    of_null = None if null is None else effect_of(clusters, null, settings)
    figures = {}
    for address, metric in metrics.items():
        effect = of_null if metric.floor else None
        if address in draws:
            figures[address] = _with_interval(metric, clusters, draws[address], settings.confidence)
            if effect is not None:
                figures[address] |= _beside_floor(
                    metric, effect, settings.confidence, figures[address]
                )
        elif effect is not None:
            figures[address] = _with_floor(metric, effect, settings.confidence)
    return figures


def null_draws_of(measurement: Measurement, settings: StatisticsSettings) -> Array | None:
    """Total sums [D, K] under the null; None of a task without one."""
    if measurement.null_sums is None:
        return None
    null_rng = np.random.default_rng(settings.seed).spawn(2)[1]
    return measurement.null_sums(null_rng, settings.permutations)


def effect_of(clusters: Clusters, null: Array, settings: StatisticsSettings) -> Effect:
    """The observed effect with both kinds of noise, as many draws of each."""
    rng = np.random.default_rng(settings.seed).spawn(2)[0]
    draws = np.concatenate(list(bootstrap_sums(clusters, len(null), rng)))
    widening = widening_for(clusters.degrees, settings.confidence)
    return Effect.of(clusters.total, null, draws, widening)


def _with_interval(metric: Metric, clusters: Clusters, draws: Array, confidence: float) -> Figures:
    value = json_number(float(metric.at(clusters.total)))
    bounds = None
    if value is not None:
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


def _beside_floor(metric: Metric, effect: Effect, confidence: float, figures: Figures) -> Figures:
    """The noise of a metric from which none need be taken off: what it exceeds is what it is."""
    noise = floor(effect.truth(metric, 1.0), effect.draws_of(metric)(0.0), confidence)
    return {
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
        "excess": figures["value"],
        "excess_low": figures["low"],
        "excess_high": figures["high"],
    }


def _with_floor(metric: Metric, effect: Effect, confidence: float) -> Figures:
    """The metric as it is, with its noise; the estimate and the interval without it, the excess.

    `low` to `high` is of `without_noise`, which is the null and the excess.
    """
    value = effect.truth(metric, 1.0)
    noise = floor(value, effect.draws_of(metric)(0.0), confidence)
    estimate = excess(effect, metric, confidence) if noise else None
    equal = effect.truth(metric, 0.0)
    return {
        "value": json_number(value),
        "without_noise": equal + estimate.value if estimate else None,
        "low": equal + estimate.low if estimate else None,
        "high": equal + estimate.high if estimate else None,
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
        "excess": estimate.value if estimate else None,
        "excess_low": estimate.low if estimate else None,
        "excess_high": estimate.high if estimate else None,
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
