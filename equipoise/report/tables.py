"""The report's tables and its sentence of outcome, as plain text ready for the template."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from environments.presentation import Chart, Words
from equipoise.report.document import Cell, Table, Tables, anchor_of
from equipoise.report.run_files import RunFiles
from equipoise.report.words import (
    MINUS,
    MISSING,
    STAGES,
    Pair,
    figure,
    figure_and_interval,
    figure_with_interval,
    floor,
    heading,
    interval_in_unit,
    key_name,
    level_of,
    metric_name,
    noise,
    p_value,
    percent,
    plain_name,
    printable,
    section_title,
    signed_margin,
)
from equipoise.run.directory import Estimate, Policy
from equipoise.statistics.compare import MetricComparison
from equipoise.statistics.trivial import GREEDY

#: Verdicts and the outcomes of guards, the worst news first.
_VERDICTS = ("worse", "changed", "better", "no evidence")
_GUARDS = ("not preserved", "inconclusive", "preserved")
#: What of a comparison's rows is an alert: its field and value, and how the alert begins.
BAD_NEWS = (
    ("guard", "not preserved", "Guard not preserved"),
    ("verdict", "worse", "Worse"),
    ("guard", "inconclusive", "Guard inconclusive"),
)
_UNKNOWN = MetricComparison()
#: A section with more measures than this is shown key by key.
_MOST_MEASURES = 4
#: A longer table is folded, so that a reader finds what comes after it.
_MOST_ROWS = 7
#: Columns of one comparison.
CHANGE = ("Change", "p after Holm", "Test", "Verdict")
_WORST_FIRST = "Rows furthest from the mean of their table first."


# --- the outcome --------------------------------------------------------------------------------


def outcome(run: RunFiles) -> str:
    """Say in one sentence what happened to the task's first metric."""
    name = headline_metric(run)
    pair = run.pair(name)
    if empty_stages := [stage for stage, estimate in pair.items() if estimate.value is None]:
        when = "" if run.audited else f" {' and '.join(empty_stages)} training"
        return (
            f"The {run.name_of(name)} could not be measured{when}: too few replies could be read "
            "or scored."
        )
    if "before" in pair and "after" in pair:
        row = run.comparison.get(name)
        unclear = row is not None and row.verdict == "no evidence"
        text = _before_and_after(run, name, pair, unclear=unclear)
        cut = cut_note(row or _UNKNOWN)
        return f"{text} {heading(cut)}." if cut else text
    if not pair:
        return "There is no evaluation yet."
    stage, estimate = next(iter(pair.items()))
    value = figure_with_interval(estimate, _level(run))
    start = "The" if run.audited else f"{heading(stage)} training the"
    sentence = f"{start} {run.name_of(name)} is {value}"
    return sentence + _beside_noise(estimate)


def _before_and_after(run: RunFiles, name: str, pair: Pair, *, unclear: bool) -> str:
    before = figure_with_interval(pair["before"], _level(run))
    after = figure_with_interval(pair["after"])
    words = f"the {run.name_of(name)}"
    first, last = pair["before"].value, pair["after"].value
    if unclear:
        start = (
            f"There is no evidence that {words} changed: {before} before, {after} after training"
        )
    elif first is None or last is None or first == last:
        start = f"{heading(words)} is {before} before and {after} after training"
    else:
        verb = "fell" if last < first else "rose"
        start = f"{heading(words)} {verb} from {before} to {after}"
    return start + _beside_noise(pair["after"])


def _beside_noise(estimate: Estimate) -> str:
    if estimate.floor is None:
        return "."
    return f"; sampling noise alone gives {floor(estimate.floor)}."


def _level(run: RunFiles) -> str:
    return f"{level} CI " if (level := confidence(run)) else ""


def confidence(run: RunFiles) -> str:
    """The level of the intervals as `95%`; empty where it is not known."""
    return level_of(run.latest.confidence)


def headline_metric(run: RunFiles) -> str:
    """The metric that the outcome is told by: the objective, else the environment's first."""
    names = metric_names(run)
    return run.objective if run.objective in names else next(iter(names), "")


