"""The report's tables and its sentence of outcome, as plain text ready for the template."""

from collections.abc import Iterable, Mapping, Sequence

from environments.presentation import Chart, Words
from equipoise.report.document import Cell, Table, Tables, anchor_of
from equipoise.report.run_files import Json, RunFiles, as_object
from equipoise.report.words import (
    MINUS,
    MISSING,
    STAGES,
    Estimate,
    Pair,
    allowed_change,
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
    number,
    p_value,
    percent,
    plain_name,
    printable,
    read_estimate,
    section_title,
)

#: Verdicts and the outcomes of guards, the worst news first.
_VERDICTS = ("worse", "changed", "better", "no evidence")
_GUARDS = ("lost", "not shown", "kept")
#: What of a comparison's rows is an alert: its key and value, and how the alert begins.
BAD_NEWS = (
    ("guard", "lost", "Lost guard"),
    ("verdict", "worse", "Worse"),
    ("guard", "not shown", "Guard not shown"),
)
#: A section with more measures than this is shown key by key.
_MOST_MEASURES = 4
#: A longer table is folded, so that a reader finds what comes after it.
_MOST_ROWS = 7
#: Columns of one comparison.
CHANGE = ("Change", "p after Holm", "Test", "Verdict")
#: What else in evaluation.json is an object.
_NO_BREAKDOWN = ("metrics", "presentation")
_WORST_FIRST = "Rows furthest from the mean of their table first."


# --- the outcome --------------------------------------------------------------------------------


def outcome(run: RunFiles) -> str:
    """Say in one sentence what happened to the task's first metric."""
    name = headline_metric(run)
    pair = run.pair("metrics", name)
    if empty_stages := [stage for stage, estimate in pair.items() if estimate.value is None]:
        when = "" if run.audited else f" {' and '.join(empty_stages)} training"
        return (
            f"The {run.name_of(name)} could not be measured{when}: too few replies could be read "
            "or scored."
        )
    if "before" in pair and "after" in pair:
        verdict = compared(run).get(name, {}).get("verdict")
        text = _before_and_after(run, name, pair, unclear=verdict == "no evidence")
        cut = cut_note(compared(run).get(name, {}))
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
    return level_of(run.latest)


def headline_metric(run: RunFiles) -> str:
    """The metric that the outcome is told by: the objective, else the environment's first."""
    names = metric_names(run)
    return run.objective if run.objective in names else next(iter(names), "")


def metric_names(run: RunFiles) -> list[str]:
    return list(as_object(run.latest.get("metrics")))


def compared(run: RunFiles) -> Mapping[str, Json]:
    """The comparison of each metric."""
    rows = as_object(run.comparison.get("metrics"))
    return {name: row for name, row in rows.items() if isinstance(row, dict)}


def verdict_summary(run: RunFiles) -> str:
    """Which guards were lost, which metrics became worse and better; empty before a comparison."""
    rows = compared(run)
    if not rows:
        return ""
    *verdicts, unclear = _VERDICTS
    parts = [_having(run, rows, "guard", guard) for guard in _GUARDS]
    parts += [_having(run, rows, "verdict", verdict) for verdict in verdicts]
    count = sum(row.get("verdict") == unclear for row in rows.values())
    parts.append(f"No evidence of a change: {count} of {len(rows)}.")
    return " ".join(part for part in parts if part)


def _having(run: RunFiles, rows: Mapping[str, Json], key: str, value: str) -> str:
    names = [run.name_of(name) for name, row in rows.items() if row.get(key) == value]
    title = f"Guard {value}" if key == "guard" else heading(value)
    if not names:
        return f"{title}: none." if value in ("worse", "better") else ""
    return f"{title}: {', '.join(names)}."


def _bad_first(names: Iterable[str], rows: Mapping[str, Json]) -> list[str]:
    """Lost guards, then what became worse, guards that are not shown, the others in their order."""

    def rank(name: str) -> int:
        row = rows.get(name, {})
        bad = row.get("guard") == "lost", row.get("verdict") == "worse"
        return [*bad, row.get("guard") == "not shown", True].index(True)

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
    rows = compared(run)
    columns = ("Metric", *(heading(run.when(stage)) for stage in run.stages))
    if rows:
        columns += CHANGE
    return Table(
        columns,
        tuple(
            (
                Cell(heading(run.name_of(name)), note=run.note_of(name)),
                *_estimates(run, run.pair("metrics", name)),
                *(verdict_cells(rows.get(name, {})) if rows else ()),
            )
            for name in _bad_first(dict.fromkeys([*metric_names(run), *rows]), rows)
        ),
        confidence(run),
    )


def comparison_table(
    rows: Mapping[str, Json],
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
                *(Cell(figure(number(row.get(s))), kind="number") for s in STAGES),
                *verdict_cells(row),
            )
            for name, row in rows.items()
        ),
    )


