"""What the report shows of a judged task: replies by prompt scope, and the judge's agreement."""

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.report.run_files import Json, Reply, RunFiles
from equipoise.report.tables import Cell, Section, Table
from equipoise.report.words import (
    figure,
    figure_and_interval,
    heading,
    metric_name,
    number,
    plain_name,
    printable,
    read_estimate,
)

REPLIES_NOTE = (
    "Of each prompt scope the prompts whose reward changed most, in either direction, by the mean "
    "over their replies; shown is the first reply at each stage. They were chosen for being "
    "extreme; the tables above say how much the model changed."
)
_SHOWN, _REPLY_LIMIT = 3, 400


# --- replies -------------------------------------------------------------------------------------


def reply_sections(run: RunFiles) -> tuple[Section, ...]:
    """Prompts with their replies, scope by scope; nothing for a task without prompt scopes."""
    before, after = (_by_prompt(run.replies[stage]) for stage in ("before", "after"))
    scopes: dict[str, list[str]] = {}
    for name, replies in before.items():
        if (scope := _scope(replies[0])) and name in after:
            scopes.setdefault(scope, []).append(name)
    tables = tuple(
        (f"Prompts of scope {printable(scope)}", _replies(scopes[scope], before, after))
        for scope in sorted(scopes)
    )
    return (Section("Replies by prompt scope", REPLIES_NOTE, tables, True),) if tables else ()


Replies = Mapping[str, Sequence[Reply]]


def _by_prompt(replies: Sequence[Reply]) -> Replies:
    found: dict[str, list[Reply]] = {}
    for reply in replies:
        found.setdefault(reply.prompt, []).append(reply)
    return found


def _scope(reply: Reply) -> str:
    label = reply.evidence.get("label")
    return str(label.get("scope") or "") if isinstance(label, dict) else ""


def _replies(names: Sequence[str], before: Replies, after: Replies) -> Table:
    """The prompts that changed most, with the first reply before and after."""

    def change(name: str) -> float:
        return abs(_mean(after[name]) - _mean(before[name]))

    chosen = sorted(names, key=lambda name: (-change(name), name))[:_SHOWN]
    rows = tuple(
        (
            Cell(printable(before[name][0].metadata.get("question", name), _REPLY_LIMIT)),
            _reply(before[name][0]),
            _reply(after[name][0]),
        )
        for name in chosen
    )
    return Table(("Prompt", "Before", "After"), rows)


def _mean(replies: Sequence[Reply]) -> float:
    known = [combined for reply in replies if (combined := _combined(reply)) is not None]
    return sum(known) / len(known) if known else 0.0


def _decision(reply: Reply) -> Json:
    found = reply.evidence.get("decision")
    return found if isinstance(found, dict) else {}


def _combined(reply: Reply) -> float | None:
    return number(_decision(reply).get("combined"))


def _reply(reply: Reply) -> Cell:
    """A reply with its combined score, and what the policy found wrong with it."""
    reasons = _decision(reply).get("reasons")
    wrong = ", ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    found = [f"combined {figure(_combined(reply))}", wrong, reply.unparseable or reply.error or ""]
    note = printable("; ".join(part for part in found if part))
    return Cell(printable(reply.completion, _REPLY_LIMIT), note=note)


# --- agreement -----------------------------------------------------------------------------------


def agreement_sections(agreement: Json) -> tuple[Section, ...]:
    """The sections of judge_agreement.json; none where there is no such file."""
    judge = printable(agreement.get("judge") or "")
    return tuple(
        _agreement(judge, agreement[part])
        for part in ("labels", "judges")
        if isinstance(agreement.get(part), dict)
    )


def _agreement(judge: str, found: Json) -> Section:
    judged, failed = (number(found.get(key)) or 0 for key in ("n", "failed"))
    note = (
        f"Judge: {judge}. {judged:,.0f} judged, {failed:,.0f} failed. Kappa is weighted by squared "
        "distance; 1 is full agreement, 0 what chance gives."
    )
    tables = [("Measures", _measures(found.get("metrics")))]
    confusion = found.get("confusion")
    if isinstance(confusion, dict):
        tables += [
            (f"{heading(plain_name(name))}: rows {printable(found.get('of'))}, columns this judge",
             _confusion(counts))
            for name, counts in confusion.items()
            if isinstance(counts, dict)
        ]  # fmt: skip
    title = f"Agreement of the judge with {printable(found.get('of') or 'another')}"
    return Section(title, note, tuple(tables), True)


def _measures(metrics: Any) -> Table:
    rows = metrics.items() if isinstance(metrics, dict) else ()
    cells = tuple(
        (
            Cell(heading(metric_name(name))),
            Cell(*figure_and_interval(read_estimate(found)), kind="number"),
        )
        for name, found in rows
    )
    return Table(("Measure", "Value"), cells)


def _confusion(counts: Mapping[str, Any]) -> Table:
    columns = list(counts)
    rows = tuple(
        (Cell(printable(first)), *(Cell(_count(row, name), kind="number") for name in columns))
        for first, row in counts.items()
    )
    return Table(("", *(printable(name) for name in columns)), rows)


def _count(row: Any, name: str) -> str:
    found = number(row.get(name)) if isinstance(row, dict) else None
    return figure(found) if found is None else f"{found:,.0f}"