def metric_names(run: RunFiles) -> list[str]:
    return list(run.latest.metrics)


def verdict_summary(run: RunFiles) -> str:
    """List guards by outcome and metrics by verdict; empty before a comparison."""
    rows = run.comparison
    if not rows:
        return ""
    *verdicts, unclear = _VERDICTS
    parts = [_having(run, rows, "guard", guard) for guard in _GUARDS]
    parts += [_having(run, rows, "verdict", verdict) for verdict in verdicts]
    count = sum(row.verdict == unclear for row in rows.values())
    parts.append(f"No evidence of a change: {count} of {len(rows)}.")
    return " ".join(part for part in parts if part)


def _having(run: RunFiles, rows: Mapping[str, MetricComparison], key: str, value: str) -> str:
    names = [run.name_of(name) for name, row in rows.items() if getattr(row, key) == value]
    title = f"Guard {value}" if key == "guard" else heading(value)
    if not names:
        return f"{title}: none." if value in ("worse", "better") else ""
    return f"{title}: {', '.join(names)}."


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
    """The verdict table with its summary and small print; nothing before an evaluation."""
    table, summary = verdict_table(run), verdict_summary(run)
    if not table.rows:
        return ()
    title, note = "Metrics and verdicts" if summary else "Metrics", verdicts_note(run)
    tables = (("", table),)
    return (Tables(title, "verdicts", tables=tables, lead=summary, small_print=note),)


def verdict_table(run: RunFiles) -> Table:
    """Every metric before and after, its change and the verdict, the worst first."""
    rows = run.comparison
    columns = ("Metric", *(heading(run.when(stage)) for stage in run.stages))
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
            for name in _bad_first(dict.fromkeys([*metric_names(run), *rows]), rows)
        ),
        confidence(run),
    )


def comparison_table(
    rows: Mapping[str, MetricComparison],
    words: Mapping[str, Words],
    sides: tuple[str, str],
    notes: Mapping[str, str] | None = None,
) -> Table:
    """The metrics of a comparison in the order of its file: both values, the change, the verdict.

    `notes` stand with the names of their metrics.
    """
    return Table(
        ("Metric", *sides, *CHANGE),
        tuple(
            (
                Cell(heading(metric_name(name, words)), note=(notes or {}).get(name, "")),
                *(Cell(figure(value), kind="number") for value in (row.before, row.after)),
                *verdict_cells(row),
            )
            for name, row in rows.items()
        ),
    )


def verdicts_note(run: RunFiles) -> str:
    """Explain the small print of the verdict table; empty if it has none."""
    if not any(_has_floor(run.pair(name)) for name in metric_names(run)):
        return ""
    return (
        "Noise alone: what the metric would be if there were nothing to find, as the median over "
        f"permutations, and in brackets the bound under which {confidence(run) or 'most'} of "
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
            note="; ".join(filter(None, (guard_note(row), cut_note(row)))),
            kind=f"verdict {row.verdict.split(' ')[0]}",
            bad=row.guard in ("not preserved", "inconclusive"),
        ),
    )


def cut_note(row: MetricComparison) -> str:
    """By how much a metric was cut, with its interval; empty without it."""
    if (cut := row.cut) is None:
        return ""
    value, low, high = (
        f"{100 * part:.1f}".replace("-", MINUS) for part in (cut.value, cut.low, cut.high)
    )
    return f"training removed {value}% of it ({low}% to {high}%)"


def guard_note(row: MetricComparison) -> str:
    """Describe a guard's outcome, margin and deciding interval; empty for another metric."""
    if row.guard is None or (margin := row.margin) is None:
        return ""
    change = interval_in_unit(margin)
    power = "" if margin.power is None else percent(margin.power)
    parts = [
        f"margin {signed_margin(margin)}",
        f"measured {change}" if change else "not measured",
        f"an unchanged model passes in {power} of runs" if power else "",
    ]
    return f"guard {row.guard} ({'; '.join(filter(None, parts))})"


def sections(run: RunFiles) -> tuple[Tables, ...]:
    """Every breakdown of the evaluation, in its order."""
    breakdowns = run.latest.breakdowns.items()
    return tuple(_section(run, name, measures) for name, measures in breakdowns if measures)


