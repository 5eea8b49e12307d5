"""Answers that changed with the attribute: both texts and both answers side by side, worst first.

Texts here come from a model. They are clipped and made visible, and the template escapes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from environments.presentation import SetView
from equipoise.report.replies import Field
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import by_set_and_variant, compared_fields, mean_figure
from equipoise.report.words import figure, plain_name, printable

#: Sets that are shown; the others are counted.
MOST_SETS = 20
TEXT_LIMIT = 3000


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two variants: its text, where that is known, and what was answered to it."""

    variant: str
    text: str
    answers: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Flip:
    """An item whose answer is another one in the second variant."""

    title: str
    facts: str
    sides: tuple[Side, Side]


@dataclass(frozen=True, slots=True)
class FlipGroup:
    """Some flips, and in the title how many there are."""

    title: str
    flips: tuple[Flip, ...]


@dataclass(frozen=True, slots=True)
class Flips:
    """A section of flips: by which rule they are shown, and in groups."""

    title: str
    note: str
    groups: tuple[FlipGroup, ...]


def sides_of(
    variants: tuple[str, str],
    texts: tuple[str, str],
    answers: tuple[Mapping[str, str], Mapping[str, str]],
) -> tuple[Side, Side]:
    """Set two variants side by side; an answer that differs between them is marked."""
    first, second = (
        Side(
            printable(variant),
            printable(text, TEXT_LIMIT),
            tuple(
                Field(
                    printable(name), printable(value), answers[0].get(name) != answers[1].get(name)
                )
                for name, value in side_answers.items()
            ),
        )
        for variant, text, side_answers in zip(variants, texts, answers, strict=True)
    )
    return first, second


def changed_sets(run: RunFiles) -> Flips | None:
    """Find the counterfactual sets of an audited model whose usual answer differs by variant."""
    view = run.presentation.sets
    if view is None or not run.audited:
        return None
    sets = by_set_and_variant(run.replies["before"], view)
    flips = [flip for set_id in sets if (flip := _flip(run, set_id, sets[set_id], view))]
    if not flips:
        return None
    ranked = [flip for _, flip in sorted(flips, key=lambda flip: -flip[0])]
    shown = tuple(ranked[:MOST_SETS])
    name = run.name_of(view.figure)
    note = (
        "The usual answer has in each scored field the value of most replies, of equal ones that "
        f"with the lower {name}. A set flips where that differs between variants. Shown are the "
        f"two variants whose means of {name} lie furthest apart, and first the sets in which they "
        "do. They were chosen for being extreme: how often answers flip is in the tables, beside "
        "what noise alone gives."
    )
    title = f"{len(shown)} of {len(flips):,} sets that flip, of {len(sets):,} in all"
    return Flips("Sets whose answer flips", note, (FlipGroup(title, shown),))


def _flip(
    run: RunFiles, set_id: str, variants: Mapping[str, Sequence[Reply]], view: SetView
) -> tuple[float, Flip] | None:
    """The two variants whose usual answers differ and whose means lie furthest apart, if any.

    As in a flip rate, a set has to have an answer to each variant.
    """
    usual = {name: _usual(replies, view) for name, replies in variants.items()}
    if not all(usual.values()):
        return None
    means = {name: mean_figure(replies, view) or 0.0 for name, replies in variants.items()}
    pairs = [(a, b) for a, b in combinations(usual, 2) if usual[a] != usual[b]]
    if not pairs:
        return None
    gap, first, second = max((abs(means[a] - means[b]), a, b) for a, b in pairs)
    texts = variants[first][0].prompt, variants[second][0].prompt
    name = run.name_of(view.figure)
    return gap, Flip(
        title=f"{printable(set_id)}: {printable(first)} and {printable(second)}",
        facts=f"Mean {name} {figure(means[first])} and {figure(means[second])}",
        sides=sides_of((first, second), texts, (usual[first], usual[second])),
    )


def _usual(replies: Sequence[Reply], view: SetView) -> dict[str, str]:
    """Field by field the value that most replies have; empty where none can be read."""
    figures: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        for key, value in compared_fields(reply, view).items():
            if not view.scored or key in view.scored:
                of_value = figures.setdefault(key, {}).setdefault(value, [])
                of_value.append(mean_figure([reply], view) or 0.0)
    return {
        plain_name(key): max(values, key=lambda v: (len(values[v]), -fmean(values[v])))
        for key, values in figures.items()
    }
