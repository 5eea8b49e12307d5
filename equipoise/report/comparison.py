"""compare.html and its tables on a terminal: several entries beside each other."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from environments.presentation import Chart as TaskChart
from environments.presentation import Finding, Presentation
from equipoise.config.schema import LOCAL_MODEL
from equipoise.files.console import Reporter
from equipoise.files.disk import write_json, write_text
from equipoise.report import charts
from equipoise.report.document import (
    Alert,
    Cell,
    Chart,
    Charts,
    Document,
    Origins,
    Section,
    Table,
    Tables,
    describe,
)
from equipoise.report.renderers import page, print_sections
from equipoise.report.replies import reply_sections
from equipoise.report.report import breakdown_chart
from equipoise.report.run_files import RunFiles, read_replies
from equipoise.report.sets import set_sections
from equipoise.report.tables import (
    BAD_NEWS,
    DECIDING_INTERVAL,
    bad_news,
    comparison_table,
    deciding_cells,
    ends_of,
    figure_cell,
    verdict_cells,
)
from equipoise.report.words import (
    MISSING,
    STAGES,
    Stage,
    figure,
    figure_with_interval,
    floor,
    heading,
    level_of,
    metric_name,
    metric_note,
    p_value,
    plain_name,
    printable,
)
from equipoise.run.directory import Evaluation
from equipoise.statistics.evaluation import Estimate
from equipoise.statistics.seeds import ComparedEntry, ComparedPair, Difference, EntriesComparison

_AGAINST = ("Difference from the first", "p after Holm", "Verdict")
_LOCAL_MODEL_NOTE = (
    "The local model is tiny and invented. It shows and tests the pipeline and says nothing of any "
    "model that is meant for use."
)
OWN_REFERENCE = "each is held against a reference of its own"


def show_comparison(
    comparison: EntriesComparison,
    presentation: Presentation,
    folder: Path,
    reporter: Reporter,
) -> None:
    """Print the tables and the notes, and write both files."""
    print_sections(reporter, comparison_sections(comparison, presentation))
    for note in comparison_notes(comparison, presentation):
        reporter.warn(note)
    reporter.say(f"\n{comparison_outcome(comparison, presentation)}")
    data, path = folder / "compare.json", folder / "compare.html"
    write_json(data, asdict(comparison))
    write_text(path, comparison_page(comparison, presentation))
    reporter.say(f"\ncomparison: {path}\n            {data}")


def comparison_page(content: EntriesComparison, presentation: Presentation) -> str:
    """Render the page of a comparison."""
    first, *siblings = (entry.name for entry in content.entries)
    entries, *full = comparison_sections(content, presentation)
    verdicts = [_verdicts(content, pair, presentation) for pair in content.comparisons]
    drawn = tuple(_charts(content, presentation))
    items = dict.fromkeys(str(n) for pair in content.comparisons for n in pair.items)
    provenance = tuple((printable(e.name), describe(_summary(e))) for e in content.entries)
    return page(
        Document(
            title=f"{heading(printable(presentation.title) or plain_name(content.task))}: "
            f"{printable(', '.join(siblings))} against {printable(first)}",
            facts=(
                ("Entries", f"{len(content.entries)}"),
                ("Prompts compared", ", ".join(items)),
                ("Intervals", level_of(content.confidence)),
            ),
            alerts=tuple(_alerts(content, presentation)),
            outcome=comparison_outcome(content, presentation),
            notes=tuple(comparison_notes(content, presentation)),
            sections=(
                *((Charts("Estimates and intervals", "charts", charts=drawn),) if drawn else ()),
                *_examples(content, presentation),
                *(
                    replace(section, note=DECIDING_INTERVAL, tables=(("", short),))
                    if short
                    else section
                    for section, short in zip(full, verdicts, strict=True)
                ),
                entries,
                *(
                    replace(
                        section,
                        title=f"{section.title}, all metrics",
                        anchor=f"all-{section.anchor}",
                        folded=True,
                    )
                    for section, short in zip(full, verdicts, strict=True)
                    if short
                ),
                _side_by_side(content, presentation),
                Origins("Provenance", "provenance", facts=provenance, folded=True),
            ),
        )
    )


def comparison_sections(content: EntriesComparison, presentation: Presentation) -> list[Tables]:
    """Tabulate all entries in the first metric, then each pair in every metric."""
    sections = [_every_entry(content, presentation)]
    for number, pair in enumerate(content.comparisons, start=1):
        sides = printable(pair.first), printable(pair.second)
        notes = dict.fromkeys(pair.own_references, OWN_REFERENCE)
        table = comparison_table(pair.metrics, presentation.words, sides, notes)
        items = ", ".join(f"{n:,}" for n in pair.items)
        note = f"On the same prompts ({items}). Holm's correction is over all metrics of all pairs."
        title = f"{sides[1]} against {sides[0]}"
        sections.append(Tables(title, f"comparison-{number}", note, (("", table),)))
    return sections


def _verdicts(
    content: EntriesComparison, pair: ComparedPair, presentation: Presentation
) -> Table | None:
    """Tabulate the first metric and the guards, which decide; None without guards."""
    first = next(iter(content.entries[0].metrics))
    rows = {n: row for n, row in pair.metrics.items() if row.guard or n == first}
    if not any(row.guard for row in rows.values()):
        return None
    cells = tuple(
        (
            Cell(
                heading(metric_name(name, presentation.words)),
                note=OWN_REFERENCE if name in pair.own_references else "",
            ),
            *(Cell(figure(value), kind="number") for value in (row.before, row.after)),
            *deciding_cells(row),
        )
        for name, row in rows.items()
    )
    sides = printable(pair.first), printable(pair.second)
    return Table(("Metric", *sides, "Change", "Margin", "Verdict"), cells)


def comparison_notes(content: EntriesComparison, presentation: Presentation) -> Iterator[str]:
    """Yield what limits the comparison, such as other sampling."""
    if any(LOCAL_MODEL in entry.models for entry in content.entries):
        yield _LOCAL_MODEL_NOTE
    if content.allowed:
        allowed = ", ".join(map(plain_name, content.allowed))
        yield f"Compared although it is not alike, since that was asked for: {allowed}."
    for pair in content.comparisons:
        names = printable(pair.first), printable(pair.second)
        if pair.drawn_differently:
            yield f"{names[0]} and {names[1]}: {other_drawing(pair.drawn_differently)}"
        if pair.own_references:
            labels = (metric_name(name, presentation.words) for name in pair.own_references)
            yield f"{', '.join(labels)} of {names[0]} and {names[1]}: {OWN_REFERENCE}."
        if unlike := [f"{a:,} against {b:,}" for a, b in pair.replies if a != b]:
            yield (
                f"{names[0]} and {names[1]} do not have the same number of replies to these "
                f"prompts: {', '.join(unlike)}."
            )
    for entry in content.entries:
        yield from (f"{printable(entry.name)}: {printable(s)}." for s in entry.stand_ins)
    for entry in content.entries:
        if entry.n_failed:
            yield (
                f"{printable(entry.name)}: {entry.n_failed:,} of {entry.n_rollouts:,} replies have "
                "no score."
            )


def other_drawing(differences: Iterable[Difference]) -> str:
    """Say what differs between the two sides besides the model."""
    return f"replies were not drawn alike: {'; '.join(printable(str(d)) for d in differences)}."


def _summary(entry: ComparedEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(entry).items() if name != "metrics"}


def _alerts(content: EntriesComparison, presentation: Presentation) -> Iterator[Alert]:
    for number, pair in enumerate(content.comparisons, start=1):
        for words in BAD_NEWS:
            names = [name for name, row in pair.metrics.items() if bad_news(row) == words]
            if names:
                labels = ", ".join(metric_name(name, presentation.words) for name in names)
                against = f"{printable(pair.second)} against {printable(pair.first)}"
                yield Alert(f"{words}, {against}: {labels}.", f"comparison-{number}")


def comparison_outcome(content: EntriesComparison, presentation: Presentation) -> str:
    """Say what was measured in the words of the task's findings, else the first metric."""
    metrics = content.entries[0].metrics
    findings = [finding for finding in presentation.findings if finding.metric in metrics]
    told = [_of_finding(content, finding) for finding in findings]
    return " ".join(told) or _sentence(content, next(iter(metrics)), presentation)


