"""Counterfactual sets to read side by side, and what could not be scored or read.

Texts here come from a model. They are clipped and made visible, and the template escapes them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import (
    STAGES,
    Stage,
    figure,
    heading,
    number,
    plain_name,
    printable,
)

RULE = (
    "Of each clinical case the set whose race means of invasiveness lay furthest apart before "
    "training, and of those the three furthest apart. They were chosen for being extreme, so a "
    "part of what changes here is chance; the tables above say how much the model changed."
)
_SETS_SHOWN, _REASONS_SHOWN = 3, 5
_REPLY_LIMIT, _PROMPT_LIMIT = 600, 3000
_NOT_PARSED, _NOT_SCORED = "\N{MULTIPLICATION SIGN}", "!"

BySetAndRace = Mapping[str, Mapping[str, Sequence[Reply]]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of what is shown; `differs` when what stands beside it does not agree."""

    name: str
    value: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """One race at one stage: the first reply in words, and how all replies are distributed."""

    fields: tuple[Field, ...]
    invasiveness: str
    rationale: str
    problem: str
    reply: str
    distribution: str
    mean: str


@dataclass(frozen=True, slots=True)
class ExampleSet:
    """One counterfactual set: `rows` holds a stage and its variants, in the order of `races`."""

    title: str
    patient: str
    races: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Variant, ...]], ...]
    prompt: str


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that replies share: how many before and after, and one of these replies."""

    text: str
    before: int
    after: int
    reply: str


# --- counterfactual sets ------------------------------------------------------------------------


def example_sets(run: RunFiles) -> tuple[ExampleSet, ...]:
    """The sets that `RULE` chooses; none for a task without races."""
    stages = {stage: _by_set_and_race(run.replies[stage]) for stage in run.stages}
    if "before" not in stages:
        return ()
    races = _races(run, stages["before"])
    return tuple(_example(set_id, races, stages) for set_id in choose_sets(stages["before"]))


def _by_set_and_race(replies: Iterable[Reply]) -> BySetAndRace:
    found: dict[str, dict[str, list[Reply]]] = {}
    for reply in replies:
        if "race" in reply.metadata:
            variants = found.setdefault(reply.set_id, {})
            variants.setdefault(str(reply.metadata["race"]), []).append(reply)
    return found


def choose_sets(sets: BySetAndRace) -> list[str]:
    """The ids of the sets that `RULE` names; equal ones by id."""
    distances = {set_id: _distance(variants) for set_id, variants in sets.items()}
    ranked = sorted(distances, key=lambda set_id: (-distances[set_id], set_id))
    furthest_of_case: dict[str, str] = {}
    for set_id in ranked:
        furthest_of_case.setdefault(_case(sets[set_id], set_id), set_id)
    return list(furthest_of_case.values())[:_SETS_SHOWN]


def _distance(variants: Mapping[str, Sequence[Reply]]) -> float:
    """Largest minus smallest race mean; -1 where fewer than two races have one."""
    means = [mean for replies in variants.values() if (mean := _mean(replies)) is not None]
    return round(max(means) - min(means), 9) if len(means) > 1 else -1.0


def _mean(replies: Sequence[Reply]) -> float | None:
    known = [value for reply in replies if (value := reply.invasiveness) is not None]
    return fmean(known) if known else None


def _case(variants: Mapping[str, Sequence[Reply]], otherwise: str) -> str:
    first = next(iter(variants.values()))[0]
    return str(first.metadata.get("case", otherwise))


def _races(run: RunFiles, sets: BySetAndRace) -> tuple[str, ...]:
    """The races in the order of the evaluation, then any other."""
    named = run.latest.get("by_race")
    order = list(named) if isinstance(named, dict) else []
    return tuple(dict.fromkeys([*order, *(race for found in sets.values() for race in found)]))


def _example(
    set_id: str, races: tuple[str, ...], stages: Mapping[Stage, BySetAndRace]
) -> ExampleSet:
    members = [reply for replies in stages["before"][set_id].values() for reply in replies]
    rows = [
        (f"{heading(stage)} training", _row(races, sets[set_id]))
        for stage, sets in stages.items()
        if set_id in sets
    ]
    return ExampleSet(
        title=heading(plain_name(_case(stages["before"][set_id], set_id))),
        patient=_shared(members),
        races=tuple(printable(race) for race in races),
        rows=tuple(rows),
        prompt=printable(members[0].prompt, _PROMPT_LIMIT),
    )


def _shared(members: Sequence[Reply]) -> str:
    """What the variants have in common, which is all but race."""
    first, *others = (reply.metadata for reply in members)
    same = {k: v for k, v in first.items() if k != "case" and all(o.get(k) == v for o in others)}
    return ", ".join(f"{plain_name(key)} {printable(value)}" for key, value in same.items())


def _row(races: Sequence[str], variants: Mapping[str, Sequence[Reply]]) -> tuple[Variant, ...]:
    found = [variants.get(race, ()) for race in races]
    decisions = [_decision(replies[0]) if replies else {} for replies in found]
    differing = _differing([decision for decision in decisions if decision])
    pairs = zip(found, decisions, strict=True)
    return tuple(_variant(replies, decision, differing) for replies, decision in pairs)


def _decision(reply: Reply) -> dict[str, str]:
    """The decision of a reply in words, without the rationale."""
    found = reply.evidence.get("decision")
    fields = found if isinstance(found, dict) else {}
    return {key: in_words(value) for key, value in fields.items() if key != "rationale"}


def in_words(value: Any) -> str:
    """A JSON scalar in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    known = number(value)
    return printable(value) if known is None else f"{known:g}"


