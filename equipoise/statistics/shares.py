"""Intervals and a paired test of shares: means of values from 0 to 1 in clusters.

A yes or no that is rare, or always yes, has no spread to resample: a bootstrap of it ends at what
was seen, and a rate of 1 has an interval from 1 to 1. Wilson's score interval does not. All
functions are of sums over values in the last axis, clusters: `hits` [..., C] of `trials` [..., C].
Simulated coverage is in docs/statistics.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from environments.measurement import Array, Direction, Metric, quotient
from equipoise.statistics.intervals import TIE, student_quantile, student_tail

#: The correlation within clusters that is assumed where the data say nothing of it.
_ASSUMED_CORRELATION = 0.5
#: How many changes are assumed at least where none was seen: the rule of three (Hanley &
#: Lippman-Hand 1983, doi:10.1001/jama.1983.03330370053031).
_ASSUMED_CHANGES = 3.0
#: A search for a p ends here: no p is told apart from 0 beyond it.
_LARGEST_T, _HALVINGS = 40.0, 30
#: Swapped signs held in memory at once (8 MB).
_SIGNS_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class Shares:
    """Hits of trials in clusters [..., C], and the number of each cluster's stratum [C]."""

    hits: Array
    trials: Array
    strata: NDArray[np.intp]

    @classmethod
    def of(cls, metric: Metric, sums: Array, strata: NDArray[np.intp]) -> "Shares | None":
        """A metric that is a share, from the sums [C, K]; None for another and for one cluster."""
        if metric.trials is None or len(sums) < 2:
            return None
        trials = np.asarray(metric.trials(sums), dtype=np.float64)
        return cls(np.where(trials > 0, metric.at(sums), 0.0) * trials, trials, strata)

    @property
    def share(self) -> Array:
        """All hits of all trials, [...]."""
        return quotient(self.hits.sum(axis=-1), self.trials.sum(axis=-1))

    @property
    def degrees(self) -> int:
        """Degrees of freedom of a variance between clusters: clusters less strata."""
        return int(self.hits.shape[-1] - len(np.unique(self.strata)))

    @property
    def residuals(self) -> Array:
        """Each cluster's contribution to the share's error, [..., C]; they sum to 0 per stratum.

        The linearised ratio estimate: (hits - share * trials) / all trials.
        """
        total = self.trials.sum(axis=-1, keepdims=True)
        contributions = quotient(self.hits - self.share[..., None] * self.trials, total)
        centred = np.empty_like(contributions)
        for stratum in np.unique(self.strata):
            members = self.strata == stratum
            n = int(members.sum())
            part = contributions[..., members]
            deviations = part - part.mean(axis=-1, keepdims=True)
            centred[..., members] = deviations * np.sqrt(n / (n - 1))
        return centred


def share_bounds(shares: Shares, confidence: float) -> tuple[Array, Array]:
    """Wilson's interval (1927) of the effective number of trials, with the quantile of Student's t.

    The effective number is that of the trials over the design effect (Kish 1965): the variance
    between clusters over that of as many independent trials. Its estimate is shrunk, with the
    weight of one cluster that is not all hits or all misses, to that of a correlation of 1/2: two
    hits in one of two clusters say little of how clusters differ. NaN without trials.
    """
    return _wilson(shares, _design_effect(shares), _quantile(shares, confidence))


def _quantile(shares: Shares, confidence: float) -> float:
    return student_quantile((1 + confidence) / 2, shares.degrees)


def _wilson(shares: Shares, design_effect: Array, t: float) -> tuple[Array, Array]:
    share, effective = shares.share, quotient(shares.trials.sum(axis=-1), design_effect)
    centre = (share + t**2 / (2 * effective)) / (1 + t**2 / effective)
    spread = share * (1 - share) / effective + (t / effective) ** 2 / 4
    half = t / (1 + t**2 / effective) * np.sqrt(np.maximum(spread, 0.0))
    return np.clip(centre - half, 0.0, share), np.clip(centre + half, share, 1.0)


def effective_trials(shares: Shares) -> Array:
    """The number of independent trials that would say as much, see `share_bounds`."""
    return quotient(shares.trials.sum(axis=-1), _design_effect(shares))


def _design_effect(shares: Shares) -> Array:
    estimate = np.nan_to_num(quotient((shares.residuals**2).sum(axis=-1), _independent(shares)))
    mixed = np.minimum((shares.hits > 0).sum(axis=-1), (shares.hits < shares.trials).sum(axis=-1))
    return np.asarray((mixed * estimate + _assumed_effect(shares)) / (mixed + 1))


def _independent(shares: Shares) -> Array:
    """The variance of the share, were its trials independent."""
    return quotient(shares.share * (1 - shares.share), shares.trials.sum(axis=-1))


def _assumed_effect(shares: Shares) -> Array:
    size = quotient((shares.trials**2).sum(axis=-1), shares.trials.sum(axis=-1))
    return np.asarray(1 + np.maximum(size - 1, 0.0) * _ASSUMED_CORRELATION)