def _of_finding(content: EntriesComparison, finding: Finding) -> str:
    rows = [pair.metrics.get(finding.metric) for pair in content.comparisons]
    first, *entries = content.entries
    ends = _ends(first, finding)
    value = _scaled(rows[0].before if rows and rows[0] else None, finding)
    sentence = printable(finding.text)
    for name, text in zip(("value", "most", "least"), (value, *ends), strict=True):
        sentence = sentence.replace(f"{{{name}}}", text)
    siblings = []
    for entry, row in zip(entries, rows, strict=True):
        notes = [] if _ends(entry, finding) == ends else [" above ".join(_ends(entry, finding))]
        notes += [row.verdict] if row else []
        value = _scaled(row.after if row else None, finding)
        siblings.append(f"{value} with {printable(entry.name)}")
        siblings[-1] += f" ({'; '.join(notes)})" if notes else ""
    bounds = [entry.metrics.get(finding.metric, Estimate()).floor_high for entry in content.entries]
    largest = max((bound for bound in bounds if bound is not None), default=None)
    noise = "" if largest is None else f"; noise alone gives up to {_scaled(largest, finding)}"
    return f"{heading(sentence)} with {printable(first.name)}, {', '.join(siblings)}{noise}."


def _ends(entry: ComparedEntry, finding: Finding) -> tuple[str, str]:
    section = entry.breakdowns.get(finding.breakdown, {})
    return ends_of({key: cells.get(finding.measure) for key, cells in section.items()})


