"""Documents of a gate: its page, table and notes, gate.json, JUnit's XML and Markdown."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from equipoise.files.console import Reporter
from equipoise.files.disk import write_json, write_text
from equipoise.report.comparison import (
    comparison_charts,
    comparison_notes,
    comparison_outcome,
    other_drawing,
)
from equipoise.report.document import (
    Alert,
    Cell,
    Charts,
    Document,
    Origins,
    Section,
    Table,
    Tables,
    describe,
)
from equipoise.report.renderers import escaped, grid, page, print_table
from equipoise.report.tables import margin_cell
from equipoise.report.words import (
    MISSING,
    change_in_unit,
    figure,
    heading,
    metric_name,
    p_value,
    printable,
    signed_margin,
    task_title,
)
from equipoise.statistics import compare
from equipoise.statistics.gate import POWER, SETTINGS, GatedMetric, GatedTask, GateResult

SCHEMA = 1
_COLUMNS = ("Task", "Metric", "Before", "After", "Change", "Margin", "Status")
#: A test case of JUnit's; what is inconclusive is an error, because a skipped test passes.
_OUTCOMES = {"not preserved": "failure", "inconclusive": "error"}


def show_gate(
    result: GateResult,
    data: Path,
    junit: Path | None,
    markdown: Path | None,
    reporter: Reporter,
    *,
    undecided: str,
) -> None:
    """Write gate.json, the page beside it and the files that are wanted; print table and notes."""
    write_json(data, gate_content(result))
    path = data.with_suffix(".html")
    write_text(path, gate_page(result))
    if junit is not None:
        write_text(junit, junit_of(result, undecided=undecided))
    if markdown is not None:
        write_text(markdown, markdown_of(result))
    title = f"{result.after} against {result.before}, on the same prompts"
    print_table(reporter, title, gate_table(result))
    for note in notes_of(result):
        reporter.warn(note)
    reporter.say(f"gate: {path}\n      {data}")
    reporter.say(f"\n{outcome_of(result)}")


# --- page -----------------------------------------------------------------------------------------


def gate_page(result: GateResult) -> str:
    """Render the page: what was found of patients, pictures, verdicts, then all metrics folded."""
    every = gate_table(result)
    rows = iter(every.rows)
    deciding = [
        (*row[:-1], replace(row[-1], note=_reason(task, metric, gated)))
        for (_, task, metric, gated), row in zip(_metrics(result), rows, strict=False)
        if gated.status != "preserved" or metric == task.objective
    ]
    deciding += rows  # tasks of one side alone
    note = f"Objectives, and what is not preserved, with {every.confidence} intervals."
    origins = tuple((n, describe(_origin(t))) for n, t in result.tasks.items())
    return page(
        Document(
            title=f"Gate: {result.verdict}",
            facts=(
                ("Old model", result.before),
                ("New model", result.after),
                ("Tasks", ", ".join(result.tasks)),
            ),
            alerts=tuple(_alerts(result)),
            outcome=outcome_of(result),
            summary=f"{heading(summary_of(result))}.",
            notes=tuple(_limits(result)),
            sections=(
                *_pictures(result),
                Tables("Verdicts", "verdicts", note, (("", replace(every, rows=tuple(deciding))),)),
                Tables("All metrics", "metrics", tables=(("", every),), folded=True),
                Origins("Provenance", "provenance", facts=origins, folded=True),
            ),
        )
    )


def outcome_of(result: GateResult) -> str:
    """Say what either side does in the words of the tasks: one sentence of each, if several."""
    tasks = result.tasks.values()
    if len(result.tasks) == 1:
        return " ".join(comparison_outcome(task.sides, task.presentation) for task in tasks)
    return " ".join(
        comparison_outcome(
            task.sides, replace(task.presentation, findings=task.presentation.findings[:1])
        )
        for task in tasks
    )


def _pictures(result: GateResult) -> Iterator[Section]:
    for number, (name, task) in enumerate(result.tasks.items(), start=1):
        if drawn := tuple(comparison_charts(task.sides, task.presentation)):
            title = task_title(name, task.presentation)
            yield Charts(title, f"charts-{number}", charts=drawn)


def _alerts(result: GateResult) -> Iterator[Alert]:
    for name, task, metric, gated in _metrics(result):
        if gated.status == "not preserved":
            text = f"{name}: {_label(task, metric)} is worse by more than its margin"
            yield Alert(f"{text}: {_explain_status(task, metric, gated)}.", "verdicts")


def gate_table(result: GateResult) -> Table:
    """Make a row for each metric, and one for each task that only one side has."""
    rows = [_row(name, task, metric, gated) for name, task, metric, gated in _metrics(result)]
    absent = ("all", *[MISSING] * 4, "not evaluated")
    rows += [tuple(map(Cell, (name, *absent))) for name in result.missing]
    # Two one-sided tests show that a change is within its margin: the level of their interval.
    return Table(_COLUMNS, tuple(rows), f"{2 * SETTINGS.confidence - 1:.0%}")


def _row(name: str, task: GatedTask, metric: str, gated: GatedMetric) -> tuple[Cell, ...]:
    comparison, margin = gated.comparison, gated.margin
    return (
        Cell(name),
        Cell(_label(task, metric)),
        *(Cell(figure(side), kind="number") for side in (comparison.before, comparison.after)),
        margin_cell(comparison),
        Cell(signed_margin(margin)),
        Cell(gated.status, kind=f"verdict {gated.status.split(' ')[0]}"),
    )


def _metrics(result: GateResult) -> Iterator[tuple[str, GatedTask, str, GatedMetric]]:
    for name, task in result.tasks.items():
        for metric, gated in task.metrics.items():
            yield name, task, metric, gated


def _label(task: GatedTask, metric: str) -> str:
    label = metric_name(metric, task.presentation.words)
    return f"{label} (objective)" if metric == task.objective else label


def _explain_status(task: GatedTask, metric: str, gated: GatedMetric) -> str:
    """Explain a metric's status in a line."""
    margin = gated.margin
    change, interval = change_in_unit(gated.comparison)
    between = f" ({interval})" if interval else ""
    text = f"margin {signed_margin(margin)}; measured {change}{between}"
    return "; ".join(filter(None, (text, _reason(task, metric, gated))))


