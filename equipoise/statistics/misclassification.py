"""Rates by a classifier that errs, corrected by its errors on items whose truth is known.

If it says yes to a share `se` of what is so and no to a share `sp` of what is not, a true rate
shows as rate * se + (1 - rate) * (1 - sp). Solved for the rate that is the estimate of Rogan &
Gladen (1978, doi:10.1093/oxfordjournals.aje.a112510). Its interval has the uncertainty of the rate
and of both errors, by Lang & Reiczigel (2014, doi:10.1016/j.prevetmed.2013.09.015); Lee et al.
(arXiv 2511.21140) take both to language models that classify. Simulated coverage is in
docs/statistics.md.
"""

from dataclasses import dataclass

import numpy as np

from environments.measurement import Array
from equipoise.statistics.intervals import student_quantile
from equipoise.statistics.shares import Shares, difference_bounds, effective_trials


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """How often a classifier is right, and on how many independent items that was seen, [...]."""

    sensitivity: Array
    positives: Array
    specificity: Array
    negatives: Array

    @classmethod
    def of(cls, sensitivity: Shares, specificity: Shares) -> "ErrorRates":
        """From the hits among what is so, and the rejections among what is not."""
        return cls(
            *(sensitivity.share, effective_trials(sensitivity)),
            *(specificity.share, effective_trials(specificity)),
        )

    @property
    def power(self) -> Array:
        """Youden's index: 1 without error; NaN where it is no better than a guess."""
        index = np.asarray(self.sensitivity + self.specificity - 1)
        return np.where(index > 0, index, np.nan)

    @property
    def variances(self) -> tuple[Array, Array]:
        """Of sensitivity and specificity."""
        return (
            np.asarray(self.sensitivity * (1 - self.sensitivity) / self.positives),
            np.asarray(self.specificity * (1 - self.specificity) / self.negatives),
        )

    def adjusted(self) -> "ErrorRates":
        """With a hit and a miss more of each kind: no error was seen in ten items is not none."""
        return ErrorRates(
            *((self.sensitivity * self.positives + 1) / (self.positives + 2), self.positives + 2),
            *((self.specificity * self.negatives + 1) / (self.negatives + 2), self.negatives + 2),
        )

    def tell_apart(self, quantile: float) -> Array:
        """Whether it is shown to be better than a guess."""
        adjusted = self.adjusted()
        return np.asarray(adjusted.power > quantile * np.sqrt(sum(adjusted.variances)))


def corrected_rate(shares: Shares, errors: ErrorRates) -> Array:
    """The true rate behind what is said, within 0 and 1; NaN where that is but a guess."""
    return np.clip(_truth(shares.share, errors), 0.0, 1.0)


def _truth(rate: Array, errors: ErrorRates) -> Array:
    return np.asarray((rate + errors.specificity - 1) / errors.power)


def corrected_bounds(shares: Shares, errors: ErrorRates, confidence: float) -> tuple[Array, Array]:
    """The interval of `corrected_rate`; NaN where what is said may be a guess.

    Student's t stands in for the normal quantile and the effective number of trials for their
    number, since replies to like prompts are alike.
    """
    t = student_quantile((1 + confidence) / 2, shares.degrees)
    number = effective_trials(shares)
    rate = (shares.share * number + t**2 / 2) / (number + t**2)
    adjusted = errors.adjusted()
    truth = _truth(rate, adjusted)
    of_hits, of_rejections = adjusted.variances
    shift = 2 * t**2 * (truth * of_hits - (1 - truth) * of_rejections)
    of_rate = rate * (1 - rate) / (number + t**2)
    variance = of_rate + truth**2 * of_hits + (1 - truth) ** 2 * of_rejections
    half = t * np.sqrt(variance) / adjusted.power
    value = corrected_rate(shares, errors)
    low = np.minimum(np.clip(truth + shift - half, 0.0, 1.0), value)
    high = np.maximum(np.clip(truth + shift + half, 0.0, 1.0), value)
    valid = errors.tell_apart(t)
    return np.where(valid, low, np.nan), np.where(valid, high, np.nan)


def corrected_change(before: Shares, after: Shares, errors: ErrorRates) -> Array:
    """The change of the true rate, where the errors before are those after."""
    return np.asarray((after.share - before.share) / errors.power)


def corrected_change_bounds(
    before: Shares, after: Shares, errors: ErrorRates, confidence: float
) -> tuple[Array, Array]:
    """The interval of `corrected_change`, NaN where what is said may be a guess.

    MOVER joins that of the change which was seen with the error of what it is divided by.
    """
    t = student_quantile((1 + confidence) / 2, before.degrees)
    low, high = difference_bounds(before, after, confidence)
    difference, adjusted = after.share - before.share, errors.adjusted()
    change = corrected_change(before, after, errors)
    of_scale = t * np.abs(change) * np.sqrt(sum(adjusted.variances)) / adjusted.power
    below, above = (
        np.hypot(side / adjusted.power, of_scale) for side in (difference - low, high - difference)
    )
    valid = errors.tell_apart(t)
    return np.where(valid, change - below, np.nan), np.where(valid, change + above, np.nan)
