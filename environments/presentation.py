"""Presentation of a task: names for its figures, charts, the look of examples.

All of it is data. Every evaluation.json holds a copy, so that terminal, tracker and report know no
task, and a report is made from the files of a run alone. What a task leaves out has a default that
suits any task.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Words:
    """A name in words: its label within a sentence, and a short note on its meaning."""

    label: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence on one metric in the terms of the people concerned.

    `text` holds {value}, the metric times `scale`. With a `breakdown` it also holds {most} and
    {least}, the keys of that section with the largest and the smallest `measure`.
    """

    metric: str
    text: str
    scale: float = 1.0
    breakdown: str = ""
    measure: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric at both stages, with its intervals.

    With a `breakdown` it has a row for each key of that section. Without one the metric is beside
    what sampling noise alone gives: a band that begins at `equal`, the value where there is nothing
    to find, while `null` says how the noise was drawn.
    """

    metric: str
    axis: str
    caption: str
    breakdown: str = ""
    equal: float = 0.0
    null: str = ""


@dataclass(frozen=True, slots=True)
class SetView:
    """The variants of a counterfactual set side by side, those furthest apart first.

    `variant` is the metadata key in which they differ. In the evidence of a reply `figure` is the
    key of the number that is compared, `fields` that of an object with such values, and `text` the
    one of these values that is there to be read. `patient` are the metadata keys that describe the
    patient; without them all that the variants share is shown.
    """

    variant: str
    figure: str
    fields: str
    text: str = ""
    patient: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column with the text, or the list of texts, under `key` in a reply's evidence.

    `gold` is the metadata key of what is right, for a column that may be right or wrong.
    """

    title: str
    key: str
    gold: str = ""


@dataclass(frozen=True, slots=True)
class ReplyTable:
    """A table with the replies of both stages to some prompts; `note` says what it holds."""

    title: str
    note: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Presentation:
    """All that a task says of itself.

    `title` is its name in a heading, `words` the names of metrics, of breakdowns and of metadata
    keys; what they lack goes by its own name, underscores as spaces. The report begins with the
    `findings`, or without them with the first metric. Without `charts` the metrics that share its
    scale are drawn. `one_of_each` is a metadata key: a few prompts are drawn by it, and the viewer
    has it as a filter.
    """

    title: str = ""
    words: Mapping[str, Words] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    charts_title: str = ""
    charts: tuple[Chart, ...] = ()
    one_of_each: str = ""
    sets: SetView | None = None
    table: ReplyTable | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what evaluation.json holds."""
        content: dict[str, Any] = _JSON.dump_python(self, mode="json")
        return content


_JSON = TypeAdapter(Presentation)