def verdicts_note(run: RunFiles) -> str:
    """Explain the small print of the verdict table; empty if it has none."""
    if not any(_has_floor(run.pair("metrics", name)) for name in metric_names(run)):
        return ""
    return (
        "Noise alone: what the metric would be if there were nothing to find, as the median over "
        f"permutations, and in brackets the bound under which {confidence(run) or 'most'} of "
        "them stay; p is how likely noise is to reach the value beside it. A value with this noise "
        "has no interval."
    )


def _estimates(run: RunFiles, pair: Pair, *, count: bool = False) -> list[Cell]:
    return [figure_cell(pair.get(stage), count=count) for stage in run.stages]


def verdict_cells(row: Json) -> tuple[Cell, ...]:
    """Change, p after Holm, test and verdict of one comparison."""
    change = read_estimate({**row, "value": row.get("difference")}) or Estimate()
    verdict = printable(row.get("verdict") or MISSING)
    return (
        figure_cell(change, signed=True),
        Cell(p_value(change.p_holm), kind="number"),
        Cell(printable(row.get("test") or MISSING)),
        Cell(
            verdict,
            note="; ".join(filter(None, (guard_note(row), cut_note(row)))),
            kind=f"verdict {verdict.split(' ')[0] if verdict in _VERDICTS else ''}",
            bad=row.get("guard") in ("lost", "not shown"),
        ),
    )


def cut_note(row: Json) -> str:
    """By how much a metric was cut, with its interval; empty without it."""
    cut = read_estimate(row.get("cut"))
    if cut is None or cut.value is None or cut.low is None or cut.high is None:
        return ""
    value, low, high = (
        f"{100 * part:.1f}".replace("-", MINUS) for part in (cut.value, cut.low, cut.high)
    )
    return f"it was cut by {value}% ({low}% to {high}%)"


def guard_note(row: Json) -> str:
    """Describe a guard's outcome, margin and deciding interval; empty for another metric."""
    status, margin = str(row.get("guard")), row.get("margin")
    if status not in _GUARDS or not isinstance(margin, dict):
        return ""
    change = interval_in_unit(margin)
    power = number(margin.get("power"))
    parts = [
        f"{allowed_change(margin)} is allowed",
        f"the change is {change}" if change else "the change is not known",
        "" if power is None else f"unchanged models keep it {percent(power)} of the time",
    ]
    return f"guard {status} ({'; '.join(filter(None, parts))})"


def sections(run: RunFiles) -> tuple[Tables, ...]:
    """Every breakdown of the evaluation, in its order."""
    parts = {name: part for name, part in run.latest.items() if name not in _NO_BREAKDOWN}
    named = {name: _measures(part) for name, part in parts.items()}
    return tuple(_section(run, name, measures) for name, measures in named.items() if measures)


def _measures(part: object) -> dict[str, list[str]]:
    """The measures of each key, when this is a breakdown."""
    if not isinstance(part, dict) or not all(isinstance(v, dict) for v in part.values()):
        return {}
    return {key: list(measures) for key, measures in part.items()}


def _section(run: RunFiles, name: str, measures: Mapping[str, Sequence[str]]) -> Tables:
    """One table where all keys have the same few measures, else one for each key."""
    title, anchor = section_title(name, run.presentation.words), anchor_of("table", name)
    distinct = {tuple(names) for names in measures.values()}
    if len(distinct) > 1 or len(shared := distinct.pop()) > _MOST_MEASURES:
        tables = tuple(_long(run, name, key, names) for key, names in measures.items())
        return Tables(title, anchor, _WORST_FIRST, tables, folded=True)
    notes = [f"{heading(run.name_of(m))}: {run.note_of(m)}." for m in shared if run.note_of(m)]
    keys, folded = list(measures), len(measures) > _MOST_ROWS
    if folded:
        keys = _worst_first({key: run.pair(name, key, shared[0]) for key in keys})
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
    rows = {key: [run.pair(section, key, measure) for measure in measures] for key in keys}
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
    measures = _measures(run.latest.get(chart.breakdown))
    if not measures or not all(chart.metric in names for names in measures.values()):
        return None
    names = dict.fromkeys([chart.metric, *next(iter(measures.values()))])
    table = _wide(run, chart.breakdown, list(measures), list(names))
    title = f"{section_title(chart.breakdown, run.presentation.words)}: {printable(chart.axis)}"
    return Tables(title, anchor_of("table", chart.breakdown), tables=(("", table),))


def _long(run: RunFiles, section: str, key: str, measures: Sequence[str]) -> tuple[str, Table]:
    """One row for each measure of a key. Those with a noise floor are told in the summary."""
    pairs = {measure: run.pair(section, key, measure) for measure in measures}
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
