"""Renderers of a document: one self-contained page, Markdown, tables on a terminal."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from environments.presentation import Presentation
from equipoise.files.console import Column, Reporter
from equipoise.report.document import Cell, Document, Table, Tables
from equipoise.report.head import baseline_alerts
from equipoise.report.run_files import STAGE_OF, RunFiles
from equipoise.report.tables import (
    charted_breakdown,
    comparison_table,
    mode_sections,
    outcome,
    probe_sections,
    summary,
    verdict_table,
)
from equipoise.report.words import MINUS, MISSING, NO_BREAK, Stage, printable
from equipoise.run.directory import Evaluation, Probe
from equipoise.run.job import Measured
from equipoise.run.ledger import AuditRow, Provenance

# --- html -----------------------------------------------------------------------------------------
# One self-contained page. The template makes all text of a document harmless as it shows it.


_VERDICT_MARKS = {
    **dict.fromkeys(("worse", "guard not preserved", "not preserved"), "\N{BALLOT X}"),
    **dict.fromkeys(("better", "guard preserved", "preserved"), "\N{CHECK MARK}"),
    "changed": "\N{LEFT RIGHT ARROW}",
    **dict.fromkeys(("no evidence", "not measured"), "\N{EN DASH}"),
    **dict.fromkeys(("guard inconclusive", "inconclusive"), "?"),
}


#: A configuration is shown whole.
_LONGEST_CONFIG = 200_000


def page(document: Document) -> str:
    """The page. The same document gives the same bytes."""
    environment = templates(
        finalize=lambda value: value if isinstance(value, Markup) else printable(value)
    )
    environment.filters["marked"] = marked
    environment.filters["configuration"] = lambda text: escape(printable(text, _LONGEST_CONFIG))
    return environment.get_template("template.html.j2").render(document=document) + "\n"


def templates(**options: Any) -> Environment:
    """The templates beside this file; what they show is escaped."""
    return Environment(
        loader=PackageLoader("equipoise.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def marked(text: str) -> str:
    """A verdict, or the outcome of a guard, with a mark, so that no reader depends on colour."""
    mark = next((mark for word, mark in _VERDICT_MARKS.items() if text.startswith(word)), "")
    return f"{mark} {text}".lstrip()


# --- markdown -------------------------------------------------------------------------------------
# Text and tables of others as Markdown that shows them as they are.
#
# All of it is escaped, as Markdown and as HTML, and a reader can see whatever is in it.


#: What Markdown, HTML and the hub's own pages read as more than a character.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~!$@^]|:(?=//)")


def escaped(text: object) -> Markup:
    """Text on one line without a table, link, name, formula or tag."""
    line = " ".join(printable(text).split()).replace("&", "&amp;")
    entities = {"<": "&lt;", ">": "&gt;"}
    text = _MARKUP.sub(lambda mark: entities.get(mark[0], f"\\{mark[0]}"), line)
    return Markup(text)  # noqa: S704  that is what the escaping is for


def grid(table: Table) -> Markup:
    """A table, the intervals in brackets and the notes below their figures."""
    rows = [list(map(escaped, table.columns)), [Markup("---")] * len(table.columns)]
    rows += [list(map(_cell, row)) for row in table.rows]
    return Markup("\n").join(Markup("| {} |").format(Markup(" | ").join(row)) for row in rows)


def _cell(cell: Cell) -> Markup:
    interval = f" ({cell.interval})" if cell.interval else ""
    note = Markup("<br>") + escaped(cell.note) if cell.note else ""
    return escaped(cell.text + interval) + note


# --- terminal -------------------------------------------------------------------------------------
# Sections of a document on a terminal: tables with what their small print says below them.


#: A terminal's text is searched, and may be in an encoding without them.
_PLAIN = str.maketrans({MINUS: "-", MISSING: "-", NO_BREAK: " ", "\N{RIGHTWARDS ARROW}": "to"})


def plain(text: str) -> str:
    return printable(text).translate(_PLAIN)


#: Names the column of noise, and need not be said in its cells.
_ALONE = "noise alone"


def print_sections(reporter: Reporter, sections: Iterable[Tables]) -> None:
    """Print the tables of sections."""
    for section in sections:
        for name, table in section.tables:
            title = ": ".join(filter(None, (section.title, name)))
            print_table(reporter, title, table)
        if section.note:
            reporter.say(plain(section.note))


def print_table(reporter: Reporter, title: str, table: Table) -> None:
    """Print a table, then the notes of its cells; those on what is bad are warnings.

    Intervals and noise have columns of their own. Notes of the first column explain its names, and
    are left to the page. Rows without a figure are named in one line.
    """
    parts = list(_columns(table))
    measured = [row for row in table.rows if _has_figure(row)]
    rows = [
        [plain(getattr(row[n], name).removeprefix(f"{_ALONE} ")) for n, name, _ in parts]
        for row in measured
    ]
    if rows or not table.rows:
        reporter.table(plain(title), [column for *_, column in parts], rows)
    notes = {}
    for first, *cells in measured:
        for cell in cells:
            if cell.note:
                # A note that explains a word is the same in every row, and said once.
                subject = first.text if cell.kind else cell.text
                notes[f"{subject}: {cell.note}"] = cell.bad
    for note, bad in notes.items():
        (reporter.warn if bad else reporter.say)(plain(note))
    if empty := [row[0].text for row in table.rows if not _has_figure(row)]:
        named = "" if rows else f"{title}: "
        reporter.warn(plain(f"{named}not measured: {', '.join(empty)}"))


def _has_figure(row: Sequence[Cell]) -> bool:
    """Whether a row has a figure, or needs none."""
    figures = [cell.text for cell in row if cell.kind == "number"]
    return not figures or any(text != MISSING for text in figures)


def _columns(table: Table) -> Iterator[tuple[int, str, Column]]:
    """Each column on the terminal: the index and the attribute of its cells, and its layout."""
    for n, name in enumerate(table.columns):
        cells = [row[n] for row in table.rows]
        is_figure = any(cell.kind == "number" for cell in cells)
        yield n, "text", Column(printable(name), folds=not is_figure)
        if is_figure and any(cell.interval for cell in cells):
            yield n, "interval", Column(f"{table.confidence} interval".strip())
        if is_figure and any(cell.noise for cell in cells):
            yield n, "noise", Column(_ALONE)


# --- what a run prints after its stages -----------------------------------------------------------


def print_stage(
    reporter: Reporter,
    presentation: Presentation,
    stage: str,
    content: Measured,
    *,
    audited: bool = False,
) -> None:
    """Print what a stage of a run, or a row of an audit, has measured."""
    if isinstance(content, Evaluation):
        print_evaluation(reporter, content, STAGE_OF[stage], audited=audited)
    elif isinstance(content, Probe):
        print_beside(reporter, RunFiles(probe=content, presentation=presentation))
    else:
        probe = content.trivial or Probe()
        print_beside(reporter, RunFiles(modes=content, probe=probe, presentation=presentation))


def print_evaluation(
    reporter: Reporter, evaluation: Evaluation, stage: Stage, *, audited: bool = False
) -> None:
    """Print the metrics of one stage, then the breakdowns that the task draws."""
    run = RunFiles(
        provenance=Provenance(audit=AuditRow() if audited else None),
        evaluations={stage: evaluation},
        presentation=evaluation.presentation,
    )
    title = (
        f"{evaluation.n_rollouts:,} rollouts of {evaluation.n_prompts:,} prompts, "
        f"split {evaluation.split}"
    )
    print_table(reporter, title, verdict_table(run))
    if evaluation.n_failed:
        reporter.warn(f"{evaluation.n_failed:,} rollouts could not be scored")
    objective = evaluation.metrics.get(run.objective)
    if objective and objective.value is None:
        reporter.warn(plain(outcome(run)))
    breakdowns = [charted_breakdown(run, c) for c in run.presentation.charts if c.breakdown]
    for title, table in filter(None, breakdowns):
        print_table(reporter, title, table)


def print_result(reporter: Reporter, run: RunFiles) -> None:
    """Print every metric with its verdict, and at the end what happened in plain sentences."""
    print_table(reporter, "Before and after, on the same items", comparison_table(run))
    for text in filter(None, (outcome(run), summary(run))):
        reporter.say(plain(f"\n{text}"))


def print_beside(reporter: Reporter, run: RunFiles) -> None:
    """Other modes, and trivial baselines, as far as they are there, with their alerts."""
    print_sections(reporter, (*mode_sections(run), *probe_sections(run)))
    for alert in baseline_alerts(run):
        reporter.warn(alert.text)
