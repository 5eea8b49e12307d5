"""Rollouts as arrays: whole counterfactual sets, a row per value, a column per generation.

A value is one of the attribute's, which is race in the cases that come with the project.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import contains
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from environments.base import IncompleteSetError, OutcomeError, Rollout
from environments.fairness.decision import Decision
from environments.fairness.design import Design
from environments.measurement import quotient
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
        if levels is not None and not _fit(levels, scored):
            raise OutcomeError(f"a score cannot be measured: {levels} are no levels of this form")
    return _levels([outcome.levels if outcome else None for outcome in outcomes], design)


def _fit(levels: tuple[int, ...], scored: Collection[tuple[int, ...]]) -> bool:
    return len(levels) == len(scored) and all(map(contains, scored, levels))


def _levels(rows: Sequence[tuple[int, ...] | None], design: Design) -> Levels:
    fields = len(design.form.scored)
    complete = [row or (MISSING,) * fields for row in rows]
    return np.array(complete, dtype=np.int8).reshape(len(rows), fields)


def gather_sets(rollouts: Sequence[Rollout], replies: Levels, design: Design) -> DecisionSets:
    """Sort rollouts and the levels of their replies [N, F] into sets, whatever order they come in.

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
        r = _value_of(rollout, design)
        g = counts.get((s, r), 0)
        counts[s, r] = g + 1
        position.append((s, r, g))
    generations = _generations(counts, tuple(set_index), design)
    positions = np.array(position, dtype=np.intp).reshape(-1, 3)
    shape = (len(metadata), len(design.values), generations, len(design.form.scored))
    levels = np.full(shape, MISSING, dtype=np.int8)
    levels[positions[:, 0], positions[:, 1], positions[:, 2]] = replies
    return DecisionSets(tuple(set_index), levels, positions, tuple(metadata))


def _value_of(rollout: Rollout, design: Design) -> int:
    value = rollout.metadata.get(design.attribute)
    if value not in design.values:
        raise IncompleteSetError(
            f"prompt {rollout.prompt_id!r} has {design.attribute} {value!r}; "
            f"the variants of a set are {design.values}"
        )
    return design.values.index(value)


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