def _section(run: RunFiles, name: str, measures: Mapping[str, Iterable[str]]) -> Tables:
    """One table where all keys have the same few measures, else one for each key."""
    title, anchor = section_title(name, run.presentation.words), anchor_of("table", name)
    distinct = {tuple(names) for names in measures.values()}
    if len(distinct) > 1 or len(shared := distinct.pop()) > _MOST_MEASURES:
        tables = tuple(_long(run, name, key, names) for key, names in measures.items())
        return Tables(title, anchor, _WORST_FIRST, tables, folded=True)
    notes = [f"{heading(run.name_of(m))}: {run.note_of(m)}." for m in shared if run.note_of(m)]
    keys, folded = list(measures), len(measures) > _MOST_ROWS
    if folded:
        keys = _worst_first({key: run.cell(name, key, shared[0]) for key in keys})
        notes.append(_WORST_FIRST)
    table = (f"{title}: {len(keys)} rows" if folded else "", _wide(run, name, keys, shared))
    return Tables(title, anchor, " ".join(notes), (table,), folded)


def _wide(run: RunFiles, section: str, keys: Sequence[str], measures: Sequence[str]) -> Table:
    """One row for each key, the measures side by side."""
    several = len(run.stages) > 1
    columns = [
        heading(run.name_of(measure)) + f", {run.when(stage)}" * several
        for measure in measures
        for stage in run.stages
    ]
    rows = {key: [run.cell(section, key, measure) for measure in measures] for key in keys}
    estimates = [e for pairs in rows.values() for pair in pairs for e in pair.values()]
    numbers = [n for e in estimates for n in (e.value, e.low, e.high) if n is not None]
    # Whole numbers, some above 1, as rates and means never are.
    count = all(n.is_integer() for n in numbers) and max(numbers, default=0) > 1
    cells = tuple(
        (
            Cell(heading(plain_name(key))),
            *(cell for pair in pairs for cell in _estimates(run, pair, count=count)),
        )
        for key, pairs in rows.items()
    )
    return Table((heading(key_name(section)), *columns), cells, confidence(run))


def charted_breakdown(run: RunFiles, chart: Chart) -> Tables | None:
    """The breakdown of a chart in one table, the charted metric first; None if it lacks that."""
    measures = run.latest.breakdowns.get(chart.breakdown, {})
    if not measures or not all(chart.metric in names for names in measures.values()):
        return None
    names = dict.fromkeys([chart.metric, *next(iter(measures.values()))])
    table = _wide(run, chart.breakdown, list(measures), list(names))
    title = f"{section_title(chart.breakdown, run.presentation.words)}: {printable(chart.axis)}"
    return Tables(title, anchor_of("table", chart.breakdown), tables=(("", table),))


def _long(run: RunFiles, section: str, key: str, measures: Iterable[str]) -> tuple[str, Table]:
    """One row for each measure of a key. Those with a noise floor are told in the summary."""
    pairs = {measure: run.cell(section, key, measure) for measure in measures}
    over_all = {name: pair for name, pair in pairs.items() if _has_floor(pair)}
    cells = {name: pair for name, pair in pairs.items() if name not in over_all}
    summaries = []
    for name, pair in over_all.items():
        parts = [f"{figure_with_interval(e)} {run.when(stage)}" for stage, e in pair.items()]
        summaries.append(f"{run.name_of(name)} {', '.join(parts)}")
    summary = ": ".join([heading(plain_name(key)), *summaries]).replace(
        " x ", " \N{MULTIPLICATION SIGN} "
    )
    rows = [
        (Cell(heading(plain_name(name))), *_estimates(run, cells[name]))
        for name in _worst_first(cells)
    ]
    stages = [heading(run.when(stage)) for stage in run.stages]
    return summary, Table(("Cell", *stages), tuple(rows), confidence(run))


def _has_floor(pair: Pair) -> bool:
    return any(estimate.floor is not None for estimate in pair.values())