def _reason(task: GatedTask, metric: str, gated: GatedMetric) -> str:
    """Say how sure a loss is, why a metric is inconclusive, or how many prompts would suffice."""
    if gated.status == "preserved":
        return ""
    if gated.status == "not preserved":
        return f"p {p_value(gated.p_holm)} after Holm's correction"
    if gated.gap:
        return gated.gap
    needed = task.prompts_needed(metric)
    if needed is None:
        return "the number of prompts needed is unknown"
    if needed <= task.prompts:
        return (
            f"{task.prompts:,} prompts suffice if nothing changed, so the change is near the margin"
        )
    return (
        f"{task.prompts:,} prompts; about {needed:,} needed for an unchanged model to pass in "
        f"{POWER:.0%} of runs"
    )


def notes_of(result: GateResult) -> Iterator[str]:
    """A line for everything that is not preserved, and for what limits a comparison."""
    for name, task, metric, gated in _metrics(result):
        if gated.status != "preserved":
            headline = f"{name}: {_label(task, metric)} {gated.status}"
            yield f"{headline}: {_explain_status(task, metric, gated)}"
    yield from _limits(result)


def _limits(result: GateResult) -> Iterator[str]:
    """A line for each thing that limits the comparison."""
    for name, task in result.tasks.items():
        for note in comparison_notes(task.sides, task.presentation):
            yield f"{name}: {note}"
        if found := task.drawn_differently:
            yield f"{name}: {other_drawing(found)}"
        if task.left_out:
            yield (
                f"{name}: {task.left_out:,} prompts are left out, for the model was "
                "trained on them, or on another one of their set"
            )
    for name, side in result.missing.items():
        yield f"{name}: {side} was not evaluated on it"


def summary_of(result: GateResult) -> str:
    """Say in a sentence what the verdict rests on: the metrics by name that are not preserved."""
    parts = []
    if worse := _named(result, "not preserved"):
        parts.append(f"the new model is worse by more than its margin in {worse}")
    if open_ := _named(result, "inconclusive"):
        parts.append(f"too few data to say whether the new model is worse in {open_}")
    if not parts:
        number = sum(1 for _ in _metrics(result))
        parts.append(f"the new model is within its margin in all {number} metrics")
    if result.missing:
        parts.append(f"not evaluated on both sides: {', '.join(result.missing)}")
    return "; ".join(parts)


def _named(result: GateResult, status: str) -> str:
    """The metrics with a status, each with its task where there are several; empty without any."""
    several = len(result.tasks) > 1
    return ", ".join(
        f"{name}'s {_label(task, metric)}" if several else _label(task, metric)
        for name, task, metric, gated in _metrics(result)
        if gated.status == status
    )


