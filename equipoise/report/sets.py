"""One patient in all variants, side by side, as the task's `SetView` says.

Texts here come from a model. They are clipped here, and made harmless where a document is rendered.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from environments.presentation import SetView
from equipoise.report.document import Section
from equipoise.report.replies import address, in_words, problem
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import Stage, clipped, figure, heading, number, plain_name

_TEXT_LIMIT, _REPLY_LIMIT, _PROMPT_LIMIT = 300, 600, 3000
_MOST_BARS = 21
_COUNTS = {2: "two", 3: "three", 4: "four"}

Edges = NDArray[np.float64]
#: Set id -> variant -> the replies to it.
BySetAndVariant = Mapping[str, Mapping[str, Sequence[Reply]]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of what is shown; `differs` when what is beside it does not agree."""

    name: str
    value: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant at one stage: its first reply, and bars for all, the tallest of the set 1."""

    fields: tuple[Field, ...]
    figure: str
    text: str
    problem: str
    reply: str
    bars: tuple[float, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class ExampleSet:
    """One counterfactual set: `rows` holds a stage and its variants, in the order of `variants`."""

    title: str
    shared: str
    variants: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Variant, ...]], ...]
    prompt: str
    address: str


@dataclass(frozen=True, slots=True)
class SetExamples(Section):
    """A set, noted by which rule it was chosen, what its cells hold, and their figure."""

    kind = "sets"
    legend: str = ""
    figure: str = ""
    example: ExampleSet | None = None


def set_sections(run: RunFiles) -> tuple[SetExamples, ...]:
    """The set furthest apart before training; nothing without variants to show."""
    view = run.presentation.sets
    if view is None:
        return ()
    stages = {stage: by_set_and_variant(run.replies[stage], view) for stage in run.stages}
    before = stages.get("before", {})
    order = run.latest.breakdowns.get(f"by_{view.variant}", {})  # that of the evaluation
    names = [name for members in before.values() for name in members]
    variants = tuple(dict.fromkeys([*order, *names]))
    if not before or len(variants) < 2:  # nothing stands beside a single one
        return ()
    name, number_ = run.name_of(view.figure), _COUNTS.get(len(variants), len(variants))
    when = "" if run.audited else f"{' with' * bool(run.titles)} {run.legend_of('before')}"
    note = (
        f"Chosen{when}: the set whose means of {name} lie furthest apart. Part of what changes "
        "here is therefore chance."
    )
    legend = (
        f"Each cell: the first reply, bold where the row differs, and the {name} of all replies."
    )
    furthest = furthest_set(before, view)
    example = _example(run, furthest, variants, stages, view)
    title = f"One patient, {number_} {run.name_of(view.variant)}s"
    return (SetExamples(title, "example", note, legend, heading(name), example),)


def by_set_and_variant(replies: Iterable[Reply], view: SetView) -> BySetAndVariant:
    """Sort replies by set and variant, in their order."""
    sets: dict[str, dict[str, list[Reply]]] = {}
    for reply in replies:
        if view.variant in reply.rollout.metadata:
            variants = sets.setdefault(reply.rollout.set_id, {})
            variants.setdefault(str(reply.rollout.metadata[view.variant]), []).append(reply)
    return sets


def furthest_set(sets: BySetAndVariant, view: SetView) -> str:
    """The id of the set whose variants lie furthest apart; the first of equal ones."""

    def distance(set_id: str) -> float:
        means = [mean_of(replies, view) for replies in sets[set_id].values()]
        numbers = [mean for mean in means if mean is not None]
        # Nothing lies apart where fewer than two variants have a mean.
        return round(max(numbers) - min(numbers), 9) if len(numbers) > 1 else -1.0

    return max(sorted(sets), key=distance)


def mean_of(replies: Sequence[Reply], view: SetView) -> float | None:
    """Return the mean figure of the replies that have one."""
    numbers = _figures(replies, view)
    return fmean(numbers) if numbers else None


def _example(
    run: RunFiles,
    set_id: str,
    variants: tuple[str, ...],
    stages: Mapping[Stage, BySetAndVariant],
    view: SetView,
) -> ExampleSet:
    members = [reply for replies in stages["before"][set_id].values() for reply in replies]
    group = run.presentation.one_of_each
    # What the variants share besides the title; lists are in the prompt.
    first, *siblings = (reply.rollout.metadata for reply in members)
    shared = [
        f"{plain_name(key)} {in_words(value)}"
        for key, value in first.items()
        if (key in view.patient if view.patient else key != group)
        and isinstance(value, str | int | float)
        and all(sibling.get(key) == value for sibling in siblings)
    ]
    numbers = [
        _figures(replies, view)
        for sets in stages.values()
        for replies in sets.get(set_id, {}).values()
    ]
    edges = _edges([n for part in numbers for n in part])
    tallest = max((max(np.histogram(part, edges)[0]) for part in numbers), default=0) or 1
    rows = [
        (run.title_of(stage), _row(variants, sets[set_id], view, edges, tallest))
        for stage, sets in stages.items()
        if set_id in sets
    ]
    return ExampleSet(
        title=heading(plain_name(str(first.get(group, set_id)))),
        shared=", ".join(shared),
        variants=tuple(variants),
        rows=tuple(rows),
        prompt=clipped(members[0].rollout.prompt, _PROMPT_LIMIT),
        address=address(run, members[0]),
    )


def _edges(numbers: Sequence[float]) -> Edges:
    """The edges of bars around whole numbers, or of as many wider bars as there may be."""
    low, high = (math.floor(min(numbers)), math.ceil(max(numbers))) if numbers else (0, 0)
    return np.linspace(low - 0.5, high + 0.5, min(high - low + 1, _MOST_BARS) + 1)


def _row(
    names: Sequence[str],
    variants: Mapping[str, Sequence[Reply]],
    view: SetView,
    edges: Edges,
    tallest: int,
) -> tuple[Variant, ...]:
    columns = [variants.get(name, ()) for name in names]
    compared = [compared_fields(replies[0], view) if replies else {} for replies in columns]
    shown = [fields for fields in compared if fields]
    keys = {key for fields in shown for key in fields}
    differing = {key for key in keys if len({fields.get(key) for fields in shown}) > 1}
    pairs = zip(columns, compared, strict=True)
    return tuple(_variant(*pair, differing, view, edges, tallest) for pair in pairs)


def _fields(reply: Reply, view: SetView) -> Mapping[str, object]:
    fields = reply.score.evidence.get(view.fields)  # the task's own
    return fields if isinstance(fields, dict) else {}


def compared_fields(reply: Reply, view: SetView) -> dict[str, str]:
    """The compared values of a reply in words."""
    fields = _fields(reply, view).items()
    return {key: in_words(value) for key, value in fields if key != view.text}


def _variant(
    replies: Sequence[Reply],
    fields: Mapping[str, str],
    differing: set[str],
    view: SetView,
    edges: Edges,
    tallest: int,
) -> Variant:
    if not replies:
        return Variant((), "", "", "no reply", "", (), "")
    first, mean, numbers = replies[0], mean_of(replies, view), _figures(replies, view)
    fault, value = problem(first), number(first.score.evidence.get(view.figure))
    text = _fields(first, view).get(view.text)
    ends = f"{edges[0] + 0.5:g} to {edges[-1] - 0.5:g}"
    return Variant(
        fields=tuple(Field(plain_name(k), v, k in differing) for k, v in fields.items()),
        figure="" if value is None else f"{value:g}",
        text=clipped(str(text), _TEXT_LIMIT) if text else "",
        problem=fault,
        reply=clipped(first.rollout.completion, _REPLY_LIMIT) if fault else "",
        bars=tuple((np.histogram(numbers, edges)[0] / tallest).tolist()),
        summary=""
        if mean is None
        else f"mean {figure(mean)}; {len(numbers)} of {len(replies)} replies, {ends}",
    )


def _figures(replies: Iterable[Reply], view: SetView) -> list[float]:
    values = (number(reply.score.evidence.get(view.figure)) for reply in replies)
    return [value for value in values if value is not None]
