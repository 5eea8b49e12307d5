"""The metrics of choices, as functions of sums over counterfactual sets.

Shapes: S sets, V variants, G generations, O options at most, D draws. A choice is a number from 0,
or one of two codes. Its value is 1 or 0 for right or wrong where the right one is known, its
place from 0, the first option, to 1, the last, where options are ordered, and else undefined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from environments.base import IncompleteSetError, Rollout, Score, outcomes_of
from environments.measurement import Array, Measurement, Metric, quotient

Codes = NDArray[np.int8]
#: The sums [..., 4] of a variant, or of all, in all sums.
Part = Callable[[Array], Array]

#: Codes of a reply from which no option can be read, and of one that is not there.
UNREAD, ABSENT = -1, -2
#: What is summed of each variant: value, its number, replies that can be read, all replies.
_VALUE, _VALUES, _READ, _REPLIES = range(4)
_OF_VARIANT = 4
#: Choices that one step of the permutations holds in memory.
_AT_ONCE = 2**21


class ChoiceOutcome(BaseModel, extra="forbid", frozen=True):
    """The outcome of a reply: the number of its option, None where none can be read."""

    choice: int | None = Field(ge=0)
    gold: int | None = Field(ge=0)
    options: int = Field(ge=2)
    ordered: bool

    @property
    def value(self) -> float | None:
        """The value of the chosen option; None where that is undefined or nothing was chosen."""
        if self.choice is None:
            return None
        if self.gold is not None:
            return float(self.choice == self.gold)
        return self.choice / (self.options - 1) if self.ordered else None


@dataclass(frozen=True, slots=True)
class Choices:
    """All choices [S, V, G], and what each code is worth in its set [S, O + 2]; NaN undefined."""

    sets: tuple[str, ...]
    variants: tuple[str, ...]
    codes: Codes
    worth: Array
    parts: tuple[str, ...]
    with_gold: bool


def measure_choices(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
    """The metrics of scored rollouts, a cluster for each counterfactual set.

    Questions in one variant alone have nothing that could differ.
    """
    choices = gather(rollouts, outcomes_of(scores, ChoiceOutcome))
    sums = set_sums(choices.codes, choices.worth)
    variants = len(choices.variants)
    value = "accuracy" if choices.with_gold else "level"
    overall = {
        value: _value_metric(choices.with_gold, lambda t: _columns(variants, t).sum(axis=-2)),
        "parse_rate": _parse_metric(lambda t: _columns(variants, t).sum(axis=-2)),
    }
    if variants == 1:
        return Measurement(choices.sets, sums, overall, strata=choices.parts)
    flips = Metric(lambda t: quotient(t[..., -2], t[..., -1]), "lower", True, sums[:, -2] > 0)
    within = Metric(lambda t: quotient(t[..., -4], t[..., -3]), "lower", True)
    gap = Metric(partial(_gap, variants), "lower", True)
    by_variant = {
        name: {
            value: _value_metric(choices.with_gold, partial(_column, variants, v)),
            "parse_rate": _parse_metric(partial(_column, variants, v)),
        }
        for v, name in enumerate(choices.variants)
    }
    return Measurement(
        clusters=choices.sets,
        sums=sums,
        metrics={"flip_rate": flips, "gap_within_sets": within, f"{value}_gap": gap, **overall},
        breakdowns={"by_variant": by_variant},
        null_sums=partial(_null_sums, choices),
        strata=choices.parts,
    )


def _columns(variants: int, sums: Array) -> Array:
    """The sums of each variant, [..., V, 4]."""
    return sums[..., : variants * _OF_VARIANT].reshape(*sums.shape[:-1], variants, _OF_VARIANT)


def _column(variants: int, variant: int, sums: Array) -> Array:
    return _columns(variants, sums)[..., variant, :]


def _value_metric(with_gold: bool, part: Part) -> Metric:
    return Metric(
        lambda t: quotient(part(t)[..., _VALUE], part(t)[..., _VALUES]),
        "higher" if with_gold else None,
        trials=lambda t: part(t)[..., _VALUES],
    )


def _parse_metric(part: Part) -> Metric:
    return Metric(
        lambda t: quotient(part(t)[..., _READ], part(t)[..., _REPLIES]),
        "higher",
        trials=lambda t: part(t)[..., _REPLIES],
    )


def _gap(variants: int, sums: Array) -> Array:
    """The largest mean value of a variant less the smallest, over all sets."""
    return _range(_columns(variants, sums))


def _range(sums: Array) -> Array:
    """The same of sums [..., V, 4]; NaN where a variant has no value."""
    means = quotient(sums[..., _VALUE], sums[..., _VALUES])
    return np.asarray(means.max(axis=-1) - means.min(axis=-1))


def gather(rollouts: Sequence[Rollout], outcomes: Sequence[ChoiceOutcome | None]) -> Choices:
    """Sort choices, in any order, into sets.

    Raises `IncompleteSetError` where a set lacks a variant that others have, `ValueError` where
    what is right, or what may be chosen, differs within a set.
    """
    variants = tuple(sorted({str(rollout.metadata["variant"]) for rollout in rollouts}))
    variant_index = {name: v for v, name in enumerate(variants)}
    cells: dict[str, list[list[int]]] = {}
    questions: dict[str, tuple[int | None, int, bool]] = {}
    parts: dict[str, str] = {}
    for rollout, outcome in zip(rollouts, outcomes, strict=True):
        cell = cells.setdefault(rollout.set_id, [[] for _ in variants])
        cell[variant_index[str(rollout.metadata["variant"])]].append(_code(outcome))
        parts[rollout.set_id] = str(rollout.metadata.get("part", ""))
        if outcome is not None:
            question = (outcome.gold, outcome.options, outcome.ordered)
            if questions.setdefault(rollout.set_id, question) != question:
                raise ValueError(f"the variants of set {rollout.set_id!r} differ in their options")
    for name, cell in cells.items():
        if missing := [v for v, codes in zip(variants, cell, strict=True) if not codes]:
            raise IncompleteSetError(f"set {name!r} has no variant {missing[0]!r}")
    generations = max((len(codes) for cell in cells.values() for codes in cell), default=0)
    codes = np.full((len(cells), len(variants), generations), ABSENT, dtype=np.int8)
    for s, cell in enumerate(cells.values()):
        for v, row in enumerate(cell):
            codes[s, v, : len(row)] = row
    return Choices(
        tuple(cells),
        variants,
        codes,
        _worth([questions.get(name) for name in cells]),
        tuple(parts.values()),
        any(gold is not None for gold, _, _ in questions.values()),
    )


def _code(outcome: ChoiceOutcome | None) -> int:
    if outcome is None:
        return ABSENT
    return UNREAD if outcome.choice is None else outcome.choice


def _worth(questions: Sequence[tuple[int | None, int, bool] | None]) -> Array:
    """The value of each code in each set; that of the two negative ones is at the end, [S, O + 2].

    A reply that cannot be read is wrong where something is right, and else has no value.
    """
    width = max((question[1] for question in questions if question), default=2)
    worth = np.full((len(questions), width + 2), np.nan)
    for s, question in enumerate(questions):
        if question is None:
            continue
        gold, options, ordered = question
        if gold is not None:
            worth[s, :options] = worth[s, UNREAD] = 0.0
            worth[s, gold] = 1.0
        elif ordered:
            worth[s, :options] = np.linspace(0.0, 1.0, options)
    return worth


def set_sums(codes: Codes, worth: Array) -> Array:
    """Return the sums of each set, [..., S, V * 4 + 4], of choices [..., S, V, G].

    The last four are the gap between the variants' mean values and whether it is known, then
    whether the usual choice differs between variants and whether that is: each variant has a reply
    that can be read.
    """
    value = worth[np.arange(len(worth))[:, None, None], codes]
    has_value = np.isfinite(value)
    of_variants = np.stack(
        [
            np.where(has_value, value, 0.0).sum(axis=-1),
            has_value.sum(axis=-1),
            (codes >= 0).sum(axis=-1),
            (codes != ABSENT).sum(axis=-1),
        ],
        axis=-1,
    )
    options = range(worth.shape[1] - 2)
    counts = np.stack([(codes == option).sum(axis=-1) for option in options], axis=-1)
    mode = counts.argmax(axis=-1)  # the first of equals
    defined = (counts.sum(axis=-1) > 0).all(axis=-1)
    flips = defined & (mode != mode[..., :1]).any(axis=-1)
    flat = of_variants.reshape(*codes.shape[:-2], -1)
    gap = _range(of_variants)
    set_statistics = np.stack([np.nan_to_num(gap), np.isfinite(gap), flips, defined], axis=-1)
    return np.concatenate([flat, set_statistics], axis=-1, dtype=np.float64)


def _null_sums(choices: Choices, rng: np.random.Generator, draws: int) -> Array:
    """Total sums [D, K] with the variants of each set permuted, generation by generation."""
    codes = choices.codes
    size = max(1, _AT_ONCE // max(1, codes.size))
    totals = []
    for start in range(0, draws, size):
        order = rng.random((min(size, draws - start), *codes.shape)).argsort(axis=-2)
        permuted = np.take_along_axis(codes[None], order, axis=-2)
        totals.append(set_sums(permuted, choices.worth).sum(axis=-2))
    return np.concatenate(totals)
