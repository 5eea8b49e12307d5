"""The report's tables and its sentence of outcome, as plain text ready for the template."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from environments.presentation import Chart, Finding
from equipoise.report.document import Cell, Table, Tables
from equipoise.report.run_files import RunFiles
from equipoise.report.words import (
    MINUS,
    MISSING,
    STAGES,
    Pair,
    beside_noise,
    change_in_unit,
    clipped,
    figure,
    figure_and_interval,
    figure_with_interval,
    guard_note,
    heading,
    level_of,
    noise,
    p_value,
    plain_name,
    removed_note,
    signed_margin,
)
from equipoise.run.directory import GREEDY, BaselineResult, Evaluation
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.evaluation import Estimate
from equipoise.statistics.trivial import BEST_OF_N

_UNKNOWN = MetricComparison()
#: Columns of one comparison.
CHANGE = ("Change", "p after Holm", "Test", "Verdict")


# --- the outcome --------------------------------------------------------------------------------


def outcome(run: RunFiles) -> str:
    """Say what happened: the task's findings, else its objective."""
    findings = [_finding(run, finding) for finding in run.presentation.findings]
    return " ".join(filter(None, findings)) or _of_metric(run, run.headline)


def summary(run: RunFiles) -> str:
    """Say whether that is good: what training removed, guards, trivial baselines."""
    name = run.headline
    note = removed_note(run.comparison.get(name, _UNKNOWN), f"the {run.name_of(name)}")
    removed = f"{heading(note)} beyond sampling noise." if note else ""
    return " ".join(filter(None, (removed, _guards_sentence(run), _baselines_sentence(run))))


def _finding(run: RunFiles, finding: Finding) -> str:
    """The finding before and after, beside noise; empty where it could not be measured."""
    pair = run.pair(finding.metric)
    if not pair or any(estimate.value is None for estimate in pair.values()):
        return ""
    values = {stage: _in_unit(estimate, finding.scale) for stage, estimate in pair.items()}
    ends = {stage: _ends(run.evaluations[stage], finding) for stage in pair}
    first, last = next(iter(pair)), list(pair)[-1]
    sentence = finding.text
    for name, text in zip(("value", "most", "least"), (values[first], *ends[first]), strict=True):
        sentence = sentence.replace(f"{{{name}}}", text)
    sentence += run.of_stage(first)
    notes = []
    if last != first:
        sentence += f" and {values[last]}{run.of_stage(last) if run.titles else ' after it'}"
        notes += [] if ends[last] == ends[first] else [" above ".join(ends[last])]
    if (bound := pair[last].floor_high) is not None:
        notes.append(f"noise alone gives up to {figure(bound * finding.scale)}")
    sentence += f" ({'; '.join(notes)})" if notes else ""
    row = run.comparison.get(finding.metric)
    unclear = f"; there is no evidence of a {'difference' if run.titles else 'change'}"
    return f"{heading(sentence)}{unclear if row and row.verdict == 'no evidence' else ''}."


def _in_unit(estimate: Estimate, scale: float) -> str:
    bounds = (estimate.value, estimate.low, estimate.high)
    scaled = Estimate(*(None if bound is None else bound * scale for bound in bounds))
    value, interval = figure_and_interval(scaled, digits=2 if scale != 1 else 3)
    return f"{value} ({interval})" if interval else value


def _ends(evaluation: Evaluation, finding: Finding) -> tuple[str, str]:
    """Return the keys of the finding's breakdown with the largest and the smallest value."""
    section = evaluation.breakdowns.get(finding.breakdown, {})
    estimates = {key: cells.get(finding.measure) for key, cells in section.items()}
    values = {key: e.value for key, e in estimates.items() if e and e.value is not None}
    if not values:
        return "some", "other"
    most, least = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
    return clipped(most, 40), clipped(least, 40)


def _guards_sentence(run: RunFiles) -> str:
    """Count the guards that are preserved and name the others; empty without guards."""
    guards = {
        name: "not measured" if row.verdict == "not measured" else row.guard
        for name, row in run.comparison.items()
        if row.guard
    }
    if not guards:
        return ""
    preserved = sum(guard == "preserved" for guard in guards.values())
    parts = [f"{preserved} of {len(guards)} guards are preserved"]
    for outcome_ in ("not preserved", "inconclusive", "not measured"):
        names = ", ".join(run.name_of(name) for name, g in guards.items() if g == outcome_)
        parts += [f"{outcome_}: {names}"] if names else []
    return "; ".join(parts) + "."


