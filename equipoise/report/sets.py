"""Counterfactual sets to read side by side, as the task's `SetView` says, and whose answer flips.

Texts here come from a model. They are clipped and made visible, and the template escapes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from environments.presentation import SetView
from equipoise.report.document import Section
from equipoise.report.replies import Field, address, differing_keys, in_words, problem
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import Stage, figure, heading, number, plain_name, printable

_SETS_SHOWN = 3
_TEXT_LIMIT, _REPLY_LIMIT, _PROMPT_LIMIT = 300, 600, 3000
_NOT_PARSED, _NOT_SCORED = "\N{MULTIPLICATION SIGN}", "!"

#: Field -> value -> how many replies have it, the most frequent value first.
Counts = Mapping[str, Mapping[str, int]]
#: Sets that are shown; the others are counted.
MOST_SETS = 20
TEXT_LIMIT = 3000
#: Set id -> variant -> the replies to it.
BySetAndVariant = Mapping[str, Mapping[str, Sequence[Reply]]]


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant at one stage: the first reply in words, and how all replies are distributed."""

    fields: tuple[Field, ...]
    figure: str
    text: str
    problem: str
    reply: str
    distribution: str
    mean: str


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
    """Sets, noted by which rule they were chosen, what their cells hold, and their figure."""

    kind = "sets"
    legend: str = ""
    figure: str = ""
    sets: tuple[ExampleSet, ...] = ()


def set_sections(run: RunFiles) -> tuple[SetExamples, ...]:
    """The set furthest apart before training, and others; nothing without variants to show."""
    view = run.presentation.sets
    if view is None:
        return ()
    stages = {stage: by_set_and_variant(run.replies[stage], view) for stage in run.stages}
    before = stages.get("before", {})
    group = run.presentation.one_of_each
    order = run.latest.breakdowns.get(f"by_{view.variant}", {})  # that of the evaluation
    names = [name for members in before.values() for name in members]
    variants = tuple(dict.fromkeys([*order, *names]))
    if len(variants) < 2:  # nothing stands beside a single one
        return ()
    sets = tuple(
        _example(run, set_id, variants, stages, view, group)
        for set_id in choose_sets(before, view, group)
    )
    name = run.name_of(view.figure)
    subject = f"Of each {run.name_of(group)} the set" if group else "Sets"
    when = "" if run.audited else " before training"
    rule = (
        f"{subject} whose {run.name_of(view.variant)} means of {name} lay furthest apart{when}, "
        f"and of those the {_SETS_SHOWN} furthest apart. They were chosen for being extreme, so a "
        "part of what changes here is chance; the tables say how much the model changed."
    )
    legend = (
        "Each cell shows the first reply; what differs within its row is bold. All replies: the "
        f"{name} of each, {_NOT_PARSED} where it could not be read, {_NOT_SCORED} where it could "
        "not be scored."
    )
    title = "One counterfactual set"
    first = SetExamples(title, "example", rule, legend, heading(name), sets[:1])
    more = SetExamples("More counterfactual sets", "examples", "", "", heading(name), sets[1:])
    return tuple(section for section in (first, more) if section.sets)


def by_set_and_variant(replies: Iterable[Reply], view: SetView) -> BySetAndVariant:
    """Sort replies by set and variant, in their order."""
    sets: dict[str, dict[str, list[Reply]]] = {}
    for reply in replies:
        if view.variant in reply.metadata:
            variants = sets.setdefault(reply.set_id, {})
            variants.setdefault(str(reply.metadata[view.variant]), []).append(reply)
    return sets


def choose_sets(sets: BySetAndVariant, view: SetView, group: str) -> list[str]:
    """The ids of the sets that the rule names; equal ones by id."""
    distances = {}
    for set_id, variants in sets.items():
        means = [mean_of(replies, view.figure) for replies in variants.values()]
        numbers = [mean for mean in means if mean is not None]
        # Nothing lies apart where fewer than two variants have a mean.
        distances[set_id] = round(max(numbers) - min(numbers), 9) if len(numbers) > 1 else -1.0
    ranked = sorted(distances, key=lambda set_id: (-distances[set_id], set_id))
    furthest: dict[str, str] = {}
    for set_id in ranked:
        furthest.setdefault(_group(sets[set_id], group, set_id), set_id)
    return list(furthest.values())[:_SETS_SHOWN]


def mean_of(replies: Sequence[Reply], key: str) -> float | None:
    """Return the mean of a number in the evidence over the replies that have it."""
    numbers = [value for reply in replies if (value := number(reply.evidence.get(key))) is not None]
    return fmean(numbers) if numbers else None


def _figure(reply: Reply, view: SetView) -> float | None:
    return number(reply.evidence.get(view.figure))


def _group(variants: Mapping[str, Sequence[Reply]], group: str, otherwise: str) -> str:
    first = next(iter(variants.values()))[0]
    return str(first.metadata.get(group, otherwise))


def _example(
    run: RunFiles,
    set_id: str,
    variants: tuple[str, ...],
    stages: Mapping[Stage, BySetAndVariant],
    view: SetView,
    group: str,
) -> ExampleSet:
    members = [reply for replies in stages["before"][set_id].values() for reply in replies]
    # What the variants share besides the title; lists are in the prompt.
    first, *siblings = (reply.metadata for reply in members)
    shared = [
        f"{plain_name(key)} {in_words(value)}"
        for key, value in first.items()
        if key != group
        and isinstance(value, str | int | float)
        and all(sibling.get(key) == value for sibling in siblings)
    ]
    rows = [
        (run.title_of(stage), _row(variants, sets[set_id], view))
        for stage, sets in stages.items()
        if set_id in sets
    ]
    return ExampleSet(
        title=heading(plain_name(_group(stages["before"][set_id], group, set_id))),
        shared=", ".join(shared),
        variants=tuple(printable(name) for name in variants),
        rows=tuple(rows),
        prompt=printable(members[0].prompt, _PROMPT_LIMIT),
        address=address(run, members[0]),
    )


