"""The report's part on modes: ways through the same prompts, and what was searched for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from equipoise.report.run_files import Json, Reply, RunFiles
from equipoise.report.tables import Cell, Section, Table, verdict_cells
from equipoise.report.words import (
    figure_and_interval,
    heading,
    metric_name,
    number,
    plain_name,
    printable,
    read_estimate,
)

#: Prompts are shown in the order of the evaluation, at even distances: none is picked.
_QUESTIONS_SHOWN = 6
_QUESTION_LIMIT, _REPLY_LIMIT, _DOCUMENTS_SHOWN = 400, 600, 5


def mode_sections(run: RunFiles) -> tuple[Section, ...]:
    """The modes side by side and the questions behind them; nothing for a task without modes."""
    return (_modes(run), _questions(run)) if run.modes else ()


def _modes(run: RunFiles) -> Section:
    notes = [
        "The same prompts in every mode. Pairs are compared with McNemar's exact test and Holm's "
        "correction over all pairs.",
        _seconds(run.modes),
        _sources(run.modes),
        *(printable(note, 500) for note in _list(run.modes.get("notes"))),
    ]
    tables = (("", _mode_table(run.modes)), ("", _pair_table(run.modes)))
    return Section("Modes side by side", " ".join(filter(None, notes)), tables)


def _seconds(modes: Json) -> str:
    found = modes.get("seconds")
    pairs = found.items() if isinstance(found, dict) else ()
    told = [f"{plain_name(n)} {1000 * s:.2g} ms" for n, v in pairs if (s := number(v)) is not None]
    return f"Mean time per question: {', '.join(told)}." if told else ""


def _sources(modes: Json) -> str:
    found = modes.get("sources")
    pairs = found.items() if isinstance(found, dict) else ()
    told = [printable(f"{plain_name(name)} {source}") for name, source in pairs if source]
    return f"Searched and answered with: {', '.join(told)}." if told else ""


def _mode_table(modes: Json) -> Table:
    found: Mapping[str, Any] = modes.get("modes") or {}
    metrics = dict.fromkeys(n for of_mode in found.values() for n in of_mode if _known(of_mode[n]))
    rows = [
        (Cell(plain_name(mode)), *(_estimate(of_mode.get(name)) for name in metrics))
        for mode, of_mode in found.items()
    ]
    return Table(("Mode", *(heading(metric_name(name)) for name in metrics)), tuple(rows))


def _known(found: object) -> bool:
    return (estimate := read_estimate(found)) is not None and estimate.value is not None


def _estimate(found: object) -> Cell:
    return Cell(*figure_and_interval(read_estimate(found)), kind="number")


def _pair_table(modes: Json) -> Table:
    name = heading(metric_name(str(modes.get("metric", ""))))
    rows = tuple(_pair_row(row) for row in _list(modes.get("comparisons")))
    columns = ("Pair", f"Change in {name.lower()}", "p after Holm", "Test", "Verdict")
    return Table(columns, rows)


def _pair_row(row: Json) -> tuple[Cell, ...]:
    modes = " \N{RIGHTWARDS ARROW} ".join(plain_name(str(mode)) for mode in _list(row.get("modes")))
    return (Cell(printable(modes)), *verdict_cells(row))


# --- questions ----------------------------------------------------------------------------------


def _questions(run: RunFiles) -> Section:
    stages = {stage: run.replies[stage] for stage in run.stages}
    first = next(iter(stages.values()), ())
    step = max(1, len(first) // _QUESTIONS_SHOWN)
    tables = tuple(
        (_question(reply), _question_table(reply.set_id, stages))
        for reply in first[::step][:_QUESTIONS_SHOWN]
    )
    note = "What was searched for, found and answered, at even distances through the evaluation."
    return Section("Questions side by side", note, tables, folded=True)


def _question(reply: Reply) -> str:
    return printable(reply.metadata.get("question", reply.set_id), _QUESTION_LIMIT)


def _question_table(set_id: str, stages: Mapping[Any, Sequence[Reply]]) -> Table:
    rows = [
        (Cell(f"{heading(stage)} training"), *_reply_cells(reply))
        for stage, replies in stages.items()
        for reply in _first_of(set_id, replies)
    ]
    return Table(("", "Queries", "Documents found", "Answer"), tuple(rows))


def _first_of(set_id: str, replies: Sequence[Reply]) -> Iterator[Reply]:
    found = next((reply for reply in replies if reply.set_id == set_id), None)
    if found:
        yield found


def _reply_cells(reply: Reply) -> tuple[Cell, ...]:
    documents = [str(name) for name in _list(reply.evidence.get("documents"))]
    more = f" and {len(documents) - _DOCUMENTS_SHOWN} more" * (len(documents) > _DOCUMENTS_SHOWN)
    shown = printable(", ".join(documents[:_DOCUMENTS_SHOWN]) + more, _REPLY_LIMIT)
    queries = "; ".join(map(str, _list(reply.evidence.get("queries")))) or reply.completion
    return (Cell(printable(queries, _REPLY_LIMIT)), Cell(shown), _answer(reply))


def _answer(reply: Reply) -> Cell:
    if reply.error or reply.unparseable:
        return Cell("none", note=printable(reply.error or reply.unparseable))
    letter = printable(reply.evidence.get("answer"))
    gold = printable(reply.metadata.get("gold"))
    return Cell(letter, note="right" if letter == gold else f"wrong, it is {gold}")


def _list(found: object) -> list[Any]:
    return found if isinstance(found, list) else []