def _scaled(value: float | None, finding: Finding) -> str:
    if value is None:
        return "not measured"
    return figure(value * finding.scale, 2 if finding.scale != 1 else 3)


def _sentence(content: EntriesComparison, metric: str, presentation: Presentation) -> str:
    note = metric_note(metric, presentation.words)
    described = f" ({note})" if note else ""
    parts = []
    for pair in content.comparisons:
        row = pair.metrics.get(metric)
        sides = (row.before, row.after) if row else (None, None)
        figures = ", ".join(
            f"{printable(name)} {'not measured' if value is None else figure(value)}"
            for value, name in zip(sides, (pair.first, pair.second), strict=True)
        )
        parts.append(f"{figures} ({row.verdict})" if row else figures)
    bounds = [entry.metrics.get(metric, Estimate()).floor_high for entry in content.entries]
    known = [bound for bound in bounds if bound is not None]
    alone = f"; noise alone gives up to {figure(max(known))}" if known else ""
    label = heading(metric_name(metric, presentation.words))
    return f"{label}{described}: {'; '.join(parts)}{alone}."


def _examples(content: EntriesComparison, presentation: Presentation) -> tuple[Section, ...]:
    """One patient, or one question, of the first two entries; none of several seeds."""
    first, second = content.entries[:2]
    if not len(first.runs) == len(second.runs) == 1:
        return ()
    run = _as_run(first, second, presentation)
    sides = zip(STAGES, (first, second), strict=True)
    replies = {
        stage: read_replies(Path(entry.runs[0]) / "rollouts.jsonl") for stage, entry in sides
    }
    run = replace(run, replies=replies)
    return (*set_sections(run)[:1], *reply_sections(run)[:1])[:1]


def _as_run(first: ComparedEntry, second: ComparedEntry, presentation: Presentation) -> RunFiles:
    """Two entries as the stages of a run."""
    entries: dict[Stage, ComparedEntry] = {"before": first, "after": second}
    return RunFiles(
        evaluations={
            stage: Evaluation(breakdowns=entry.breakdowns) for stage, entry in entries.items()
        },
        presentation=presentation,
        titles={stage: printable(entry.name, 40) for stage, entry in entries.items()},
    )


