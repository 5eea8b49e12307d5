"""The three fairness rewards, as pure functions on arrays.

Shapes: S sets, R races (or values of another attribute), G generations, P coordinates. Every
function returns the two terms of the reward, [S, R, G] each, from which `environment.py` makes the
value: the counterfactual term compares a reply with the other races of its set, the reference term
with the race-blind reference of the frozen model. NaN marks a reply that is not parseable or has
nothing to be compared with. GRPO subtracts the mean of a prompt's generations, so every term
differs from reply to reply: one that is constant over a prompt's generations would cancel exactly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from environments.fairness.sets import MISSING, DecisionSets, Points, distances, invasiveness
from environments.measurement import quotient

Terms = NDArray[np.float64]

#: Distances between replies that are held in memory at once (8 MB).
_PAIRS_AT_ONCE = 2**21


@dataclass(frozen=True, slots=True)
class FairnessTerms:
    """Both terms of a fairness reward, [S, R, G] each, before their weights."""

    counterfactual: Terms
    reference: Terms


def distribution(sets: DecisionSets, reference: Points) -> FairnessTerms:
    """The energy-distance reward: whole decisions are to be distributed alike.

    With d the distance of two decisions (`sets.distances`), X' the reply's n - 1 parseable
    siblings, O the replies for the other races and B the reference samples [S, N, P] of the same
    set:

        counterfactual = c mean d(x, X') - mean d(x, O)
        reference      = c mean d(x, X') - mean d(x, B)        c = (n - 1) / (n - 2)

    Averaged over the samples and without c, each is minus half the derivative of a squared energy
    distance (Szekely & Rizzo 2013, doi:10.1016/j.jspi.2013.03.018) with respect to the probability
    of x: both vanish for every x when the distributions agree, so neither rewards collapsing to
    one decision. `sibling_correction` says why c is needed under GRPO.
    """
    s, r, g = sets.valid.shape
    size = max(1, _PAIRS_AT_ONCE // max(1, r * g * max(r * g, reference.shape[1])))
    rows = [slice(first, first + size) for first in range(0, s, size)]
    parts = [_distribution(sets.points[row], sets.valid[row], reference[row]) for row in rows]
    return FairnessTerms(*(np.concatenate(terms) for terms in zip(*parts, strict=True)))


def _distribution(
    points: Points, valid: NDArray[np.bool_], reference: Points
) -> tuple[Terms, Terms]:
    """Both terms of a few sets, from points [S, R, G, P] and which of them are parseable."""
    s, r, g = valid.shape
    flat, valid = points.reshape(s, r * g, -1), valid.reshape(s, r * g)
    to_each_other = distances(flat, flat)
    race = np.repeat(np.arange(r), g)
    same_race = race[:, None] == race[None, :]
    siblings = same_race & ~np.eye(r * g, dtype=bool)
    within = _masked_mean(to_each_other, valid[:, None, :] & siblings)
    within *= np.repeat(sibling_correction(valid.reshape(s, r, g).sum(axis=2)), g, axis=1)
    to_others = _masked_mean(to_each_other, valid[:, None, :] & ~same_race)
    sampled = (reference[..., 0] != MISSING)[:, None, :]
    to_reference = _masked_mean(distances(flat, reference), sampled)
    terms = np.where(valid, [within - to_others, within - to_reference], np.nan)
    return terms[0].reshape(s, r, g), terms[1].reshape(s, r, g)


def sibling_correction(parseable: NDArray[np.int_]) -> NDArray[np.float64]:
    """Return the correction of sibling distances for GRPO's baseline: (n - 1) / (n - 2).

    A reply counts in its siblings' rewards as well, so the mean that GRPO subtracts depends on
    the reply itself. In the policy gradient that leaves 1 - 2/n of the distance to siblings but
    1 - 1/n of a distance to anything else. Uncorrected, the policy is paid for losing its spread,
    the more the fewer its generations. With one or two parseable generations nothing is left to
    correct: 1.
    """
    return np.where(parseable > 2, (parseable - 1) / np.maximum(parseable - 2, 1), 1.0)


def distance(sets: DecisionSets, reference: Points) -> FairnessTerms:
    """Minus the distance of a reply's invasiveness to two means.

        counterfactual = -|invasiveness - mean over the other races of the set|
        reference      = -|invasiveness - mean over the race-blind reference|

    It asks for the one decision nearest to a mean, so the policy loses its spread and each case
    drifts to the nearest whole decision; kept for comparison.
    """
    own = sets.invasiveness
    count = sets.valid.sum(axis=2)
    total = np.nansum(own, axis=2)
    others_count = count.sum(axis=1, keepdims=True) - count
    others_total = total.sum(axis=1, keepdims=True) - total
    others_mean = quotient(others_total, others_count)[..., None]
    anchor = mean_invasiveness(reference, sets.scored)[:, None, None]
    return FairnessTerms(-np.abs(own - others_mean), -np.abs(own - anchor))


def group_mean(sets: DecisionSets, reference: Points) -> FairnessTerms:  # noqa: ARG001
    """Reward replies below the set's mean invasiveness, penalise replies above it.

        counterfactual = mean over the whole set - invasiveness;    reference = 0

    The rule is one-directional: a less invasive reply always scores more, for any patient, so
    training drives every decision towards no treatment. Fair, and useless as medicine;
    kept because it is the rule that the idea started from, and to show the failure.
    """
    own = sets.invasiveness
    total = np.nansum(own, axis=(1, 2), keepdims=True)
    mean = quotient(total, sets.valid.sum(axis=(1, 2), keepdims=True))
    return FairnessTerms(mean - own, np.where(sets.valid, 0.0, np.nan))


def mean_invasiveness(points: Points, scored: int) -> NDArray[np.float64]:
    """Mean invasiveness of the parseable samples [S, N, P] of each set, [S]."""
    values = invasiveness(points, scored)
    return quotient(np.nansum(values, axis=1), np.isfinite(values).sum(axis=1))


def _masked_mean(values: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the last axis where `mask` holds; NaN where it holds nowhere."""
    mask = np.broadcast_to(mask, values.shape)
    total = values.sum(axis=-1, where=mask, dtype=np.float64)
    return quotient(total, mask.sum(axis=-1))
