"""How often each level was chosen, and how far two sets of decisions are apart by that.

Shapes as in metrics.py: S sets, R values of the attribute, G generations, F scored fields, L levels
of all scored fields together. Counts are [..., L].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environments.fairness.design import Design
from environments.fairness.sets import Levels
from environments.measurement import Array, quotient

Counts = NDArray[Any]  # unsigned integers or whole floats


@dataclass(frozen=True)
class LevelTable:
    """A design's levels as columns of counts."""

    design: Design

    @property
    def values(self) -> int:
        """R, of the attribute."""
        return len(self.design.values)

    @property
    def fields(self) -> int:
        """F, the scored fields."""
        return len(self.design.form.scored)

    @cached_property
    def field_of(self) -> NDArray[np.intp]:
        """The field of each level, [L]."""
        return np.repeat(np.arange(self.fields), [len(v) for v in self.design.form.scored.values()])

    @cached_property
    def level_of(self) -> NDArray[np.intp]:
        """The weight of each level, [L]."""
        return np.concatenate([np.array(v) for v in self.design.form.scored.values()])

    @cached_property
    def slices(self) -> Sequence[slice]:
        """Each field's slice of the levels."""
        return [slice(*np.searchsorted(self.field_of, [f, f + 1])) for f in range(self.fields)]


def count_levels(levels: Levels, table: LevelTable) -> Counts:
    """How many of the replies [..., G, F] chose each level of each field, [..., L]."""
    counts: Counts = chosen_levels(levels, table).sum(axis=-2)
    return counts


def chosen_levels(levels: Levels, table: LevelTable) -> NDArray[np.bool_]:
    """Which of all levels each reply [..., F] chose, [..., L]; none if it was not parsed."""
    return np.asarray(levels[..., table.field_of] == table.level_of)


def replies_of(counts: Counts, table: LevelTable) -> Counts:
    """How many replies were parsed, [...]."""
    return np.asarray(counts[..., table.slices[0]].sum(axis=-1))


def distance_within(counts: Counts, table: LevelTable) -> Array:
    """Mean distance of two different replies, [...]: unbiased, NaN where there are not two."""
    replies = replies_of(counts, table)
    return quotient(_distances(counts, counts, table), replies * (replies - 1.0))


def distance_between(first: Counts, second: Counts, table: LevelTable) -> Array:
    """Mean distance of a reply of one to a reply of the other, [...]; NaN where there is none."""
    pairs = replies_of(first, table) * (1.0 * replies_of(second, table))
    return quotient(_distances(first, second, table), pairs)


def blind_distance(counts: Counts, reference: Counts, table: LevelTable) -> Array:
    """Squared energy distance of each value's decisions from the set's blind mixture, [S, R].

    With d the L1 distance of two decisions, X replies for a value and B draws of the mixture, in
    which every value of the reference [S, R, L] has the same weight:

        2 E d(X, B) - E d(X, X') - E d(B, B')

    (Szekely & Rizzo 2013, doi:10.1016/j.jspi.2013.03.018). It is 0 where both are distributed
    alike and above 0 otherwise. Every mean is over pairs of different draws, so the estimate is
    unbiased and may be below 0. NaN where a value has not two replies, or the reference has not.
    """
    each_other = distance_between(reference[:, :, None], reference[:, None], table)
    values = np.arange(table.values)
    each_other[:, values, values] = distance_within(reference, table)
    to_mixture = distance_between(counts[:, :, None], reference[:, None], table).mean(axis=-1)
    spread = each_other.mean(axis=(1, 2))
    return np.asarray(2 * to_mixture - distance_within(counts, table) - spread[:, None])


def _distances(first: Counts, second: Counts, table: LevelTable) -> Array:
    """The sum of distances over all pairs of a reply of one and a reply of the other, [...].

    The L1 distance of two levels is the sum of the steps between them, so that the sum over pairs
    is the sum over steps of their size times the replies below of one times those above of the
    other.
    """
    total: Any = 0.0
    for field in table.slices:
        steps = np.diff(table.level_of[field])
        below, others_below = (
            c[..., field].cumsum(axis=-1, dtype=np.float64) for c in (first, second)
        )
        above, others_above = (b[..., -1:] - b for b in (below, others_below))
        pairs = below * others_above + others_below * above
        total = total + (pairs[..., :-1] * steps).sum(axis=-1)
    return np.asarray(total)
