"""The tables at the end of a stage: metrics with intervals, then before against after."""

from collections.abc import Mapping
from typing import Any

from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

Figure = Mapping[str, Any]

#: What a narrow terminal does without is in the verdict.
_DIFFERENCE = (
    *(Column("change", spare=1), Column("interval", spare=2), Column("p", spare=3)),
    Column("verdict", folds=True),
)


def print_evaluation(reporter: Reporter, evaluation: Mapping[str, Any]) -> None:
    """Metrics of one stage, and the means of each race where the task has them."""
    confidence = f"{evaluation['confidence']:.0%} interval"
    metrics = evaluation["metrics"]
    columns = (
        Column("metric", folds=True),
        *(Column("value"), Column(confidence), Column("noise floor", spare=1)),
        Column("p", spare=2),
    )
    rows = [
        (name, number(m["value"]), interval(m), number(m.get("floor")), p_value(m.get("p")))
        for name, m in metrics.items()
    ]
    shown = len(columns) if any("floor" in m for m in metrics.values()) else 3
    reporter.table(
        f"{evaluation['n_rollouts']:,} rollouts of {evaluation['n_prompts']:,} prompts, "
        f"split {evaluation['split']}",
        columns[:shown],
        [row[:shown] for row in rows],
        all_in="evaluation.json",
    )
    if evaluation["n_failed"]:
        reporter.warn(f"{evaluation['n_failed']:,} rollouts could not be scored")
    if "by_race" in evaluation:
        _print_races(reporter, evaluation["by_race"], confidence)


def print_comparison(reporter: Reporter, comparison: Mapping[str, Any]) -> None:
    """Before against after with the verdict, metric by metric."""
    rows = [
        (
            name,
            number(m["before"]),
            number(m["after"]),
            number(m["difference"], signed=True),
            interval(m, signed=True),
            p_value(m["p_holm"]),
            m["verdict"],
        )
        for name, m in comparison["metrics"].items()
    ]
    reporter.table(
        "Before and after, on the same items; p after Holm's correction",
        (
            Column("metric", folds=True),
            *(Column("before"), Column("after"), *_DIFFERENCE),
        ),
        rows,
        all_in="report.html",
    )


def print_modes(reporter: Reporter, modes: Mapping[str, Any]) -> None:
    """The modes side by side, then the pairs of them."""
    confidence = f"{modes['confidence']:.0%} interval"
    metrics = list(dict.fromkeys(name for found in modes["modes"].values() for name in found))
    columns = [
        column
        for place, name in enumerate(metrics[:2], 1)
        for column in (Column(name), Column(confidence, spare=place))
    ]
    reporter.table(
        "The same prompts in other ways",
        (Column("mode", folds=True), *columns),
        [
            (mode, *(cell for n in metrics[:2] for cell in (number(f[n]["value"]), interval(f[n]))))
            for mode, f in modes["modes"].items()
        ],
        all_in="report.html",
    )
    reporter.table(
        f"{modes['metric']}, pair by pair; p after Holm's correction",
        (Column("first", folds=True), Column("second", folds=True), *_DIFFERENCE),
        [
            (
                *found["modes"],
                number(found["difference"], signed=True),
                interval(found, signed=True),
                p_value(found["p_holm"]),
                found["verdict"],
            )
            for found in modes["comparisons"]
        ],
        all_in="report.html",
    )
    for note in modes["notes"]:
        reporter.warn(note)


def number(value: float | None, *, signed: bool = False) -> str:
    """Three decimals, more for a value that they would hide; a dash for what is not known."""
    if value is None:
        return "-"
    digits = 3 if value == 0 or abs(value) >= 0.0095 else 5
    return f"{value:{'+' if signed else ''}.{digits}f}"


def interval(figure: Figure, *, signed: bool = False) -> str:
    """Low and high end."""
    if figure.get("low") is None or figure.get("high") is None:
        return "-"
    return f"{number(figure['low'], signed=signed)} to {number(figure['high'], signed=signed)}"


def p_value(p: float | None) -> str:
    """A p-value as papers write it."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _print_races(
    reporter: Reporter, by_race: Mapping[str, Mapping[str, Figure]], confidence: str
) -> None:
    rows = [
        (
            race,
            number(figures["mean_invasiveness"]["value"]),
            interval(figures["mean_invasiveness"]),
            percent(figures["relative_to_white"]["value"]),
        )
        for race, figures in by_race.items()
    ]
    columns = (
        Column("race", folds=True),
        *(Column("mean invasiveness, 0-10"), Column(confidence, spare=1)),
        Column("relative to White"),
    )
    reporter.table("Mean invasiveness by race", columns, rows, all_in="evaluation.json")


def percent(value: float | None) -> str:
    """A signed percentage."""
    return "-" if value is None else f"{value:+.1%}"
