"""How far the judge of a run agrees with labels and with another judge, as the report shows it."""

from collections.abc import Mapping
from typing import Any

from equipoise.report.run_files import Json
from equipoise.report.tables import Cell, Section, Table
from equipoise.report.words import (
    figure,
    figure_and_interval,
    heading,
    metric_name,
    number,
    plain_name,
    printable,
    read_estimate,
)


def agreement_sections(agreement: Json) -> tuple[Section, ...]:
    """The sections of judge_agreement.json; none where there is no such file."""
    judge = printable(agreement.get("judge") or "")
    return tuple(
        _agreement(judge, agreement[part])
        for part in ("labels", "judges")
        if isinstance(agreement.get(part), dict)
    )


def _agreement(judge: str, found: Json) -> Section:
    judged, failed = (number(found.get(key)) or 0 for key in ("n", "failed"))
    note = (
        f"Judge: {judge}. {judged:,.0f} judged, {failed:,.0f} failed. Kappa is weighted by squared "
        "distance; 1 is full agreement, 0 what chance gives."
    )
    tables = [("Measures", _measures(found.get("metrics")))]
    confusion = found.get("confusion")
    if isinstance(confusion, dict):
        tables += [
            (f"{heading(plain_name(name))}: rows {printable(found.get('of'))}, columns this judge",
             _confusion(counts))
            for name, counts in confusion.items()
            if isinstance(counts, dict)
        ]  # fmt: skip
    title = f"Agreement of the judge with {printable(found.get('of') or 'another')}"
    return Section(title, note, tuple(tables), True)


def _measures(metrics: Any) -> Table:
    rows = metrics.items() if isinstance(metrics, dict) else ()
    cells = tuple(
        (
            Cell(heading(metric_name(name))),
            Cell(*figure_and_interval(read_estimate(found)), kind="number"),
        )
        for name, found in rows
    )
    return Table(("Measure", "Value"), cells)


def _confusion(counts: Mapping[str, Any]) -> Table:
    columns = list(counts)
    rows = tuple(
        (Cell(printable(first)), *(Cell(_count(row, name), kind="number") for name in columns))
        for first, row in counts.items()
    )
    return Table(("", *(printable(name) for name in columns)), rows)


def _count(row: Any, name: str) -> str:
    found = number(row.get(name)) if isinstance(row, dict) else None
    return figure(found) if found is None else f"{found:,.0f}"
