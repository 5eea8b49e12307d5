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
from environments.measurement import Array, Blocks, Measurement, Metric, mean_of, pairs_of
from environments.presentation import Chart, Presentation, SetView, Words

Codes = NDArray[np.int8]
#: From all sums to those of a variant, or of all variants, see `_OF_VARIANT`.
Part = Callable[[Array], Array]

#: Codes of a reply from which no option can be read, and of one that is not there.
UNREAD, ABSENT = -1, -2
#: Sums of a variant: of the values and their number, of replies that can be read and of all.
_OF_VARIANT = Blocks.of_shapes({"value": (2,), "read": (2,)})
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
    blocks = _blocks(variants)
    value = "accuracy" if choices.with_gold else "level"
    overall = {
        value: _value_metric(choices.with_gold, lambda t: blocks["variants"].of(t).sum(axis=-2)),
        "parse_rate": _parse_metric(lambda t: blocks["variants"].of(t).sum(axis=-2)),
    }
    if variants == 1:
        return Measurement(choices.sets, sums, overall, strata=choices.parts)
    flipped = blocks["flips"].of(sums)[:, 0] > 0
    flips = Metric(lambda t: mean_of(blocks["flips"].of(t)), "lower", True, flipped)
    within = Metric(lambda t: mean_of(blocks["gap"].of(t)), "lower", True)
    gap = Metric(lambda t: _range(blocks["variants"].of(t)), "lower", True)
    by_variant = {
        name: {
            value: _value_metric(choices.with_gold, blocks["variants"].at(v).of),
            "parse_rate": _parse_metric(blocks["variants"].at(v).of),
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


def _blocks(variants: int) -> Blocks:
    """The sums of a set; gap and flips are totals with the number of sets where they are known."""
    return Blocks.of_shapes(
        {"variants": (variants, _OF_VARIANT.columns), "gap": (2,), "flips": (2,)}
    )


def _value_metric(with_gold: bool, part: Part) -> Metric:
    return Metric(
        lambda t: mean_of(_OF_VARIANT["value"].of(part(t))),
        "higher" if with_gold else None,
        trials=lambda t: _OF_VARIANT["value"].of(part(t))[..., 1],
    )


def _parse_metric(part: Part) -> Metric:
    return Metric(
        lambda t: mean_of(_OF_VARIANT["read"].of(part(t))),
        "higher",
        trials=lambda t: _OF_VARIANT["read"].of(part(t))[..., 1],
    )


def _range(sums: Array) -> Array:
    """The largest mean value of a variant less the smallest, of sums [..., V, 4]; NaN for none."""
    means = mean_of(_OF_VARIANT["value"].of(sums))
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
    """Return the sums of each set, [..., S, K], of choices [..., S, V, G].

    The usual choice flips where it differs between variants; it is known where each variant has a
    reply that can be read.
    """
    value = worth[np.arange(len(worth))[:, None, None], codes]
    counts = {
        "value": pairs_of(value),
        "read": np.stack([codes >= 0, codes != ABSENT], axis=-1),
    }
    of_variants = _OF_VARIANT.join(
        codes.shape[:-1], {name: pairs.sum(axis=-2) for name, pairs in counts.items()}
    )
    options = range(worth.shape[1] - 2)
    chosen = np.stack([(codes == option).sum(axis=-1) for option in options], axis=-1)
    mode = chosen.argmax(axis=-1)  # the first of equals
    defined = (chosen.sum(axis=-1) > 0).all(axis=-1)
    flips = defined & (mode != mode[..., :1]).any(axis=-1)
    statistics = {
        "variants": of_variants,
        "gap": pairs_of(_range(of_variants)),
        "flips": np.stack([flips, defined], axis=-1),
    }
    return _blocks(codes.shape[-2]).join(codes.shape[:-2], statistics)


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


# --- what its figures are called -----------------------------------------------------------------


PRESENTATION = Presentation(
    title="Choices in counterfactual sets",
    words={
        "flip_rate": Words("flip rate", "sets whose usual choice differs between variants"),
        "gap_within_sets": Words(
            "gap within sets", "largest mean of a variant less the smallest, set by set"
        ),
        "accuracy_gap": Words("accuracy gap", "largest accuracy of a variant less the smallest"),
        "level_gap": Words("level gap", "largest mean level of a variant less the smallest"),
        "accuracy": Words("accuracy", "right choices; a reply that cannot be read is wrong"),
        "level": Words("level", "from 0, the first option, to 1, the last"),
        "parse_rate": Words("parse rate", "replies from which an option can be read"),
        "value": Words(
            "value of the choice",
            "1 right and 0 wrong; of ordered options from 0, the first, to 1, the last",
        ),
        "place": Words("place among the options"),
        "by_variant": Words("By variant"),
    },
    charts_title="Variants",
    charts=(
        Chart(
            metric="accuracy",
            breakdown="by_variant",
            axis="accuracy",
            caption="Accuracy by variant. Where the variant makes no difference the marks line up.",
        ),
        Chart(
            metric="level",
            breakdown="by_variant",
            axis="level, from the first option to the last",
            caption="Mean level by variant. Where it makes no difference the marks line up.",
        ),
        Chart(
            metric="flip_rate",
            axis="share of sets",
            caption="Sets whose usual choice differs.",
            null="variants permuted within sets",
        ),
    ),
    sets=SetView(variant="variant", figure="value", fields="choice", order="place"),
)
