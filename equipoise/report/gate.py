"""The gate of a run's document: gate.json as a table, with what is not kept."""

from collections.abc import Iterator

from equipoise.report.document import Alert, Cell, Table, Tables
from equipoise.report.run_files import Json, RunFiles, as_object
from equipoise.report.words import (
    MISSING,
    allowed_change,
    change_in_unit,
    figure,
    number,
    printable,
)

_COLUMNS = ("Task", "Metric", "Before", "After", "Change", "Allowed", "Status")


def gate_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Tabulate the verdict on the trained model; nothing for a run that was not gated."""
    if not run.gate:
        return ()
    table = gate_table(run.gate, reasons=True)
    lead = (
        f"Whether the trained model is worse by more than is allowed: "
        f"{_text(run.gate, 'summary')}. In brackets: {table.confidence} intervals."
    )
    title = f"Gate: {_text(run.gate, 'verdict')}"
    return (Tables(title, "gate", tables=(("", table),), lead=lead),)


def gate_alerts(run: RunFiles) -> Iterator[Alert]:
    """Warn of a trained model that is worse."""
    if run.gate.get("verdict") == "failed":
        yield Alert(f"The trained model fails the gate: {_text(run.gate, 'summary')}.", "gate")


def gate_table(gate: Json, *, reasons: bool = False) -> Table:
    """A row for each metric of gate.json, and one for each task that a side lacks."""
    rows = [
        _row(name, metric, reasons=reasons)
        for name, task in as_object(gate.get("tasks")).items()
        for metric in map(as_object, as_object(as_object(task).get("metrics")).values())
    ]
    absent = ("all", *[MISSING] * 4, "not evaluated")
    rows += [
        tuple(map(Cell, (printable(name), *absent))) for name in as_object(gate.get("missing"))
    ]
    return Table(_COLUMNS, tuple(rows), _level(gate))


def _level(gate: Json) -> str:
    """Two one-sided tests show that a change is within its margin: the level of their interval."""
    confidence = number(gate.get("confidence"))
    return "" if confidence is None else f"{2 * confidence - 1:.0%}"


def _row(task: str, metric: Json, *, reasons: bool) -> tuple[Cell, ...]:
    margin = {
        **as_object(metric.get("margin")),
        "low": metric.get("low"),
        "high": metric.get("high"),
    }
    change, interval = change_in_unit(number(metric.get("change")), margin)
    reason = _text(metric, "reason") if reasons else ""
    sides = (figure(number(metric.get(side))) for side in ("before", "after"))
    return (
        Cell(printable(task)),
        Cell(_text(metric, "label")),
        *(Cell(side, kind="number") for side in sides),
        Cell(change, interval, kind="number"),
        Cell(allowed_change(margin).rstrip(",")),
        Cell(_text(metric, "status"), note=reason, kind="verdict"),
    )


def _text(content: Json, key: str) -> str:
    return printable(content.get(key, ""))