def remedy_of(result: GateResult) -> str:
    """Say what would decide the gate."""
    lines = []
    for name, task in result.tasks.items():
        open_ones = [n for n, gated in task.metrics.items() if gated.status == "inconclusive"]
        needed = [n for metric in open_ones if (n := task.prompts_needed(metric))]
        if max(needed, default=0) > task.prompts:
            lines.append(
                f"{name}: evaluate both on about {max(needed):,} prompts in place of "
                f"{task.prompts:,}; where replies vary, more of them to each prompt do as well "
                "(equipoise.evaluation.generations)."
            )
        if any(sum(task.metrics[metric].unscored) for metric in open_ones):
            lines.append(f"{name}: --resume of the evaluation asks again what has no score.")
    if result.missing:
        lines.append("Evaluate both on every task: equipoise evaluate all.")
    return "\n".join(lines) or "The changes are near their margins: more prompts say which side."


def gate_content(result: GateResult) -> dict[str, Any]:
    """The content of gate.json."""
    return {
        "schema": SCHEMA,
        "verdict": result.verdict,
        "confidence": SETTINGS.confidence,
        "summary": summary_of(result),
        "before": result.before,
        "after": result.after,
        "missing": dict(result.missing),
        "tasks": {name: _task(task) for name, task in result.tasks.items()},
    }


def _task(task: GatedTask) -> dict[str, Any]:
    return {
        **_origin(task),
        "drawn_differently": [asdict(d) for d in task.drawn_differently],
        "metrics": {name: _metric(task, name, gated) for name, gated in task.metrics.items()},
    }


def _origin(task: GatedTask) -> dict[str, Any]:
    return {
        "before": task.before,
        "after": task.after,
        "prompts": task.prompts,
        "replies": task.replies,
        "left_out": task.left_out,
        "objective": task.objective,
    }


def _metric(task: GatedTask, name: str, gated: GatedMetric) -> Mapping[str, Any]:
    comparison, margin = gated.comparison, gated.margin
    return {
        "label": _label(task, name),
        "before": comparison.before,
        "after": comparison.after,
        "change": compare.change_in_unit(comparison),
        "low": margin.low,
        "high": margin.high,
        "margin": {"by": margin.by, "relative": margin.relative, "better": margin.better},
        "p_holm": gated.p_holm,
        "status": gated.status,
        "gap": gated.gap,
        "reason": _reason(task, name, gated),
        "prompts_needed": task.prompts_needed(name),
    }


def junit_of(result: GateResult, undecided: str = "fail") -> str:
    """A test suite for each task and a test case for each metric, as CI shows them.

    Where `undecided` is to pass, a metric without enough data is skipped and not an error.
    """
    root = ET.Element("testsuites", name="equipoise gate")
    for name, task in result.tasks.items():
        cases = {
            _label(task, metric): (gated.status, _explain_status(task, metric, gated))
            for metric, gated in task.metrics.items()
        }
        suite = _add_suite(root, name, cases)
        if found := task.drawn_differently:
            ET.SubElement(suite, "system-out").text = printable(other_drawing(found))
    for name, side in result.missing.items():
        message = f"{side} was not evaluated on it"
        _add_suite(root, name, {"evaluated": ("inconclusive", message)})
    if undecided == "pass":
        for suite in root:
            suite.set("skipped", suite.get("errors", "0"))
            suite.set("errors", "0")
        for error in root.iter("error"):
            error.tag = "skipped"
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_suite(root: ET.Element, name: str, cases: Mapping[str, tuple[str, str]]) -> ET.Element:
    statuses = [status for status, _ in cases.values()]
    counts = {f"{kind}s": str(statuses.count(status)) for status, kind in _OUTCOMES.items()}
    task = printable(name)
    suite = ET.SubElement(root, "testsuite", {"name": task, "tests": str(len(cases))} | counts)
    for label, (status, message) in cases.items():
        case = ET.SubElement(suite, "testcase", classname=f"gate.{task}", name=printable(label))
        if status in _OUTCOMES:
            ET.SubElement(case, _OUTCOMES[status], type=status, message=printable(message))
    return suite


def markdown_of(result: GateResult) -> str:
    """The verdict, a table and what is not preserved, for a pull request."""
    sides = escaped(f"{result.after} against {result.before}: {summary_of(result)}.")
    table = gate_table(result)
    level = f"In brackets: {table.confidence} intervals."
    notes = "\n".join(f"- {escaped(note)}" for note in notes_of(result))
    parts = (
        f"## Gate: {result.verdict}",
        escaped(outcome_of(result)),
        f"{sides} {level}",
        grid(table),
        notes,
    )
    return "\n\n".join(filter(None, parts)).rstrip() + "\n"
