"""The document of a run: reads its directory, and writes its page, one self-contained file.

Nothing in it is trusted: model output, metadata and errors are text, which the page escapes.
The same files give the same bytes.
"""

import math
import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import fmean

from environments.presentation import Chart as TaskChart
from equipoise.files.disk import write_text
from equipoise.report import charts
from equipoise.report.document import Chart, Charts, Described, Document, Origins, describe
from equipoise.report.head import alerts, run_facts, run_notes, run_title, usage_facts
from equipoise.report.renderers import page
from equipoise.report.replies import reply_sections, viewer
from equipoise.report.run_files import RunFiles, read_run
from equipoise.report.sets import set_sections
from equipoise.report.tables import (
    breakdown_sections,
    mode_sections,
    outcome,
    probe_sections,
    summary,
    verdict_sections,
)
from equipoise.report.words import (
    Pair,
    figure,
    figure_with_interval,
    heading,
    plain_name,
)
from equipoise.run.directory import GREEDY, RunDirectory
from equipoise.run.ledger import Provenance

_CURVES_FIRST = ("kl", "token_mult_prob_error")
#: More metrics than this are not drawn; all of them are in the tables.
_METRICS_DRAWN = 6


def write_report(run_dir: Path) -> Path:
    """Write `run_dir`/report.html, whole or not at all, and return its path.

    A run that is not finished gets a report that says so. Raises `EquipoiseError` for a directory
    that does not exist, and for a damaged file.
    """
    run = read_run(run_dir)
    text = page(run_document(run))
    path = RunDirectory(run_dir).report
    write_text(path, text)
    return path


def run_document(run: RunFiles) -> Document:
    """Compose the page of a run."""
    every_reply = viewer(run)
    return Document(
        title=run_title(run),
        facts=(*run_facts(run), *usage_facts(run)),
        alerts=alerts(run),
        notes=run_notes(run),
        outcome=outcome(run),
        summary=summary(run),
        sections=(
            *_metric_charts(run),
            *set_sections(run),
            *reply_sections(run),
            *_training(run),
            *verdict_sections(run),
            *probe_sections(run),
            *mode_sections(run),
            *breakdown_sections(run),
            *((every_reply,) if every_reply else ()),
            Origins(
                "Provenance",
                "provenance",
                facts=describe_provenance(run.provenance),
                config=run.config,
                folded=True,
            ),
        ),
    )


# --- charts -------------------------------------------------------------------------------------


def _task_charts(run: RunFiles) -> Iterator[Chart]:
    """Draw the task's charts, except those without figures."""
    for chart in run.presentation.charts:
        name, caption = heading(run.name_of(chart.metric)), chart.caption
        if chart.breakdown:
            yield from breakdown_chart(run, chart)
        elif _is_measured(pair := run.pair(chart.metric)):
            greedy = run.greedy_pair(chart.metric)
            rows = [(run.legend_of(stage), stage, e) for stage, e in pair.items()]
            rows += [(f"{run.legend_of(s)}, {GREEDY}", s, e) for s, e in greedy.items()]
            label = f"{name}: {'; '.join(f'{row} {figure_with_interval(e)}' for row, _, e in rows)}"
            svg = charts.intervals_and_noise(rows, equal=chart.equal, axis=chart.axis, label=label)
            drawn = f", from {chart.null}" if chart.null else ""
            yield Chart(
                svg,
                f"{caption} The band is what sampling noise alone gives{drawn}: {run.confidence} "
                f"of permutations lie in it, half of them below its line.{_about(greedy)}",
            )


def breakdown_chart(run: RunFiles, chart: TaskChart) -> Iterator[Chart]:
    """Draw a row for each key of the breakdown; nothing without figures."""
    rows = [
        (key, run.cell(chart.breakdown, key, chart.metric))
        for key in run.latest.breakdowns.get(chart.breakdown, {})
    ]
    if not any(_is_measured(pair) for _, pair in rows):
        return
    name = heading(run.name_of(chart.metric))
    described = "; ".join(f"{key} {_describe(pair)}" for key, pair in rows)
    svg = charts.paired_intervals(
        rows,
        axis=chart.axis,
        label=f"{name}. {heading(run.name_of(chart.breakdown))}: {described}",
        named=run.legend_of,
    )
    yield Chart(svg, chart.caption)


