"""A document: the content of a run's or comparison's page, for a renderer.

`html` makes a page of it; `terminal` and `markdown` draw its tables. All of it is text, also of
others, which they make harmless, and charts that are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from equipoise.report.words import MISSING, clipped

#: A JSON value in words: text, or a list of names with their values.
Described = str | tuple[tuple[str, "Described"], ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: `noise` and `note` are small beneath text and interval, `kind` is a CSS class.

    A cell of kind `quoted` holds a model's text. A note that is `bad` news is a warning on a
    terminal.
    """

    text: str
    interval: str = ""
    note: str = ""
    kind: str = ""
    noise: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table: names of its columns, rows whose first cell is their heading, level of intervals.

    Its note stands above it.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    confidence: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, the one thing that is not escaped, and the text beneath it."""

    svg: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """A sentence, and the anchor of the section that says more."""

    text: str
    section: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section: links lead to its anchor, and its kind names what draws its content.

    A `folded` one is closed until a reader opens it.
    """

    kind: ClassVar[str]
    title: str
    anchor: str
    note: str = ""
    folded: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Tables(Section):
    """Tables with a heading each, and small print below them."""

    kind = "tables"
    tables: tuple[tuple[str, Table], ...] = ()
    small_print: str = ""


@dataclass(frozen=True, slots=True)
class Charts(Section):
    """Charts side by side, `more` of them folded away; `small` ones share a row."""

    kind = "charts"
    charts: tuple[Chart, ...] = ()
    more: tuple[Chart, ...] = ()
    small: bool = False


@dataclass(frozen=True, slots=True)
class Origins(Section):
    """Provenance as names with values, and a run's configuration."""

    kind = "provenance"
    facts: Described = ()
    config: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A page, the most important first."""

    title: str
    outcome: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()
    summary: str = ""
    alerts: tuple[Alert, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def titles(self) -> Mapping[str, str]:
        return {section.anchor: section.title for section in self.sections}

    @property
    def viewer(self) -> Section | None:
        return next((section for section in self.sections if section.kind == "viewer"), None)


def describe(value: Any) -> Described:
    """A JSON value in words: an object as names with values, a list as one line."""
    if isinstance(value, Mapping):
        return tuple((str(name), describe(held)) for name, held in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(describe(item)) for item in value)
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else clipped(str(value), 2000)
