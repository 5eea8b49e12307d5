"""The three fairness rewards, as pure functions on arrays.

Shapes: S sets, R races (or values of another attribute), G generations, P coordinates. Every
function returns the fairness term of the reward, [S, R, G], from which `environment.py` makes the
value. NaN marks a reply that is not parseable or has nothing to be compared with. GRPO subtracts
the mean of a prompt's generations, so the term differs from reply to reply: one that is constant
over a prompt's generations would cancel exactly.
"""

import numpy as np
from numpy.typing import NDArray

from environments.fairness.sets import MISSING, DecisionSets, Points, distances, invasiveness
from environments.fairness.words import Texts
from environments.measurement import quotient

Terms = NDArray[np.float64]


def distribution(sets: DecisionSets, reference: Points, texts: Texts | None = None) -> Terms:
    """The energy-distance reward: whole replies are to be distributed as the reference is.

    With d the distance of two replies (`sets.distances`), X' the reply's n - 1 parseable
    siblings and B the reference samples [S, N, P] of the same set, pooled over races:

        c mean d(x, X') - mean d(x, B)        c = (n - 1) / (n - 2)

    Averaged over the samples and without c, it is minus half the derivative of a squared energy
    distance (Szekely & Rizzo 2013, doi:10.1016/j.jspi.2013.03.018) with respect to the probability
    of x: it vanishes for every x when the distributions agree, so it does not reward collapsing to
    one reply. `sibling_correction` says why c is needed under GRPO. The other races' replies
    are not compared with: every race has the same reference, so races agree where it is reached.

    The distance has that of `texts` beside the levels, under the root. Without it training is free
    to write one race another rationale, and does.
    """
    parts = []
    for s, (points, valid) in enumerate(zip(sets.points, sets.valid, strict=True)):
        to_siblings, to_samples = texts.distances(s) if texts else (0.0, 0.0)
        siblings = valid[:, None, :] & ~np.eye(valid.shape[1], dtype=bool)
        within = _masked_mean(distances(points, points, to_siblings), siblings)
        within *= sibling_correction(valid.sum(axis=1))[:, None]
        sampled = reference[s, :, 0] != MISSING
        to_reference = _masked_mean(distances(points, reference[s], to_samples), sampled)
        parts.append(np.where(valid, within - to_reference, np.nan))
    return np.array(parts, dtype=np.float64).reshape(sets.valid.shape)


def sibling_correction(parseable: NDArray[np.int_]) -> NDArray[np.float64]:
    """Return the correction of sibling distances for GRPO's baseline: (n - 1) / (n - 2).

    A reply counts in its siblings' rewards as well, so the mean that GRPO subtracts depends on
    the reply itself. In the policy gradient that leaves 1 - 2/n of the distance to siblings but
    1 - 1/n of a distance to anything else. Uncorrected, the policy is paid for losing its spread,
    the more the fewer its generations. With one or two parseable generations nothing is left to
    correct: 1.
    """
    return np.where(parseable > 2, (parseable - 1) / np.maximum(parseable - 2, 1), 1.0)


def distance(sets: DecisionSets, reference: Points) -> Terms:
    """Minus the distance of a reply's invasiveness to the mean of the race-blind reference.

    It asks for the one decision nearest to a mean, so the policy loses its spread and each case
    drifts to the nearest whole decision; kept for comparison.
    """
    return -np.abs(sets.invasiveness - mean_invasiveness(reference, sets.scored)[:, None, None])


def group_mean(sets: DecisionSets, reference: Points) -> Terms:  # noqa: ARG001
    """The set's mean invasiveness minus the reply's.

    The rule is one-directional: a less invasive reply always scores more, for any patient, so
    training drives every decision towards no treatment. Fair, and useless as medicine;
    kept because it is the rule that the idea started from, and to show the failure.
    """
    own = sets.invasiveness
    total = np.nansum(own, axis=(1, 2), keepdims=True)
    return np.asarray(quotient(total, sets.valid.sum(axis=(1, 2), keepdims=True)) - own)


def mean_invasiveness(points: Points, scored: int) -> NDArray[np.float64]:
    """Mean invasiveness of the parseable samples [S, N, P] of each set, [S]."""
    values = invasiveness(points, scored)
    return quotient(np.nansum(values, axis=1), np.isfinite(values).sum(axis=1))


def _masked_mean(values: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the last axis where `mask` holds; NaN where it holds nowhere."""
    mask = np.broadcast_to(mask, values.shape)
    total = values.sum(axis=-1, where=mask, dtype=np.float64)
    return quotient(total, mask.sum(axis=-1))