def _metric_chart(run: RunFiles) -> tuple[Chart, ...]:
    """Chart the first metrics on the scale of the outcome's, for a task without charts.

    Those of the task's findings come first, each with its greedy replies.
    """
    told = [finding.metric for finding in run.presentation.findings] or [run.headline]
    pairs = {name: run.pair(name) for name in dict.fromkeys([*told, *run.latest.metrics])}
    if not any(map(_is_measured, pairs.values())):
        return ()
    share = _is_share(pairs[run.headline])
    drawn = [n for n in pairs if _is_share(pairs[n])] if share else [run.headline]
    rows = []
    for name in drawn[:_METRICS_DRAWN]:
        title = heading(run.name_of(name))
        rows.append((title, pairs[name]))
        if name in told and (greedy := run.greedy_pair(name)):
            rows.append((f"{title}, {GREEDY}", greedy))
    label = "; ".join(f"{name} {_describe(pair)}" for name, pair in rows)
    axis = "from 0 to 1" if share else rows[0][0]
    svg = charts.paired_intervals(rows, axis=axis, label=label, named=run.legend_of)
    intervals = f"{level} intervals" if (level := run.confidence) else "intervals"
    left_out = len(pairs) - len(drawn[:_METRICS_DRAWN])
    remainder = f" The table below has {left_out} more." if left_out else ""
    return (Chart(svg, f"With {intervals}.{_about(run.greedy_pair(told[0]))}{remainder}"),)


def _about(greedy: Pair) -> str:
    return " Greedy: replies at temperature 0." if greedy else ""


def _metric_charts(run: RunFiles) -> tuple[Charts, ...]:
    """The task's charts, or those of the first metrics; nothing without figures."""
    task_charts = tuple(_task_charts(run))
    drawn = task_charts or _metric_chart(run)
    if task_charts and run.presentation.charts_title:
        title = run.presentation.charts_title
    elif run.audited:
        title = "Metrics with their intervals"
    else:
        title = "Before and after training" if run.finished else "Before training"
    return (Charts(title, "charts", charts=drawn),) if drawn else ()


def _is_measured(pair: Pair) -> bool:
    """Whether one of the stages has a figure."""
    return any(estimate.value is not None for estimate in pair.values())


def _is_share(pair: Pair) -> bool:
    """Whether the metric lies between 0 and 1, with its intervals, at every stage."""
    values = [v for e in pair.values() for v in (e.value, e.low, e.high) if v is not None]
    return bool(values) and all(0 <= value <= 1 for value in values)


def _describe(pair: Pair) -> str:
    return ", ".join(f"{figure_with_interval(e)} {stage}" for stage, e in pair.items())


def _training(run: RunFiles) -> tuple[Charts, ...]:
    """The curves of the history; nothing without one."""
    hidden = {"step", "reward_std"}
    history = run.history.items()
    columns = [n for n, values in history if n not in hidden and any(map(math.isfinite, values))]
    if not columns:
        return ()
    watched = run.latest.watched
    metric = f"env/{watched.metric if watched else run.headline}"
    first = [name for name in ("reward", metric, *_CURVES_FIRST) if name in columns]
    more = [name for name in columns if name not in first]
    span = charts.window(len(run.history.get("step", ())))
    note = f"{_training_in_words(run)} Thin line: each step. Strong line: mean over {span} steps."
    if "reward_std" in run.history:
        note += " Band: reward plus and minus its standard deviation."
    drawn, folded = (tuple(_curve(run, name) for name in names) for names in (first, more))
    return (Charts("Training, stage by stage", "training", note, drawn, folded, small=True),)


def _training_in_words(run: RunFiles) -> str:
    """Say which stages ran and how long, and what GRPO did to its reward."""
    seconds = run.provenance.seconds.items()
    times = [f"{plain_name(name)} {timedelta(seconds=round(s))}" for name, s in seconds]
    stages = f"Stages and their time: {', '.join(times)}. " if times else ""
    steps = len(run.history["step"]) if "step" in run.history else 0
    rewards = [value for value in run.history.get("reward", ()) if math.isfinite(value)]
    if not rewards:
        return f"{stages}GRPO took {steps:,} steps."
    span = charts.window(len(rewards))
    means = fmean(rewards[:span]), fmean(rewards[-span:])
    return (
        f"{stages}GRPO took {steps:,} steps: the mean reward of its first and last {span} went "
        f"from {figure(means[0])} to {figure(means[1])}."
    )


def _curve(run: RunFiles, column: str) -> Chart:
    values = run.history[column]
    steps = run.history.get("step") or tuple(map(float, range(1, len(values) + 1)))
    kind, _, name = column.rpartition("/")
    words = run.name_of(name) if kind == "env" else plain_name(name)
    parts = [kind, words] if kind in ("reward", "failures") else [words]
    title = heading(": ".join(parts))
    numbers = [value for value in values if math.isfinite(value)]
    label = f"{title} over training steps: from {figure(numbers[0])} to {figure(numbers[-1])}"
    spread = run.history.get("reward_std") if column == "reward" else None
    return Chart(charts.curve(steps, values, title=title, label=label, spread=spread))


# --- provenance ---------------------------------------------------------------------------------


def describe_provenance(record: Provenance) -> Described:
    """Put provenance.json into words."""
    content = record.model_dump(exclude_unset=True)
    described = {name: describe(value) for name, value in content.items()}
    if record.command:
        described["command"] = shlex.join(record.command)
    return tuple((heading(plain_name(name)), value) for name, value in described.items())