def _differing(decisions: Sequence[Mapping[str, str]]) -> set[str]:
    """The fields on which the decisions are not all alike."""
    names = {name for decision in decisions for name in decision}
    return {name for name in names if len({decision.get(name) for decision in decisions}) > 1}


def _variant(replies: Sequence[Reply], decision: Mapping[str, str], differing: set[str]) -> Variant:
    if not replies:
        return Variant((), "", "", "no reply", "", "", "")
    first, mean = replies[0], _mean(replies)
    wrong = problem(first)
    return Variant(
        fields=tuple(Field(plain_name(k), v, k in differing) for k, v in decision.items()),
        invasiveness="" if first.invasiveness is None else f"{first.invasiveness:g}",
        rationale=_rationale(first),
        problem=printable(wrong),
        reply=printable(first.completion, _REPLY_LIMIT) if wrong else "",
        distribution=",".join(_mark(reply) for reply in replies),
        mean="" if mean is None else figure(mean),
    )


def problem(reply: Reply) -> str:
    """Why a reply could not be read or scored; empty where it could."""
    if reply.unparseable is not None:
        return f"could not be read: {reply.unparseable}"
    return "" if reply.error is None else f"could not be scored: {reply.error}"


def _rationale(reply: Reply) -> str:
    found = reply.evidence.get("decision")
    text = found.get("rationale") if isinstance(found, dict) else None
    return printable(text, 300) if text else ""


def _mark(reply: Reply) -> str:
    if reply.invasiveness is not None:
        return f"{reply.invasiveness:g}"
    return _NOT_SCORED if reply.error else _NOT_PARSED


# --- failures -----------------------------------------------------------------------------------


def failures(run: RunFiles) -> tuple[Reason, ...]:
    """The most frequent errors of replies that could not be scored."""
    return _reasons(run, lambda reply: reply.error)


def unparseable(run: RunFiles) -> tuple[Reason, ...]:
    """The most frequent reasons of replies that could not be read."""
    return _reasons(run, lambda reply: reply.unparseable)


def _reasons(run: RunFiles, reason_of: Callable[[Reply], str | None]) -> tuple[Reason, ...]:
    counts: dict[Stage, Counter[str]] = {stage: Counter() for stage in STAGES}
    example: dict[str, str] = {}
    for stage in run.stages:
        for reply in run.replies[stage]:
            if (reason := reason_of(reply)) is not None:
                counts[stage][reason] += 1
                example.setdefault(reason, reply.completion)
    before, after = counts["before"], counts["after"]
    ranked = sorted(example, key=lambda reason: (-before[reason] - after[reason], reason))
    return tuple(
        Reason(
            text=printable(reason),
            before=before[reason],
            after=after[reason],
            reply=printable(example[reason], _REPLY_LIMIT),
        )
        for reason in ranked[:_REASONS_SHOWN]
    )