def _baselines_sentence(run: RunFiles) -> str:
    """Count the trivial baselines that the trained model beats; empty where none is compared."""
    rows = [p.against.get(run.objective) for n, p in run.probe.baselines.items() if n != BEST_OF_N]
    compared = [row.verdict for row in rows if row and row.before is not None]
    if not compared:
        return ""
    beaten = compared.count("better")
    return (
        f"The trained model beats {beaten} of {len(compared)} trivial baselines in "
        f"{run.name_of(run.objective)}."
    )


def _of_metric(run: RunFiles, name: str) -> str:
    """Say in one sentence what happened to a metric."""
    pair = run.pair(name)
    if empty_stages := [stage for stage, estimate in pair.items() if estimate.value is None]:
        when = " and".join(map(run.of_stage, empty_stages))
        return (
            f"The {run.name_of(name)} could not be measured{when}: too few replies could be read "
            "or scored."
        )
    if "before" in pair and "after" in pair:
        return _before_and_after(run, name, pair)
    if not pair:
        return "Not evaluated yet."
    stage, estimate = next(iter(pair.items()))
    value = figure_with_interval(estimate, run.confidence)
    start = "The" if run.audited else f"{heading(stage)} training the"
    return f"{start} {run.name_of(name)} is {value}{beside_noise(estimate)}"


def _before_and_after(run: RunFiles, name: str, pair: Pair) -> str:
    before = figure_with_interval(pair["before"], run.confidence)
    after = figure_with_interval(pair["after"])
    sides = f"{before}{run.of_stage('before')}", f"{after}{run.of_stage('after')}"
    words = f"the {run.name_of(name)}"
    first, last = pair["before"].value, pair["after"].value
    if name in run.comparison and run.comparison[name].verdict == "no evidence":
        verb = "differs" if run.titles else "changed"
        start = f"There is no evidence that {words} {verb}: {sides[0]}, {sides[1]}"
    elif run.titles or first is None or last is None or first == last:
        start = f"{heading(words)} is {sides[0]} and {sides[1]}"
    else:
        verb = "fell" if last < first else "rose"
        start = f"{heading(words)} {verb} from {before} to {after}"
    return start + beside_noise(pair["after"])


def _bad_first(names: Iterable[str], rows: Mapping[str, MetricComparison]) -> list[str]:
    """Sort guards not preserved first, then what became worse, then inconclusive guards."""

    def rank(name: str) -> int:
        row = rows.get(name, _UNKNOWN)
        bad = row.guard == "not preserved", row.verdict == "worse", row.guard == "inconclusive"
        return [*bad, True].index(True)

    return sorted(names, key=rank)


# --- tables -------------------------------------------------------------------------------------


def figure_cell(estimate: Estimate | None, *, count: bool = False, signed: bool = False) -> Cell:
    """A number with its interval and what sampling noise alone would give."""
    value, interval = figure_and_interval(estimate, count=count, signed=signed)
    return Cell(value, interval, kind="number", noise="" if signed else noise(estimate))