def _row(
    names: Sequence[str], variants: Mapping[str, Sequence[Reply]], view: SetView
) -> tuple[Variant, ...]:
    columns = [variants.get(name, ()) for name in names]
    compared = [compared_fields(replies[0], view) if replies else {} for replies in columns]
    differing = differing_keys([fields for fields in compared if fields])
    pairs = zip(columns, compared, strict=True)
    return tuple(_variant(replies, fields, differing, view) for replies, fields in pairs)


def _fields(reply: Reply, view: SetView) -> Mapping[str, object]:
    fields = reply.evidence.get(view.fields)  # the task's own
    return fields if isinstance(fields, dict) else {}


def compared_fields(reply: Reply, view: SetView) -> dict[str, str]:
    """The compared values of a reply in words."""
    fields = _fields(reply, view).items()
    return {key: in_words(value) for key, value in fields if key != view.text}


def _variant(
    replies: Sequence[Reply], fields: Mapping[str, str], differing: set[str], view: SetView
) -> Variant:
    if not replies:
        return Variant((), "", "", "no reply", "", "", "")
    first, mean = replies[0], mean_of(replies, view.figure)
    fault, value = problem(first), _figure(first, view)
    text = _fields(first, view).get(view.text)
    return Variant(
        fields=tuple(Field(plain_name(k), v, k in differing) for k, v in fields.items()),
        figure="" if value is None else f"{value:g}",
        text=printable(text, _TEXT_LIMIT) if text else "",
        problem=printable(fault),
        reply=printable(first.completion, _REPLY_LIMIT) if fault else "",
        distribution=", ".join(_mark(reply, view) for reply in replies),
        mean="" if mean is None else figure(mean),
    )


def _mark(reply: Reply, view: SetView) -> str:
    if (value := _figure(reply, view)) is not None:
        return f"{value:g}"
    return _NOT_SCORED if reply.error else _NOT_PARSED


# --- answers that change with the variant ---------------------------------------------------------


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
class Flips(Section):
    """Flips under a heading that counts them, noted by which rule they are shown."""

    kind = "flips"
    summary: str = ""
    flips: tuple[Flip, ...] = ()


def changed_sets(run: RunFiles) -> tuple[Flips, ...]:
    """Find the counterfactual sets of an audited model whose usual answer differs by variant."""
    view = run.presentation.sets
    if view is None or not run.audited:
        return ()
    sets = by_set_and_variant(run.replies["before"], view)
    flips = [flip for set_id in sets if (flip := _flip(run, set_id, sets[set_id], view))]
    if not flips:
        return ()
    ranked = [flip for _, flip in sorted(flips, key=lambda flip: -flip[0])]
    examples = tuple(ranked[:MOST_SETS])
    name = run.name_of(view.figure)
    note = (
        "The usual answer has in each scored field the value of most replies, of equal ones that "
        f"with the lower {run.name_of(view.figure)}. A set flips where that differs "
        f"between variants. Shown are the two variants whose means of {name} lie furthest apart, "
        "and first the sets in which they do, with the number of replies of each value. They were "
        "chosen for being extreme: how often answers flip is in the tables, beside what noise "
        "alone gives."
    )
    title = f"{len(examples)} of {len(flips):,} sets that flip, of {len(sets):,} in all"
    return (Flips("Sets whose answer flips", "flips", note, title, examples),)


def _flip(
    run: RunFiles, set_id: str, variants: Mapping[str, Sequence[Reply]], view: SetView
) -> tuple[float, Flip] | None:
    """The two variants whose usual answers differ and whose means lie furthest apart, if any.

    As in a flip rate, a set has to have an answer to each variant.
    """
    counts = {name: _counts(replies, view) for name, replies in variants.items()}
    if not all(counts.values()):
        return None
    # The usual answer has in each field the first value, which is the most frequent one.
    answers = {
        variant: {name: next(iter(values)) for name, values in fields.items()}
        for variant, fields in counts.items()
    }
    means = {name: mean_of(replies, view.figure) for name, replies in variants.items()}
    pairs = [(a, b) for a, b in combinations(answers, 2) if answers[a] != answers[b]]
    if not pairs:
        return None
    gap, first, second = max((_gap(means[a], means[b]), a, b) for a, b in pairs)
    differing = differing_keys([answers[first], answers[second]])

    def side(variant: str) -> Side:
        shown = _in_words(counts[variant]).items()
        fields = (Field(printable(n), printable(text), n in differing) for n, text in shown)
        text = printable(variants[variant][0].prompt, TEXT_LIMIT)
        return Side(printable(variant), text, tuple(fields))

    has_means = None not in (means[first], means[second])
    sentence = f"Mean {run.name_of(view.figure)} {figure(means[first])} and {figure(means[second])}"
    return gap, Flip(
        title=f"{printable(set_id)}: {printable(first)} and {printable(second)}",
        facts=sentence if has_means else "",
        sides=(side(first), side(second)),
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
        return -len(alike), mean_of(alike, view.figure) or 0.0

    return {
        name: {v: len(values[v]) for v in sorted(values, key=lambda v: rank(values[v]))}
        for name, values in having.items()
    }


def _in_words(counts: Counts) -> dict[str, str]:
    """All values of each field, with their numbers if there are several replies."""
    return {
        name: ", ".join(f"{v} ({n})" for v, n in values.items())
        if sum(values.values()) > 1
        else next(iter(values))
        for name, values in counts.items()
    }
