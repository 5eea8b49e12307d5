"""Rollouts as arrays: whole counterfactual sets, one row per race, one column per generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from environments.base import IncompleteSetError, Rollout
from environments.disparity.decision import SCORED_FIELDS, Decision
from environments.measurement import quotient
from environments.replies import Unparseable

#: The variants of every counterfactual set, in the order of the arrays' second axis.
RACES = ("White", "Black", "Hispanic or Latino", "Asian")
_RACE_INDEX = {race: index for index, race in enumerate(RACES)}

#: The level of a field of a reply that could not be parsed.
MISSING = -1

Levels = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class DecisionSets:
    """Parsed decisions of S counterfactual sets, R races, G generations, F scored fields.

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
        """Invasiveness 0 to 10, NaN where the reply could not be parsed, [S, R, G]."""
        return np.where(self.valid, self.levels.sum(axis=-1, dtype=np.float64), np.nan)

    def mean_and_noise(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The mean over races of the mean invasiveness, and its variance by sampling, [S] each.

        NaN where a race has not two parsed replies.
        """
        own, count = self.invasiveness, self.valid.sum(axis=2)
        mean = quotient(np.nansum(own, axis=2), count)
        squares = np.nansum((own - mean[..., None]) ** 2, axis=2)
        noise = quotient(squares, (count - 1) * count)
        return mean.mean(axis=1), noise.mean(axis=1) / own.shape[1]


@dataclass(frozen=True, slots=True)
class Anchors:
    """What the frozen model did on S sets: the race-blind mixture, that is all races pooled.

    `mean` is its mean invasiveness and `noise` the variance which sampling gives that mean;
    `control` is the mean for the same case without a patient. NaN where it is not known.
    """

    mean: NDArray[np.float64]
    noise: NDArray[np.float64]
    control: NDArray[np.float64]


_UpTo1 = Annotated[int, Field(ge=0, le=1)]
_UpTo2 = Annotated[int, Field(ge=0, le=2)]
_UpTo4 = Annotated[int, Field(ge=0, le=4)]


class DecisionOutcome(BaseModel, extra="forbid", frozen=True):
    """What is measured of a reply: the level of each scored field, None if it was not parsed."""

    levels: tuple[_UpTo4, _UpTo2, _UpTo1, _UpTo2, _UpTo1] | None


_MISSING_LEVELS = (MISSING,) * len(SCORED_FIELDS)


def decision_levels(parsed: Sequence[Decision | Unparseable]) -> Levels:
    """The scored fields of each reply, [N, F]."""
    return _levels([p.levels if isinstance(p, Decision) else None for p in parsed])


def outcome_levels(outcomes: Sequence[DecisionOutcome | None]) -> Levels:
    """The scored fields of each reply, [N, F]."""
    return _levels([outcome.levels if outcome else None for outcome in outcomes])


def _levels(rows: Sequence[tuple[int, ...] | None]) -> Levels:
    complete = [row or _MISSING_LEVELS for row in rows]
    return np.array(complete, dtype=np.int8).reshape(len(rows), len(SCORED_FIELDS))


def gather_sets(rollouts: Sequence[Rollout], replies: Levels) -> DecisionSets:
    """Sort rollouts and the levels of their replies [N, F] into sets, whatever order they come in.

    Raises `IncompleteSetError` unless every set has every race with the same number of
    generations, which is then G.
    """
    set_index: dict[str, int] = {}
    metadata: list[Mapping[str, Any]] = []
    counts: dict[tuple[int, int], int] = {}
    position = []
    for rollout in rollouts:
        s = set_index.setdefault(rollout.set_id, len(metadata))
        if s == len(metadata):
            metadata.append(rollout.metadata)
        r = _race_of(rollout)
        g = counts.get((s, r), 0)
        counts[s, r] = g + 1
        position.append((s, r, g))
    generations = _generations(counts, tuple(set_index))
    where = np.array(position, dtype=np.intp).reshape(-1, 3)
    shape = (len(metadata), len(RACES), generations, len(SCORED_FIELDS))
    levels = np.full(shape, MISSING, dtype=np.int8)
    levels[where[:, 0], where[:, 1], where[:, 2]] = replies
    return DecisionSets(tuple(set_index), levels, where, tuple(metadata))


def _race_of(rollout: Rollout) -> int:
    race = rollout.metadata.get("race")
    if race not in _RACE_INDEX:
        raise IncompleteSetError(
            f"prompt {rollout.prompt_id!r} has race {race!r}; the variants of a set are {RACES}"
        )
    return _RACE_INDEX[race]


def _generations(counts: Mapping[tuple[int, int], int], set_ids: tuple[str, ...]) -> int:
    """The one number of generations that all variants of all sets share."""
    expected = max(counts.values(), default=0)
    for s, set_id in enumerate(set_ids):
        generations = [counts.get((s, r), 0) for r in range(len(RACES))]
        if set(generations) != {expected}:
            wanted = f"{expected} of each race"
            got = ", ".join(f"{race} {n}" for race, n in zip(RACES, generations, strict=True))
            raise IncompleteSetError(f"set {set_id!r} needs {wanted}, has {got}")
    return expected