def _worst_first(cells: Mapping[str, Pair]) -> list[str]:
    """Cells by their distance from the mean of all, at the last stage; unknown ones last."""
    values = {name: latest_value(pair) for name, pair in cells.items()}
    numbers = [value for value in values.values() if value is not None]
    mean = sum(numbers) / len(numbers) if numbers else 0.0

    def distance(name: str) -> float:
        value = values[name]
        return -1.0 if value is None else abs(value - mean)

    return sorted(cells, key=lambda name: (-distance(name), name))


def latest_value(pair: Pair) -> float | None:
    """The value after training, or before it while there is no other."""
    values = [pair[stage].value for stage in reversed(STAGES) if stage in pair]
    return next(iter(values), None)


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
    sources = [printable(f"{plain_name(name)} {source}") for name, source in made_with if source]
    notes = [
        "The same prompts in every mode. Holm's correction is over all pairs.",
        f"Mean time per prompt: {', '.join(times)}." if times else "",
        f"Made with: {', '.join(sources)}." if sources else "",
        *(printable(note, 500) for note in content.notes),
    ]
    rows = []
    for pair in content.comparisons:
        names = " \N{RIGHTWARDS ARROW} ".join(map(plain_name, pair.modes))
        rows.append((Cell(printable(names)), *verdict_cells(pair)))
    columns = ("Pair", f"Change in {run.name_of(content.metric)}", *CHANGE[1:])
    pairs = Table(columns, tuple(rows), level_of(content.confidence))
    tables = (("", _mode_table(run)), ("", pairs))
    return (Tables("Modes side by side", "modes", " ".join(filter(None, notes)), tables),)


def _mode_table(run: RunFiles) -> Table:
    modes = run.modes.modes
    metrics = dict.fromkeys(
        name for figures in modes.values() for name, f in figures.items() if f.value is not None
    )
    rows = tuple(
        (Cell(plain_name(mode)), *(_without_noise(figures.get(name)) for name in metrics))
        for mode, figures in modes.items()
    )
    columns = ("Mode", *(heading(run.name_of(name)) for name in metrics))
    return Table(columns, rows, level_of(run.modes.confidence))


def _without_noise(estimate: Estimate | None) -> Cell:
    return replace(figure_cell(estimate), noise="")


# --- trivial baselines ---------------------------------------------------------------------------


def probe_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Tabulate what trivial baselines earn, beside the trained model if there is one."""
    probe = run.probe
    if not probe.policies:
        return ()
    note = "What can be had for nothing, on the same prompts."
    if constant := probe.constants.get("constant"):
        note += (
            f" Best constant reply of {constant.tried:,}, by {run.name_of(run.objective)} on "
            f"training prompts: {printable(constant.reply, 500)}"
        )
    compared = run.modes.trivial is not None
    figures = run.objective, probe.metric
    columns = ("Baseline", *(heading(run.name_of(name)) for name in figures))
    columns += (f"Trained {MINUS} baseline", *CHANGE[1:]) if compared else ()
    rows = tuple(
        (
            _policy_cell(run, name, policy),
            *(figure_cell(policy.metrics.get(figure)) for figure in figures),
            *(_against(run, name, policy) if compared else ()),
        )
        for name, policy in probe.policies.items()
    )
    table = Table(columns, rows, level_of(probe.confidence))
    return (Tables("Trivial baselines", "policies", note, (("", table),)),)


def _policy_cell(run: RunFiles, name: str, policy: Policy) -> Cell:
    return Cell(plain_name(name), note=printable(policy.note or run.note_of(name) or _UNDESCRIBED))


def _against(run: RunFiles, name: str, policy: Policy) -> tuple[Cell, ...]:
    """The trained model minus a policy; of `greedy` with what it is compared with."""
    cells = verdict_cells(policy.against.get(run.objective))
    if name != GREEDY or not policy.against:
        return cells
    trained = run.probe.trained_greedy.get(run.objective)
    known = trained is not None and trained.value is not None
    result = f"has {figure_with_interval(trained)}" if known else "could not be measured"
    note = f"compared with the trained model at temperature 0, which {result}"
    return (*cells[:-1], replace(cells[-1], note=note))
