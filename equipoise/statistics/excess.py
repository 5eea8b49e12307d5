"""Excess of a metric over its noise floor, with intervals that cover.

The largest of four means over the smallest is above 1 by noise alone, and a bootstrap adds the
noise a second time: a percentile interval of it never holds 1. Here a test is inverted instead.
The observed effect is scaled: at `scale` 0 it is gone, at 1 it is as observed, and at each scale
the metric has a sampling distribution, with the noise of permutations at 0 and that of resampled
clusters at 1. The interval has the scales at which the observed value is not too far out (DiCiccio
& Romano 1990, doi:10.2307/1403474: limits along a family through the estimate), the estimate that
at which it is the median. Shapes: K statistics, D draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from environments.measurement import Array, Metric, quotient
from equipoise.statistics.intervals import MAX_UNDEFINED, TIE, student_quantile

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
        """How much of the distribution is at or above, and below, and what the lower tail may be.

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