def verdict_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Tabulate the verdicts that decide, and folded away all metrics; nothing before them."""
    table = verdict_table(run)
    if not table.rows:
        return ()
    note = verdicts_note(run)
    every = Tables("All metrics", "metrics", tables=(("", table),), small_print=note, folded=True)
    deciding = [
        name
        for name in _bad_first(run.comparison, run.comparison)
        if run.comparison[name].guard or name == run.headline
    ]
    if not deciding:
        return (every,)
    columns = ("Metric", *map(run.column_of, run.stages), "Change", "Margin", "Verdict")
    rows = tuple(
        (
            Cell(heading(run.name_of(name))),
            *_estimates(run, run.pair(name)),
            *_deciding_cells(run.comparison[name]),
        )
        for name in deciding
    )
    short = Table(columns, rows, run.confidence)
    note = (
        "The objective, and the guards: what must not move beyond a margin. "
        "The interval of a guard's change is the 90% one that decides."
    )
    return Tables("Verdicts", "verdicts", note, (("", short),)), every


def _deciding_cells(row: MetricComparison) -> tuple[Cell, ...]:
    """Change, margin and verdict of the objective or a guard."""
    if row.margin:  # the change and the interval that decide, in the margin's unit
        change, margin = margin_cell(row), signed_margin(row.margin)
    else:
        change = figure_cell(Estimate(row.difference, row.low, row.high), signed=True)
        margin = MISSING
    verdict: str = (row.verdict != "not measured" and row.guard) or row.verdict
    kind = f"verdict {verdict.split(' ')[0]}"
    return change, Cell(margin), Cell(verdict, kind=kind)


def margin_cell(row: MetricComparison) -> Cell:
    """A change and the interval that decides, in the unit of the margin."""
    return Cell(*change_in_unit(row), kind="number")


def verdict_table(run: RunFiles) -> Table:
    """Every metric before and after, its change and the verdict, the worst first."""
    rows = run.comparison
    columns = ("Metric", *map(run.column_of, run.stages))
    if rows:
        columns += CHANGE
    return Table(
        columns,
        tuple(
            (
                Cell(heading(run.name_of(name)), note=run.note_of(name)),
                *_estimates(run, run.pair(name)),
                *(verdict_cells(rows.get(name)) if rows else ()),
            )
            for name in _bad_first(dict.fromkeys([*run.latest.metrics, *rows]), rows)
        ),
        run.confidence,
    )


def comparison_table(run: RunFiles) -> Table:
    """The metrics of a comparison in the order of its file: values, change, verdict."""
    return Table(
        ("Metric", *map(run.column_of, STAGES), *CHANGE),
        tuple(
            (
                Cell(heading(run.name_of(name))),
                *(Cell(figure(value), kind="number") for value in (row.before, row.after)),
                *verdict_cells(row),
            )
            for name, row in run.comparison.items()
        ),
    )


def verdicts_note(run: RunFiles) -> str:
    """Explain the small print of the verdict table; empty if it has none."""
    pairs = map(run.pair, run.latest.metrics)
    if not any(e.floor is not None for pair in pairs for e in pair.values()):
        return ""
    return (
        "Noise alone: what the metric would be if there were nothing to find, as the median over "
        f"permutations, and in brackets the bound under which {run.confidence or 'most'} of "
        "them stay; p is how likely noise is to reach the value beside it. A value with this noise "
        "has no interval."
    )


def _estimates(run: RunFiles, pair: Pair, *, count: bool = False) -> list[Cell]:
    return [figure_cell(pair.get(stage), count=count) for stage in run.stages]


def verdict_cells(row: MetricComparison | None) -> tuple[Cell, ...]:
    """Change, p after Holm, test and verdict of one comparison; dashes where there is none."""
    if row is None:
        return (figure_cell(None), Cell(MISSING, kind="number"), Cell(MISSING), Cell(MISSING))
    return (
        figure_cell(Estimate(row.difference, row.low, row.high), signed=True),
        Cell(p_value(row.p_holm), kind="number"),
        Cell(row.test),
        Cell(
            row.verdict,
            note="; ".join(filter(None, (guard_note(row), removed_note(row)))),
            kind=f"verdict {row.verdict.split(' ')[0]}",
            bad=row.guard in ("not preserved", "inconclusive"),
        ),
    )


def breakdown_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Every breakdown of the evaluation, in its order, folded away."""
    names = [name for name, measures in run.latest.breakdowns.items() if measures]
    tables = tuple(_breakdown(run, name) for name in names)
    return (Tables("By subgroup", "subgroups", tables=tables, folded=True),) if tables else ()


def _breakdown(run: RunFiles, name: str, only: str = "") -> tuple[str, Table]:
    """A row for each key and each measure of it, or the `only` one; before and after in columns."""
    pairs = {
        (key, measure): run.cell(name, key, measure)
        for key, measures in run.latest.breakdowns[name].items()
        for measure in measures
        if only in ("", measure)
    }
    estimates = [estimate for pair in pairs.values() for estimate in pair.values()]
    numbers = [n for e in estimates for n in (e.value, e.low, e.high) if n is not None]
    # Whole numbers, some above 1, as rates and means never are.
    count = all(n.is_integer() for n in numbers) and max(numbers, default=0) > 1
    rows = tuple(
        (
            Cell(heading(plain_name(key))),
            Cell(heading(run.name_of(measure)), note=run.note_of(measure)),
            *_estimates(run, pair, count=count),
        )
        for (key, measure), pair in pairs.items()
    )
    columns = (
        heading(plain_name(name.removeprefix("by_"))),
        "Metric",
        *map(run.column_of, run.stages),
    )
    table = Table(columns, rows, run.confidence)
    return heading(run.name_of(name)), table