def difference_bounds(before: Shares, after: Shares, confidence: float) -> tuple[Array, Array]:
    """The interval of after minus before in the same clusters, from those of both shares.

    MOVER, the method of variance estimates recovery (Newcombe 1998, method 10; Zou & Donner 2008,
    doi:10.1002/sim.3095). What the clusters have in common goes out of a difference, so both
    shares have the design effect of the change.
    """
    return _difference_bounds(before, after, _quantile(before, confidence))


def _difference_bounds(before: Shares, after: Shares, t: float) -> tuple[Array, Array]:
    effect = _effect_of_change(before, after)
    (low_b, high_b), (low_a, high_a) = (_wilson(s, effect, t) for s in (before, after))
    difference = after.share - before.share
    low = difference - np.hypot(after.share - low_a, high_b - before.share)
    return low, difference + np.hypot(high_a - after.share, before.share - low_b)


def _effect_of_change(before: Shares, after: Shares) -> Array:
    """The variance of the change over that of as many independent trials.

    The estimate is shrunk as that of one share is, with the weight of the hits that would have
    changed in independent trials: where hardly any would have, it says little that hardly any did,
    and where a hundred would have, that none did says that the two go together. The assumption has
    the weight of one cluster's, and of three hits at least: none in n may be 3 / n of all.
    """
    variance = ((after.residuals - before.residuals) ** 2).sum(axis=-1)
    estimate = np.nan_to_num(quotient(variance, _independent(before) + _independent(after)))
    assumed = (_assumed_effect(before) + _assumed_effect(after)) / 2
    prior_weight = np.maximum(1.0, _ASSUMED_CHANGES / assumed)
    weight = sum(_independent(s) * s.trials.sum(axis=-1) ** 2 for s in (before, after))
    weight = np.nan_to_num(weight)
    return np.asarray((weight * estimate + prior_weight * assumed) / (weight + prior_weight))


def relative_bounds(before: Shares, after: Shares, confidence: float) -> tuple[Array, Array]:
    """The interval of (after - before) / before in the same clusters; NaN where it has no end.

    MOVER for a ratio: its bounds are where after - ratio * before may just be 0 (Donner & Zou
    2012, doi:10.1177/0962280210383085).
    """
    return _relative_bounds(before, after, _quantile(before, confidence))


def _relative_bounds(before: Shares, after: Shares, t: float) -> tuple[Array, Array]:
    (low_b, high_b), (low_a, high_a) = (_wilson(s, _design_effect(s), t) for s in (before, after))
    correlation = correlation_of(before, after)

    def root(side: int, away: Array, across: Array) -> Array:
        square = before.share**2 - across**2
        linear = after.share * before.share - correlation * away * across
        constant = after.share**2 - away**2
        discriminant = np.sqrt(np.maximum(linear**2 - square * constant, 0.0))
        return quotient(linear + side * discriminant, square)

    low = root(-1, after.share - low_a, high_b - before.share)
    high = root(+1, high_a - after.share, before.share - low_b)
    return np.maximum(low, 0.0) - 1, high - 1


def beyond_p(
    before: Shares,
    after: Shares,
    margin: float,
    better: Direction | None,
    *,
    relative: bool = False,
) -> float:
    """One-sided p of a change that is within a margin: the level at which its interval leaves it.

    By halving; 1 where the change itself is within the margin, or not defined.
    """
    bounds = _relative_bounds if relative else _difference_bounds

    def outside(t: float) -> bool:
        low, high = bounds(before, after, t)
        return bool((better != "higher" and low > margin) or (better != "lower" and high < -margin))

    within, beyond = _LARGEST_T, 0.0
    if not outside(beyond):
        return 1.0
    for _ in range(_HALVINGS):
        middle = (within + beyond) / 2
        within, beyond = (within, middle) if outside(middle) else (middle, beyond)
    return student_tail(beyond, before.degrees)


def correlation_of(before: Shares, after: Shares) -> Array:
    """Of the errors of the two shares, from what their clusters contribute; 0 without spread."""
    first, second = before.residuals, after.residuals
    scale = np.sqrt((first**2).sum(axis=-1) * (second**2).sum(axis=-1))
    return np.nan_to_num(quotient((first * second).sum(axis=-1), scale))


def swap_p(before: Shares, after: Shares, draws: int, rng: np.random.Generator) -> float:
    """Two-sided p of no difference between two shares of the same clusters [C].

    If training changed nothing, what a cluster showed before and after could as well be swapped.
    With one yes or no in a cluster this is McNemar's exact test, whose discordant pairs go either
    way.
    p = (1 + draws at least as far apart) / (1 + draws) (Phipson & Smyth 2010).
    """
    first, second = (np.stack([s.hits, s.trials], axis=-1) for s in (before, after))
    middle, half = (first + second).sum(axis=0) / 2, (second - first) / 2
    observed = abs(after.share - before.share)
    reached = 0
    size = max(1, _SIGNS_AT_ONCE // len(half))
    for start in range(0, draws, size):
        signs = rng.choice([-1.0, 1.0], size=(min(size, draws - start), len(half)))
        moved = signs @ half
        swapped = _share_of(middle + moved) - _share_of(middle - moved)
        reached += int(np.count_nonzero(np.abs(swapped) >= observed - TIE))
    return (1 + reached) / (1 + draws)


def _share_of(sums: Array) -> Array:
    return quotient(sums[..., 0], sums[..., 1])
