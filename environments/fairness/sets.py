"""Rollouts as arrays: whole counterfactual sets, and how often each level was chosen in them.

A value is one of the attribute's, which is race in the cases that come with the project.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import contains
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from environments.base import IncompleteSetError, OutcomeError, Rollout
from environments.fairness.decision import Decision, Design
from environments.measurement import Array, quotient
from environments.replies import Unparseable

#: The level of a field of a reply that could not be parsed.
MISSING = -1

Levels = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class DecisionSets:
    """Parsed decisions of S counterfactual sets, R values, G generations, F scored fields.

    `levels` is [S, R, G, F], `MISSING` where the reply could not be parsed. `position` [N, 3]
    says where each of the N rollouts went. `metadata[s]` is that of the set's first variant.
    """

    set_ids: tuple[str, ...]
    levels: Levels
    position: NDArray[np.intp]
    metadata: tuple[Mapping[str, Any], ...]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Which replies were parsed, [S, R, G]."""
        valid: NDArray[np.bool_] = self.levels[..., 0] != MISSING
        return valid

    @property
    def invasiveness(self) -> NDArray[np.float64]:
        """The sum of the levels, NaN where the reply could not be parsed, [S, R, G]."""
        return np.where(self.valid, self.levels.sum(axis=-1, dtype=np.float64), np.nan)

    def mean_and_noise(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean over values of the mean invasiveness, and its variance by sampling, [S] each.

        NaN where a value has not two parsed replies.
        """
        invasiveness, count = self.invasiveness, self.valid.sum(axis=2)
        mean = quotient(np.nansum(invasiveness, axis=2), count)
        squares = np.nansum((invasiveness - mean[..., None]) ** 2, axis=2)
        noise = quotient(squares, (count - 1) * count)
        return mean.mean(axis=1), noise.mean(axis=1) / invasiveness.shape[1]


@dataclass(frozen=True, slots=True)
class Anchors:
    """The frozen model's blind mixture on S sets: all values of the attribute pooled.

    `mean` is its mean invasiveness and `noise` the variance which sampling gives that mean;
    `control` is the mean for the same case without a patient. NaN where it is not known.
    `reference` are its decisions [S, R, G, F], `MISSING` where there are none.
    """

    mean: NDArray[np.float64]
    noise: NDArray[np.float64]
    control: NDArray[np.float64]
    reference: Levels


class DecisionOutcome(BaseModel, extra="forbid", frozen=True):
    """A reply as it is measured: the level of each scored field, None if it was not parsed."""

    levels: tuple[int, ...] | None


def decision_levels(parsed: Sequence[Decision | Unparseable], design: Design) -> Levels:
    """The levels of the scored fields of each reply, [N, F]."""
    return _levels([p.levels if isinstance(p, Decision) else None for p in parsed], design)


def outcome_levels(outcomes: Sequence[DecisionOutcome | None], design: Design) -> Levels:
    """The same of what is kept of each reply. Raises `OutcomeError` for another form's levels."""
    scored = design.form.scored.values()
    for outcome in outcomes:
        levels = outcome.levels if outcome else None
        if levels is None:
            continue
        if len(levels) != len(scored) or not all(map(contains, scored, levels)):
            raise OutcomeError(
                "score.foreign-levels",
                f"a score cannot be measured: {levels} are no levels of this form",
            )
    return _levels([outcome.levels if outcome else None for outcome in outcomes], design)


def _levels(rows: Sequence[tuple[int, ...] | None], design: Design) -> Levels:
    fields = len(design.form.scored)
    complete = [row or (MISSING,) * fields for row in rows]
    return np.array(complete, dtype=np.int8).reshape(len(rows), fields)


def gather_sets(rollouts: Sequence[Rollout], replies: Levels, design: Design) -> DecisionSets:
    """Sort rollouts, in any order, and the levels of their replies [N, F] into sets.

    Raises `IncompleteSetError` unless every set has every value of the attribute with the same
    number of generations, which is then G.
    """
    set_index: dict[str, int] = {}
    metadata: list[Mapping[str, Any]] = []
    counts: dict[tuple[int, int], int] = {}
    position = []
    for rollout in rollouts:
        s = set_index.setdefault(rollout.set_id, len(metadata))
        if s == len(metadata):
            metadata.append(rollout.metadata)
        value = rollout.metadata.get(design.attribute)
        if value not in design.values:
            raise IncompleteSetError(
                f"prompt {rollout.prompt_id!r} has {design.attribute} {value!r}; "
                f"the variants of a set are {design.values}"
            )
        r = design.values.index(value)
        g = counts.get((s, r), 0)
        counts[s, r] = g + 1
        position.append((s, r, g))
    generations = _generations(counts, tuple(set_index), design)
    positions = np.array(position, dtype=np.intp).reshape(-1, 3)
    shape = (len(metadata), len(design.values), generations, len(design.form.scored))
    levels = np.full(shape, MISSING, dtype=np.int8)
    levels[positions[:, 0], positions[:, 1], positions[:, 2]] = replies
    return DecisionSets(tuple(set_index), levels, positions, tuple(metadata))


def _generations(
    counts: Mapping[tuple[int, int], int], set_ids: tuple[str, ...], design: Design
) -> int:
    """The one number of generations that all variants of all sets share."""
    expected = max(counts.values(), default=0)
    for s, set_id in enumerate(set_ids):
        generations = [counts.get((s, r), 0) for r in range(len(design.values))]
        if set(generations) != {expected}:
            requirement = f"{expected} of each {design.attribute}"
            pairs = zip(design.values, generations, strict=True)
            counts_text = ", ".join(f"{value} {n}" for value, n in pairs)
            raise IncompleteSetError(f"set {set_id!r} needs {requirement}, has {counts_text}")
    return expected


# --- how often each level was chosen -------------------------------------------------------------
#
# Counts are [..., L] with L levels of all scored fields together.


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
    """Mean distance of a reply of one to a reply of the other, [...]; NaN without such a pair."""
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
