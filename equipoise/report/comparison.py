"""compare.html and its tables on a terminal: several entries beside each other."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from environments.presentation import Chart as TaskChart
from environments.presentation import Presentation
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
from equipoise.report.head import worsened
from equipoise.report.renderers import page, plain, print_sections, print_table
from equipoise.report.replies import reply_sections
from equipoise.report.report import breakdown_chart
from equipoise.report.run_files import RunFiles, read_replies
from equipoise.report.sets import set_sections
from equipoise.report.tables import (
    comparison_table,
    figure_cell,
    outcome,
    verdict_cells,
    verdict_sections,
)
from equipoise.report.words import (
    STAGES,
    Stage,
    clipped,
    figure_with_interval,
    heading,
    level_of,
    metric_name,
    metric_note,
    plain_name,
    task_title,
)
from equipoise.run.directory import Evaluation
from equipoise.statistics.evaluation import Estimate
from equipoise.statistics.seeds import ComparedPair, Difference, EntriesComparison

OWN_REFERENCE = "each is held against a reference of its own"


def show_comparison(
    comparison: EntriesComparison, presentation: Presentation, folder: Path, reporter: Reporter
) -> None:
    """Print the tables and the notes, and write both files."""
    print_sections(reporter, [_every_entry(comparison, presentation)])
    for pair in comparison.comparisons:
        title = f"{pair.second} against {pair.first}"
        print_table(reporter, title, comparison_table(_as_run(comparison, pair, presentation)))
    for note in comparison_notes(comparison, presentation):
        reporter.warn(note)
    reporter.say(plain(f"\n{comparison_outcome(comparison, presentation)}"))
    data, path = folder / "compare.json", folder / "compare.html"
    write_json(data, asdict(comparison))
    write_text(path, comparison_page(comparison, presentation))
    reporter.say(f"\ncomparison: {path}\n            {data}")


def comparison_page(content: EntriesComparison, presentation: Presentation) -> str:
    """Render the page of a comparison: each pair as a run has its two stages."""
    first, *siblings = (entry.name for entry in content.entries)
    drawn = tuple(comparison_charts(content, presentation))
    alerts: list[Alert] = []
    deciding: list[Section] = []
    folded: list[Section] = []
    for number, pair in enumerate(content.comparisons, start=1):
        run = _as_run(content, pair, presentation)
        against = f"{pair.second} against {pair.first}"
        alerts += [replace(a, section=f"{a.section}-{number}") for a in worsened(run)]
        for section in verdict_sections(run):
            title = f"{against}, all metrics" if section.folded else against
            named = replace(section, title=title, anchor=f"{section.anchor}-{number}")
            (folded if section.folded else deciding).append(named)
    figures = ("metrics", "breakdowns")
    provenance = tuple(
        (
            entry.name,
            describe({name: v for name, v in asdict(entry).items() if name not in figures}),
        )
        for entry in content.entries
    )
    items = dict.fromkeys(f"{n:,}" for pair in content.comparisons for n in pair.items)
    return page(
        Document(
            title=f"{task_title(content.task, presentation)}: "
            f"{', '.join(siblings)} against {first}",
            facts=(
                ("Entries", f"{len(content.entries)}"),
                ("Prompts compared", ", ".join(items)),
                ("Intervals", level_of(content.confidence)),
            ),
            alerts=tuple(alerts),
            outcome=comparison_outcome(content, presentation),
            notes=tuple(comparison_notes(content, presentation)),
            sections=(
                *((Charts("Estimates and intervals", "charts", charts=drawn),) if drawn else ()),
                *_examples(content, presentation),
                *deciding,
                _every_entry(content, presentation),
                *folded,
                Origins("Provenance", "provenance", facts=provenance, folded=True),
            ),
        )
    )


def comparison_outcome(content: EntriesComparison, presentation: Presentation) -> str:
    """Say what was measured of each pair, as the report of a run says it of its stages."""
    runs = [_as_run(content, pair, presentation) for pair in content.comparisons]
    return " ".join(map(outcome, runs))


def _as_run(content: EntriesComparison, pair: ComparedPair, presentation: Presentation) -> RunFiles:
    """A pair as the stages of a run, with the figures that were compared.

    Those of an entry have intervals; where other prompts were compared they are other figures.
    """
    entries = {entry.name: entry for entry in content.entries}
    evaluations: dict[Stage, Evaluation] = {}
    names: dict[Stage, str] = {"before": pair.first, "after": pair.second}
    for stage, name in names.items():
        metrics = dict(entries[name].metrics)
        for metric, row in pair.metrics.items():
            value = row.before if stage == "before" else row.after
            own = metrics.get(metric, Estimate()).value
            if value is None or own is None or not math.isclose(value, own):
                metrics[metric] = Estimate(value)
        evaluations[stage] = Evaluation(
            confidence=content.confidence, metrics=metrics, breakdowns=entries[name].breakdowns
        )
    return RunFiles(
        evaluations=evaluations,
        comparison=pair.metrics,
        presentation=presentation,
        titles={s: clipped(n, 40) for s, n in zip(STAGES, (pair.first, pair.second), strict=True)},
    )


def comparison_notes(content: EntriesComparison, presentation: Presentation) -> Iterator[str]:
    """Yield what limits the comparison, such as other sampling."""
    if content.allowed:
        allowed = ", ".join(map(plain_name, content.allowed))
        yield f"Compared although it is not alike, since that was asked for: {allowed}."
    for pair in content.comparisons:
        names = pair.first, pair.second
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
    for caveat in dict.fromkeys(caveat for entry in content.entries for caveat in entry.caveats):
        subjects = [entry.name for entry in content.entries if caveat in entry.caveats]
        yield f"{', '.join(subjects)}: {caveat.rstrip('.')}."
    for entry in content.entries:
        if entry.n_failed:
            yield (
                f"{entry.name}: {entry.n_failed:,} of {entry.n_rollouts:,} replies have no score."
            )


def other_drawing(differences: Iterable[Difference]) -> str:
    """Say what differs between the two sides besides the model."""
    return f"replies were not drawn alike: {'; '.join(map(str, differences))}."


def _examples(content: EntriesComparison, presentation: Presentation) -> tuple[Section, ...]:
    """One patient, or one question, of the first two entries; none of several seeds."""
    first, second = content.entries[:2]
    if not len(first.runs) == len(second.runs) == 1:
        return ()
    run = _as_run(content, content.comparisons[0], presentation)
    sides = zip(STAGES, (first, second), strict=True)
    replies = {
        stage: read_replies(Path(entry.runs[0]) / "rollouts.jsonl") for stage, entry in sides
    }
    run = replace(run, replies=replies)
    return (*set_sections(run), *reply_sections(run))[:1]


def comparison_charts(content: EntriesComparison, presentation: Presentation) -> Iterator[Chart]:
    """Yield the task's breakdown of each pair, then a metric of all entries in each chart.

    Those are the first metric, and each that the task draws beside its noise.
    """
    for chart in presentation.charts:
        for pair in content.comparisons if chart.breakdown else ():
            yield from breakdown_chart(_as_run(content, pair, presentation), chart)
    metric = next(iter(content.entries[0].metrics))
    drawn = [chart for chart in presentation.charts if not chart.breakdown]
    if metric not in [chart.metric for chart in drawn]:
        axis = heading(metric_name(metric, presentation.words))
        drawn.insert(0, TaskChart(metric, axis, caption=""))
    for chart in drawn:
        rows: list[tuple[str, Stage, Estimate]] = []
        for entry in content.entries:
            estimate = entry.metrics.get(chart.metric)
            if estimate and estimate.value is not None:
                stage: Stage = "before" if entry is content.entries[0] else "after"
                rows.append((entry.name, stage, estimate))
        if not rows:
            continue
        name = heading(metric_name(chart.metric, presentation.words))
        values = "; ".join(f"{entry} {figure_with_interval(e)}" for entry, _, e in rows)
        has_noise = any(e.floor is not None for *_, e in rows)
        equal = chart.equal if has_noise else None
        label = f"{name}: {values}"
        band = "Band: what noise alone gives, its line at the median." if has_noise else ""
        yield Chart(
            charts.intervals_and_noise(rows, equal=equal, axis=chart.axis, label=label), band
        )


def _every_entry(content: EntriesComparison, presentation: Presentation) -> Tables:
    """A row for each entry: the first metric, and how it differs from the first entry."""
    metric = next(iter(content.entries[0].metrics))
    rows = []
    pairs = [None, *content.comparisons]  # the first entry is not compared with itself
    for entry, pair in zip(content.entries, pairs, strict=True):
        change, p, _, verdict = verdict_cells(pair.metrics.get(metric) if pair else None)
        note = OWN_REFERENCE if pair and metric in pair.own_references else ""
        verdict = replace(verdict, note=note, kind="verdict")
        rows.append(
            (
                Cell(entry.name),
                figure_cell(entry.metrics.get(metric)),
                change,
                p,
                verdict,
            )
        )
    name = heading(metric_name(metric, presentation.words))
    columns = ("Entry", name, "Difference from the first", "p after Holm", "Verdict")
    described = metric_note(metric, presentation.words)
    note = f"{name}: {described}." if described else ""
    table = Table(columns, tuple(rows), level_of(content.confidence))
    return Tables("Every entry", "entries", note, (("", table),))
