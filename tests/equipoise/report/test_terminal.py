"""Documents on a terminal, of a run's own files: see result/."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from environments.fairness.presentation import PRESENTATION
from equipoise.files.console import Reporter
from equipoise.report.renderers import print_beside, print_evaluation, print_result
from equipoise.report.run_files import RunFiles
from equipoise.report.tables import comparison_table, verdict_table
from equipoise.report.words import MINUS, MISSING
from equipoise.run.directory import Comparison, Evaluation

UNKNOWN = {"value": None, "low": None, "high": None}
FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}
RESULT = Path(__file__).parent / "result"


@pytest.mark.parametrize(
    ("figure", "floor"),
    [(FIGURE, False), (FIGURE | {"floor": 0.1, "p": 0.01}, True), (UNKNOWN, False)],
)
def test_an_evaluation_has_its_noise_floor_and_says_what_could_not_be_measured(
    figure, floor, capsys
):
    evaluation = {"metrics": {"some_rate": figure}, "n_rollouts": 9, "n_prompts": 3, "n_failed": 1}
    said = {"confidence": 0.95, "split": "validation", "objective": "some_rate"}
    print_evaluation(Reporter(), Evaluation.model_validate(evaluation | said), "after")
    printed = " ".join(capsys.readouterr().out.split())
    unknown = "warning: The some rate could not be measured after training" in printed
    assert unknown is (figure == UNKNOWN) is ("0.400-0.600" not in printed)
    assert ("0.100; p 0.01" in printed) is floor
    assert "warning: 1 rollouts could not be scored" in printed


def test_an_audited_model_has_no_figures_before_training(capsys):
    content = {"metrics": {"some_rate": FIGURE, "other": UNKNOWN}, "objective": "other"}
    evaluation = Evaluation.model_validate(content | {"confidence": 0.95})
    print_evaluation(Reporter(), evaluation, "before", audited=True)
    printed = capsys.readouterr().out
    assert "Evaluated" in printed and "before" not in printed.lower()
    assert "not measured: Other" in printed


def real(name):
    return json.loads((RESULT / name).read_text())


def at(width, show):
    """The text that a terminal of this width shows."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width)
    show(Reporter(console))
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()
    return out.getvalue()


def plain(text):
    return text.replace(MINUS, "-").replace(MISSING, "-")


@pytest.mark.parametrize("width", [60, 160])
def test_every_figure_of_a_comparison_and_an_evaluation_is_whole(width):
    comparison = Comparison.model_validate(real("comparison.json")).metrics
    run = RunFiles(comparison=comparison, presentation=PRESENTATION)
    shown = at(width, lambda reporter: print_result(reporter, run))
    rows = comparison_table(run).rows
    for _, before, after, change, p, _, verdict in rows:
        for text in (before.text, after.text, change.text, change.interval, p.text):
            assert plain(text) in shown
        assert all(word in shown for word in verdict.text.split())
    presentation = {"presentation": PRESENTATION.to_json()}
    evaluation = Evaluation.model_validate(real("evaluation.json") | presentation)
    shown = at(width, lambda reporter: print_evaluation(reporter, evaluation, "after"))
    run = RunFiles(evaluations={"after": evaluation}, presentation=PRESENTATION)
    for _, cell in verdict_table(run).rows:
        assert plain(cell.text) in shown
        assert plain(cell.interval) in shown


def test_what_is_small_print_on_a_page_is_told_after_the_table():
    row = {
        "before": 2.0,
        "after": 1.5,
        "difference": -0.5,
        "low": -0.9,
        "high": -0.1,
        "p_holm": 0.1,
    }
    row["p_holm"] = 0.1
    margin = {"by": 0.1, "relative": True, "low": -0.4, "high": -0.04, "power": 0.31}
    one_sided = {"by": 0.01, "better": "higher"}
    share = {"value": 0.965, "low": 0.91, "high": 0.994}
    rows = {
        "slope": {**row, "verdict": "worse", "guard": "inconclusive", "margin": margin},
        "parse_rate": {
            **row,
            "verdict": "worse",
            "guard": "not preserved",
            "margin": margin | one_sided,
        },
        "spread": {**row, "verdict": "worse", "guard": "preserved", "margin": margin | {"by": 9.0}},
        "disparity_ratio": {**row, "verdict": "better", "removed_share": share},
        "gini": {**row, "verdict": "better", "removed_share": None},
    }
    shown = at(120, lambda reporter: print_result(reporter, RunFiles(comparison=rows)))
    told = " ".join(shown.split())
    assert "warning: Parse rate: guard not preserved (margin -1%; measured -40%" in told
    assert "warning: Slope: guard inconclusive" in told
    assert "Spread: guard preserved" in told and "warning: Spread" not in told
    assert "Disparity ratio: training removed 96.5% (91.0% to 99.4%) of it" in told
    assert "Gini: " not in told


def test_trivial_baselines_are_told_with_their_alerts():
    figure = {"reward": FIGURE}
    against = {"reward": {"difference": 0.1, "p_holm": 0.5, "verdict": "no evidence"}}
    baselines = {"constant": {"metrics": figure, "against": against}}
    constants = {"constant": {"reply": "yes", "tried": 27}}
    trivial = {"baselines": baselines, "not_beaten": ["constant"], "constants": constants}
    trivial |= {"confidence": 0.95, "ahead": ["constant"]}
    run = RunFiles(modes={"trivial": trivial}, probe=trivial)
    told = " ".join(at(160, lambda reporter: print_beside(reporter, run)).split())
    assert "95% interval" in told
    assert "Best constant reply of 27, by reward on training prompts: yes" in told
    assert "warning: Trivial baselines that the trained model does not beat in reward" in told
    assert (
        "warning: Before training the model was worse in reward than baselines that ignore the"
        in told
    )
