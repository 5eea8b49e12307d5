"""The tables in the terminal, of a run's own files: see result/."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from environments.fairness.presentation import PRESENTATION
from equipoise.report.words import p_value as reported_p
from equipoise.terminal.console import Reporter
from equipoise.train.stages.summary import (
    interval,
    number,
    p_value,
    print_comparison,
    print_evaluation,
)

UNKNOWN = {"value": None, "low": None, "high": None}
FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}
RESULT = Path(__file__).parent / "result"
WIDTHS = (60, 80, 120, 160)


@pytest.mark.parametrize(
    ("figure", "shown"), [(FIGURE, False), (FIGURE | {"floor": 0.1, "p": 0.01}, True)]
)
def test_a_noise_floor_has_a_column_where_there_is_one(figure, shown, capsys) -> None:
    evaluation = {"metrics": {"some_rate": figure}, "n_rollouts": 9, "n_prompts": 3}
    print_evaluation(Reporter(), evaluation | {"n_failed": 0, "confidence": 0.95, "split": "test"})
    printed = capsys.readouterr().out
    assert "some rate" in printed
    assert "0.400 to 0.600" in printed
    assert ("noise floor" in printed) is shown


@pytest.mark.parametrize(("figure", "known"), [(FIGURE, True), (UNKNOWN, False)])
def test_an_objective_that_could_not_be_measured_is_said(figure, known, capsys) -> None:
    evaluation = {"metrics": {"some_rate": figure}, "n_rollouts": 9, "n_prompts": 3}
    said = {"n_failed": 0, "confidence": 0.95, "split": "validation", "objective": "some_rate"}
    print_evaluation(Reporter(), evaluation | said)
    printed = " ".join(capsys.readouterr().out.split())
    assert ("the objective, some rate, is not known: too few replies" in printed) is not known


def real(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULT / name).read_text())
    return content


def at(width: int, show: Callable[[Reporter], None]) -> str:
    """What a terminal of this width shows; no line is longer."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width)
    show(Reporter(console))
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()
    return out.getvalue()


def left_out(shown: str) -> list[str]:
    _, _, names = " ".join(shown.split()).partition("left out, for the terminal is narrow: ")
    return names.partition(";")[0].split(", ") if names else []


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_of_a_comparison_is_whole(width: int) -> None:
    comparison = real("comparison.json")
    shown = at(width, lambda reporter: print_comparison(reporter, comparison, PRESENTATION.words))
    missing = left_out(shown)
    for found in comparison["metrics"].values():
        assert number(found["before"]) in shown
        assert number(found["after"]) in shown
        assert number(found["difference"], signed=True) in shown
        assert ("interval" in missing) or interval(found, signed=True) in shown
        assert ("p" in missing) or p_value(found["p_holm"]) in shown
    assert missing == {60: ["interval", "p"], 80: ["p"]}.get(width, [])


@pytest.mark.parametrize("width", WIDTHS)
def test_every_figure_of_an_evaluation_is_whole(width: int) -> None:
    evaluation = real("evaluation.json") | {"presentation": PRESENTATION.to_json()}
    shown = at(width, lambda reporter: print_evaluation(reporter, evaluation))
    assert left_out(shown) == ({60: ["parse rate"]}.get(width, []))
    races = [figures["mean_invasiveness"] for figures in evaluation["by_race"].values()]
    for figure in [*evaluation["metrics"].values(), *races]:
        assert number(figure["value"]) in shown
        assert interval(figure) in shown
        assert number(figure.get("floor")) in shown
        assert p_value(figure.get("p")) in shown or figure in races


def test_a_guard_that_did_not_hold_is_told_after_the_table() -> None:
    row = {
        "before": 2.0,
        "after": 1.5,
        "difference": -0.5,
        "low": -0.9,
        "high": -0.1,
        "p_holm": 0.1,
    }
    margin = {"by": 0.1, "relative": True, "low": -0.4, "high": -0.04, "power": 0.31}
    one_sided = {"by": 0.01, "better": "higher"}
    rows = {
        "slope": {**row, "verdict": "worse", "guard": "not shown", "margin": margin},
        "parse_rate": {**row, "verdict": "worse", "guard": "lost", "margin": margin | one_sided},
        "spread": {**row, "verdict": "worse", "guard": "kept", "margin": margin | {"by": 9.0}},
    }
    shown = at(120, lambda reporter: print_comparison(reporter, {"metrics": rows}, {}))
    told = " ".join(shown.split())
    assert "worse; guard kept" in told
    lost = told.index(
        "guard lost: parse rate: the change is -40.000 to -4.000%, where a fall of 1%, "
    )
    assert lost < told.index("guard not shown: slope")
    assert "guard kept: spread" not in told
    told_power = "a model in which nothing changed would keep each guard: slope 31%, parse rate 31%"
    assert told.index(told_power) < lost


def test_the_cut_of_an_excess_is_told_after_the_table() -> None:
    row = {"before": 1.4, "after": 1.02, "difference": -0.38, "low": -0.4, "high": -0.36}
    row |= {"p_holm": 0.001, "verdict": "better"}
    cut = {"value": 0.965, "low": 0.91, "high": 0.994}
    rows = {"disparity_ratio": {**row, "excess_cut": cut}, "gini": {**row, "excess_cut": None}}
    shown = at(120, lambda reporter: print_comparison(reporter, {"metrics": rows}, {}))
    told = " ".join(shown.split())
    assert "disparity ratio, excess over noise: cut by 96.5% (91.0 to 99.4)" in told
    assert "gini, excess" not in told


def test_a_value_outside_its_interval_is_told_to_be_so() -> None:
    noisy = {"value": 0.327, "low": 0.0096, "high": 0.302}
    assert interval(noisy) == "0.010 to 0.302 without noise"
    assert interval({"value": 0.3, "low": 0.1, "high": 0.302}) == "0.100 to 0.302"
    inside = {"value": 0.3, "without_noise": 0.2, "low": 0.1, "high": 0.302}
    assert interval(inside) == "0.200 (0.100 to 0.302) without noise"


@pytest.mark.parametrize("p", [0.00004, 0.0004, 0.0123, 0.35, 1.0])
def test_terminal_and_report_write_one_p(p: float) -> None:
    assert p_value(p) == reported_p(p)
