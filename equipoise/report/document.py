"""The parts of a document that every producer makes and every renderer draws."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: `noise` and `note` are small beneath text and interval, `kind` is a CSS class.

    A note that is `bad` news is a warning on a terminal.
    """

    text: str
    interval: str = ""
    note: str = ""
    kind: str = ""
    noise: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table: names of its columns, rows whose first cell is their heading, level of intervals."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    confidence: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of evaluation.json: one table, or one for each key, with a summary each."""

    title: str
    note: str
    tables: tuple[tuple[str, Table], ...]
    folded: bool = False