def _charts(content: EntriesComparison, presentation: Presentation) -> Iterator[Chart]:
    """Yield the task's breakdown of each pair, then forest plots.

    Those are of the first metric, and of each that the task draws beside its noise.
    """
    first, *siblings = content.entries
    for chart in presentation.charts:
        for sibling in siblings if chart.breakdown else ():
            yield from breakdown_chart(_as_run(first, sibling, presentation), chart)
    metric = next(iter(content.entries[0].metrics))
    drawn = [chart for chart in presentation.charts if not chart.breakdown]
    if metric not in [chart.metric for chart in drawn]:
        axis = heading(metric_name(metric, presentation.words))
        drawn.insert(0, TaskChart(metric, axis, caption=""))
    for chart in drawn:
        figures = [
            (printable(entry.name, 40), entry.metrics.get(chart.metric))
            for entry in content.entries
        ]
        rows = [(name, e) for name, e in figures if e and e.value is not None]
        if not rows:
            continue
        name = heading(metric_name(chart.metric, presentation.words))
        values = "; ".join(f"{entry} {figure_with_interval(e)}" for entry, e in rows)
        has_noise = any(e.floor is not None for _, e in rows)
        equal = chart.equal if has_noise else None
        axis, label = printable(chart.axis), f"{name}: {values}"
        band = "Band: what noise alone gives, its line at the median." if has_noise else ""
        yield Chart(charts.forest(rows, axis=axis, label=label, equal=equal), band)


def _every_entry(content: EntriesComparison, presentation: Presentation) -> Tables:
    """A row for each entry: the first metric, its noise and p, and how it differs from the first.

    Metrics without a noise floor, and entries of several seeds, have none.
    """
    metric = next(iter(content.entries[0].metrics))
    estimates = [e.metrics.get(metric) or Estimate() for e in content.entries]
    with_noise = any(estimate.floor is not None for estimate in estimates)
    pairs = [None, *content.comparisons]  # the first entry is not compared with itself
    rows = []
    for entry, estimate, pair in zip(content.entries, estimates, pairs, strict=True):
        cells = [Cell(printable(entry.name)), replace(figure_cell(estimate), noise="")]
        if with_noise:
            alone = MISSING if estimate.floor is None else floor(estimate.floor)
            upper = "" if estimate.floor_high is None else f"up to {floor(estimate.floor_high)}"
            cells += [Cell(alone, upper, kind="number"), Cell(p_value(estimate.p), kind="number")]
        change, p, _, verdict = verdict_cells(pair.metrics.get(metric) if pair else None)
        note = OWN_REFERENCE if pair and metric in pair.own_references else ""
        rows.append((*cells, change, p, replace(verdict, note=note, kind="verdict")))
    name = heading(metric_name(metric, presentation.words))
    columns = ("Entry", name, *(("Noise alone", "p") if with_noise else ()), *_AGAINST)
    described = metric_note(metric, presentation.words)
    note = f"{name}: {described}." if described else ""
    if with_noise:
        note += (
            " Noise alone: what it would be if there were nothing to find, in brackets the bound "
            f"that {level_of(content.confidence)} of permutations stay under; p is how likely "
            "noise is to reach the value. A policy that decides at random has such noise too."
        )
    table = Table(columns, tuple(rows), level_of(content.confidence))
    return Tables("Every entry", "entries", note.strip(), (("", table),))


def _side_by_side(content: EntriesComparison, presentation: Presentation) -> Tables:
    """A row for each metric and a column for each entry."""
    entries = content.entries
    columns = ("Metric", *(printable(entry.name) for entry in entries))
    rows = tuple(
        (
            Cell(
                heading(metric_name(name, presentation.words)),
                note=metric_note(name, presentation.words),
            ),
            *(figure_cell(entry.metrics.get(name)) for entry in entries),
        )
        for name in entries[0].metrics
    )
    note = "Several seeds of one configuration are one column: the mean, and its interval over all."
    table = Table(columns, rows, level_of(content.confidence))
    return Tables("Side by side", "side-by-side", note, (("", table),), folded=True)
