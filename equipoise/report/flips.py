"""Answers that changed with the attribute: both texts and both answers side by side, worst first.

Texts here come from a model. They are clipped and made visible, and the template escapes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from environments.presentation import SetView
from equipoise.report.replies import Field
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.sets import by_set_and_variant, compared_fields, mean_figure, mean_of
from equipoise.report.words import figure, plain_name, printable

#: Field -> value -> how many replies have it, the most frequent value first.
Counts = Mapping[str, Mapping[str, int]]
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
    counted: tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> tuple[Side, Side]:
    """Set two variants side by side; an answer that differs between them is marked.

    `counted` is what is shown of each answer in its place.
    """
    first, second = (
        Side(
            printable(variant),
            printable(text, TEXT_LIMIT),
            tuple(
                Field(
                    printable(name), printable(value), answers[0].get(name) != answers[1].get(name)
                )
                for name, value in side.items()
            ),
        )
        for variant, text, side in zip(variants, texts, counted or answers, strict=True)
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
    examples = tuple(ranked[:MOST_SETS])
    name = run.name_of(view.figure)
    note = (
        "The usual answer has in each scored field the value of most replies, of equal ones that "
        f"with the lower {run.name_of(view.order or view.figure)}. A set flips where that differs "
        f"between variants. Shown are the two variants whose means of {name} lie furthest apart, "
        "and first the sets in which they do, with the number of replies of each value. They were "
        "chosen for being extreme: how often answers flip is in the tables, beside what noise "
        "alone gives."
    )
    title = f"{len(examples)} of {len(flips):,} sets that flip, of {len(sets):,} in all"
    return Flips("Sets whose answer flips", note, (FlipGroup(title, examples),))


def _flip(
    run: RunFiles, set_id: str, variants: Mapping[str, Sequence[Reply]], view: SetView
) -> tuple[float, Flip] | None:
    """The two variants whose usual answers differ and whose means lie furthest apart, if any.

    As in a flip rate, a set has to have an answer to each variant.
    """
    counts = {name: _counts(replies, view) for name, replies in variants.items()}
    if not all(counts.values()):
        return None
    answers = {name: _pick_usual(fields) for name, fields in counts.items()}
    means = {name: mean_figure(replies, view) for name, replies in variants.items()}
    pairs = [(a, b) for a, b in combinations(answers, 2) if answers[a] != answers[b]]
    if not pairs:
        return None
    gap, first, second = max((_gap(means[a], means[b]), a, b) for a, b in pairs)
    texts = variants[first][0].prompt, variants[second][0].prompt
    counted = _in_words(counts[first]), _in_words(counts[second])
    has_means = None not in (means[first], means[second])
    sentence = f"Mean {run.name_of(view.figure)} {figure(means[first])} and {figure(means[second])}"
    return gap, Flip(
        title=f"{printable(set_id)}: {printable(first)} and {printable(second)}",
        facts=sentence if has_means else "",
        sides=sides_of((first, second), texts, (answers[first], answers[second]), counted),
    )


def _gap(first: float | None, second: float | None) -> float:
    return 0.0 if first is None or second is None else abs(first - second)


def _counts(replies: Sequence[Reply], view: SetView) -> Counts:
    """Count the values of each field, the usual one first; empty where none can be read."""
    having: dict[str, dict[str, list[Reply]]] = {}
    for reply in replies:
        for key, value in compared_fields(reply, view).items():
            if not view.scored or key in view.scored:
                having.setdefault(plain_name(key), {}).setdefault(value, []).append(reply)

    def rank(alike: Sequence[Reply]) -> tuple[int, float]:
        return -len(alike), mean_of(alike, view.order or view.figure) or 0.0

    return {
        name: {v: len(values[v]) for v in sorted(values, key=lambda v: rank(values[v]))}
        for name, values in having.items()
    }


def _pick_usual(counts: Counts) -> dict[str, str]:
    return {name: next(iter(values)) for name, values in counts.items()}


def _in_words(counts: Counts) -> dict[str, str]:
    """All values of each field, with their numbers if there are several replies."""
    return {
        name: ", ".join(f"{v} ({n})" for v, n in values.items())
        if sum(values.values()) > 1
        else next(iter(values))
        for name, values in counts.items()
    }