def charted_breakdown(run: RunFiles, chart: Chart) -> tuple[str, Table] | None:
    """The breakdown of a chart in the charted metric; None if it lacks that."""
    measures = run.latest.breakdowns.get(chart.breakdown, {})
    if not measures or not all(chart.metric in names for names in measures.values()):
        return None
    return _breakdown(run, chart.breakdown, chart.metric)


# --- modes and trivial baselines ---------------------------------------------------------------


_UNDESCRIBED = "a way of the task's own, which does not say what it does"


def mode_sections(run: RunFiles) -> tuple[Tables, ...]:
    """The task's own modes of modes.json side by side; nothing for a task without any."""
    content = run.modes
    if not content.modes:
        return ()
    means = content.seconds.items()
    times = [f"{plain_name(name)} {1000 * s:.2g} ms" for name, s in means if s is not None]
    made_with = content.sources.items()
    sources = [f"{plain_name(name)} {source}" for name, source in made_with if source]
    notes = [
        "The same prompts in every mode. Holm's correction is over all pairs.",
        f"Mean time per prompt: {', '.join(times)}." if times else "",
        f"Made with: {', '.join(sources)}." if sources else "",
        *content.notes,
    ]
    rows = []
    for pair in content.comparisons:
        names = " \N{RIGHTWARDS ARROW} ".join(map(plain_name, pair.modes))
        rows.append((Cell(names), *verdict_cells(pair)))
    columns = ("Pair", f"Change in {run.name_of(content.metric)}", *CHANGE[1:])
    pairs = Table(columns, tuple(rows), level_of(content.confidence))
    tables = (("", _mode_table(run)), ("", pairs))
    note = " ".join(filter(None, notes))
    return (Tables("Modes side by side", "modes", note, tables, folded=True),)


def _mode_table(run: RunFiles) -> Table:
    modes = run.modes.modes
    metrics = dict.fromkeys(
        name for figures in modes.values() for name, f in figures.items() if f.value is not None
    )
    rows = tuple(
        (
            Cell(plain_name(mode)),
            *(replace(figure_cell(figures.get(name)), noise="") for name in metrics),
        )
        for mode, figures in modes.items()
    )
    columns = ("Mode", *(heading(run.name_of(name)) for name in metrics))
    return Table(columns, rows, level_of(run.modes.confidence))


# --- trivial baselines ---------------------------------------------------------------------------


def probe_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Tabulate what trivial baselines earn, beside the trained model if there is one."""
    probe = run.probe
    if not probe.baselines:
        return ()
    note = "What can be had for nothing, on the same prompts."
    if constant := probe.constants.get("constant"):
        note += (
            f" Best constant reply of {constant.tried:,}, by {run.name_of(run.objective)} on "
            f"training prompts: {clipped(constant.reply, 500)}"
        )
    compared = run.modes.trivial is not None
    figures = run.objective, probe.metric
    columns = ("Baseline", *(heading(run.name_of(name)) for name in figures))
    columns += (f"Trained {MINUS} baseline", *CHANGE[1:]) if compared else ()
    rows = tuple(
        (
            Cell(plain_name(name), note=baseline.note or run.note_of(name) or _UNDESCRIBED),
            *(figure_cell(baseline.metrics.get(figure)) for figure in figures),
            *(_against(run, name, baseline) if compared else ()),
        )
        for name, baseline in probe.baselines.items()
    )
    table = Table(columns, rows, level_of(probe.confidence))
    return (Tables("Trivial baselines", "baselines", note, (("", table),), folded=True),)


def _against(run: RunFiles, name: str, baseline: BaselineResult) -> tuple[Cell, ...]:
    """The trained model minus a trivial baseline; of `greedy` with what it is compared with."""
    cells = verdict_cells(baseline.against.get(run.objective))
    if name != GREEDY or not baseline.against:
        return cells
    trained = run.probe.trained_greedy.get(run.objective)
    known = trained is not None and trained.value is not None
    result = f"has {figure_with_interval(trained)}" if known else "could not be measured"
    note = f"compared with the trained model at temperature 0, which {result}"
    return (*cells[:-1], replace(cells[-1], note=note))
