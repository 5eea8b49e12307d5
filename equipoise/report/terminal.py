"""Sections of a document on a terminal: tables with what their small print says below them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from environments.presentation import Words
from equipoise.report.beside import mode_sections, probe_sections
from equipoise.report.document import Table, Tables
from equipoise.report.head import policy_alerts
from equipoise.report.run_files import RunFiles, read_presentation
from equipoise.report.tables import charted_breakdown, comparison_table, outcome, verdict_table
from equipoise.report.words import MINUS, MISSING, NO_BREAK, Stage
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

#: A terminal's text is searched, and may be in an encoding without them.
_PLAIN = str.maketrans({MINUS: "-", MISSING: "-", NO_BREAK: " ", "\N{RIGHTWARDS ARROW}": "to"})
#: What a narrow terminal leaves out first: text that is no verdict, then noise.
_TEXT, _NOISE = 90, 60
#: Names the column of noise, and need not be said in its cells.
_ALONE = "noise alone"


def print_sections(reporter: Reporter, sections: Iterable[Tables], all_in: str) -> None:
    """Print the tables of sections; what a narrow terminal leaves out is `all_in` a file."""
    for section in sections:
        for summary, table in section.tables:
            title = ": ".join(filter(None, (section.title, summary)))
            print_table(reporter, title, table, all_in)
        if section.note:
            reporter.say(section.note.translate(_PLAIN))


def print_table(reporter: Reporter, title: str, table: Table, all_in: str) -> None:
    """Print a table, then the notes of its cells; those on what is bad are warnings.

    Intervals and noise have columns of their own. Notes of the first column explain its names, and
    are left to the page.
    """
    parts = list(_columns(table))
    rows = [
        [getattr(row[n], name).removeprefix(f"{_ALONE} ").translate(_PLAIN) for n, name, _ in parts]
        for row in table.rows
    ]
    reporter.table(title.translate(_PLAIN), [column for *_, column in parts], rows, all_in)
    for first, *cells in table.rows:
        for cell in cells:
            if cell.note:
                say = reporter.warn if cell.bad else reporter.say
                say(f"{first.text}: {cell.note}".translate(_PLAIN))


def _columns(table: Table) -> Iterator[tuple[int, str, Column]]:
    """Each column on the terminal: the index and the attribute of its cells, and its layout."""
    numbers = 0
    for n, name in enumerate(table.columns):
        cells = [row[n] for row in table.rows]
        if not any(cell.kind == "number" for cell in cells):
            is_name = n == 0 or any(cell.kind.startswith("verdict") for cell in cells)
            yield n, "text", Column(name, folds=True, spare=0 if is_name else _TEXT)
            continue
        yield n, "text", Column(name, spare=3 * numbers)
        if any(cell.interval for cell in cells):
            level = f"{table.confidence} interval".strip()
            yield n, "interval", Column(level, spare=3 * numbers + 1)
        if any(cell.noise for cell in cells):
            yield n, "noise", Column(_ALONE, spare=_NOISE + numbers)
        numbers += 1


# --- what a run prints after its stages -----------------------------------------------------------


def print_evaluation(reporter: Reporter, evaluation: Mapping[str, Any], stage: Stage) -> None:
    """Metrics of one stage, then the breakdowns of which the task wants a chart."""
    run = RunFiles(evaluations={stage: evaluation}, presentation=read_presentation(evaluation))
    title = (
        f"{evaluation['n_rollouts']:,} rollouts of {evaluation['n_prompts']:,} prompts, "
        f"split {evaluation['split']}"
    )
    print_table(reporter, title, verdict_table(run), "evaluation.json")
    if evaluation["n_failed"]:
        reporter.warn(f"{evaluation['n_failed']:,} rollouts could not be scored")
    objective = run.objective
    if evaluation["metrics"].get(objective, {"value": 0})["value"] is None:
        reporter.warn(outcome(run).translate(_PLAIN))
    sections = [charted_breakdown(run, c) for c in run.presentation.charts if c.breakdown]
    print_sections(reporter, filter(None, sections), "evaluation.json")


def print_comparison(
    reporter: Reporter,
    comparison: Mapping[str, Any],
    words: Mapping[str, Words],
    *,
    title: str = "Before and after, on the same items",
    stages: tuple[str, str] = ("Before", "After"),
    all_in: str = "report.html",
) -> None:
    """Both sides of a comparison with the verdict, metric by metric; then guards and cuts."""
    print_table(reporter, title, comparison_table(comparison["metrics"], words, stages), all_in)


def print_beside(reporter: Reporter, run: RunFiles, all_in: str) -> None:
    """Other modes, and policies without skill, as far as they are there, with their alerts."""
    print_sections(reporter, (*mode_sections(run), *probe_sections(run)), all_in)
    for alert in policy_alerts(run):
        reporter.warn(alert.text)
