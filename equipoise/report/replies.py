"""Replies in words: what was wrong with one, those to some prompts, and why others failed.

Texts here come from a model. They are clipped and made visible, and the template escapes them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from environments.presentation import Column
from equipoise.report.document import Cell, Table, Tables
from equipoise.report.run_files import Reply, RunFiles
from equipoise.report.words import STAGES, Stage, heading, number, plain_name, printable

#: Prompts are taken in the order of the evaluation, at even distances: none is picked.
_PROMPTS_SHOWN = 6
_TITLE_LIMIT, _CELL_LIMIT, _ITEMS_SHOWN, _REASONS_SHOWN = 400, 600, 5, 5
#: The metadata key of what a prompt asks, for tasks whose prompts hold more than that.
QUESTION = "question"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of what is shown; `differs` when what is beside it does not agree."""

    name: str
    value: str
    differs: bool


def in_words(value: Any) -> str:
    """A JSON scalar in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    finite = number(value)
    return printable(value) if finite is None else f"{finite:g}"


def problem(reply: Reply) -> str:
    """Why a reply could not be read or scored; empty where it could."""
    if reply.unparseable is not None:
        return f"could not be read: {reply.unparseable}"
    return "" if reply.error is None else f"could not be scored: {reply.error}"


def reply_sections(run: RunFiles) -> tuple[Tables, ...]:
    """The table of replies that the task wants; none where it wants none."""
    table = run.presentation.table
    stages = {stage: _first_replies(run.replies[stage]) for stage in run.stages}
    prompts = list(next(iter(stages.values()), {}).items())
    if table is None or not prompts:
        return ()
    step = max(1, len(prompts) // _PROMPTS_SHOWN)
    columns = ("", *(printable(column.title) for column in table.columns))
    tables = []
    for prompt_id, reply in prompts[::step][:_PROMPTS_SHOWN]:
        rows = tuple(
            (Cell(run.title_of(stage)), *_cells(replies[prompt_id], table.columns))
            for stage, replies in stages.items()
            if prompt_id in replies
        )
        title = printable(reply.metadata.get(QUESTION, prompt_id), _TITLE_LIMIT)
        tables.append((title, Table(columns, rows)))
    note = f"{printable(table.note)}, at even distances through the evaluation."
    return (Tables(printable(table.title), "reply-table", note, tuple(tables), folded=True),)


def _first_replies(replies: Sequence[Reply]) -> dict[str, Reply]:
    """The first reply to each prompt, in the order of the prompts."""
    first: dict[str, Reply] = {}
    for reply in replies:
        first.setdefault(reply.prompt_id, reply)
    return first


def _cells(reply: Reply, columns: Sequence[Column]) -> Iterator[Cell]:
    """Yield the cells of the evidence. The first column has the reply where that is empty."""
    for index, column in enumerate(columns):
        cell = _cell(reply, column)
        yield Cell(printable(reply.completion, _CELL_LIMIT)) if not (index or cell.text) else cell


def _cell(reply: Reply, column: Column) -> Cell:
    if column.gold and (reply.error or reply.unparseable):
        return Cell("none", note=printable(reply.error or reply.unparseable))
    text = _listed(reply.evidence.get(column.key))
    if not column.gold:
        return Cell(text)
    gold = printable(reply.metadata.get(column.gold))
    return Cell(text, note="right" if text == gold else f"wrong, it is {gold}")


def _listed(value: Any) -> str:
    """A value, or the first items of a list of them."""
    if not isinstance(value, list):
        return "" if value is None else printable(value, _CELL_LIMIT)
    items = "; ".join(map(str, value[:_ITEMS_SHOWN]))
    more = f" and {len(value) - _ITEMS_SHOWN} more" * (len(value) > _ITEMS_SHOWN)
    return printable(items + more, _CELL_LIMIT)


# --- failures ------------------------------------------------------------------------------------


def failures(run: RunFiles) -> tuple[tuple[str, Table], ...]:
    """Tables of the most frequent reasons why replies could not be scored, and not be read."""
    unscored = _reasons(
        run,
        "By kind of failure, with the most frequent text of each.",
        lambda reply: None if reply.error is None else heading(plain_name(reply.failure_kind)),
        lambda reply: reply.error or "",
    )
    unreadable = _reasons(
        run,
        "They are scored, as the worst. The most frequent reasons:",
        lambda reply: reply.unparseable,
        lambda _: "",
    )
    titles = ("Replies that could not be scored", "Replies that could not be read")
    tables = zip(titles, (unscored, unreadable), strict=True)
    return tuple((title, table) for title, table in tables if table.rows)


def _reasons(
    run: RunFiles,
    note: str,
    name_of: Callable[[Reply], str | None],
    text_of: Callable[[Reply], str],
) -> Table:
    """A row for each reason: its most frequent text, how many before and after, and one reply."""
    counts: dict[str, Counter[Stage]] = {}
    texts: dict[str, Counter[str]] = {}
    examples: dict[tuple[str, str], str] = {}
    for stage in run.stages:
        for reply in run.replies[stage]:
            if (name := name_of(reply)) is not None:
                text = text_of(reply)
                counts.setdefault(name, Counter())[stage] += 1
                texts.setdefault(name, Counter())[text] += 1
                examples.setdefault((name, text), reply.completion)
    ranked = sorted(counts, key=lambda name: (-counts[name].total(), name))
    rows = []
    for name in ranked[:_REASONS_SHOWN]:
        text = texts[name].most_common(1)[0][0]
        rows.append(
            (
                Cell(printable(name), note=printable(text)),
                *(Cell(f"{counts[name][stage]}", kind="number") for stage in STAGES),
                Cell(printable(examples[name, text], _CELL_LIMIT), kind="quoted"),
            )
        )
    columns = ("Reason", *map(heading, STAGES), "One such reply")
    return Table(columns, tuple(rows), note=note)
