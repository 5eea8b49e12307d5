"""The verdict table, the breakdowns and the sentence of outcome."""

import pytest

from equipoise.report.run_files import RunFiles
from equipoise.report.tables import outcome, sections, verdict_summary, verdict_table


def run(before, after=None, **compared):
    stages = {"before": before} if after is None else {"before": before, "after": after}
    replies = dict.fromkeys(stages, ())
    return RunFiles(evaluations=stages, comparison=compared, replies=replies)


def metrics(**values):
    found = {name: {"value": v, "low": v - 0.1, "high": v + 0.1} for name, v in values.items()}
    return {"confidence": 0.9, "metrics": found}


UNKNOWN = {"metrics": {"ratio": {"value": None}}}


@pytest.mark.parametrize(
    ("before", "after", "verdict", "start"),
    [
        *(
            (metrics(accuracy=0.5), metrics(accuracy=after), verdict, f"{start}0.500")
            for after, verdict, start in (
                (0.8, "better", "The accuracy rose from "),
                (0.2, "worse", "The accuracy fell from "),
                (0.5, "no evidence", "There is no evidence that the accuracy changed: "),
            )
        ),
        (UNKNOWN, None, "", "The ratio could not be measured before training"),
        (UNKNOWN, UNKNOWN, "", "The ratio could not be measured before and after training"),
    ],
)
def test_outcome_tells_the_first_metric(before, after, verdict, start):
    told = outcome(run(before, after, accuracy={"verdict": verdict or "changed"}))
    assert told.startswith(start)
    assert told.endswith(".")
    assert ("(90% CI 0.400\u20130.600)" in told) is bool(verdict)


def test_outcome_and_verdict_tell_the_cut():
    row = {"verdict": "better", "cut": {"value": 0.965, "low": -0.01, "high": 0.994}}
    found = run(metrics(ratio=1.4), metrics(ratio=1.02), ratio=row)
    told = "raining removed 96.5% of it (\u22121.0% to 99.4%)"
    assert outcome(found).endswith(f"to 1.02 (0.92\u20131.12). T{told}.")
    assert verdict_table(found).rows[0][-1].note == f"t{told}"


def test_the_worst_stands_first_in_table_and_summary():
    rows = {
        "a": {"verdict": "better"},
        "b": {"verdict": "worse", "guard": "preserved"},
        "c": {"verdict": "no evidence", "guard": "inconclusive"},
        "d": {"verdict": "no evidence", "guard": "not preserved"},
        "e": {"verdict": "changed"},
    }
    found = run(metrics(**dict.fromkeys(rows, 0.5)), {}, **rows)
    assert [row[0].text for row in verdict_table(found).rows] == ["D", "B", "C", "A", "E"]
    assert verdict_summary(found) == (
        "Guard not preserved: d. Guard inconclusive: c. Guard preserved: b. Worse: b. Changed: e. "
        "Better: a. No evidence of a change: 2 of 5."
    )


@pytest.mark.parametrize(
    ("margin", "allowed", "change"),
    [
        ({"by": 0.1, "relative": True, "low": -0.09, "high": 0.043}, "\u00b110%",
         "measured \u22129.0% to 4.3%"),
        ({"by": 0.25, "relative": False}, "\u00b10.25", "not measured"),
        ({"by": 0.02, "relative": False, "low": 0.024, "high": 0.094, "better": "higher"},
         "\u22120.02", "measured 0.024 to 0.094"),
        ({"by": 0.03, "relative": False, "better": "lower", "power": 0.214},
         "+0.03",
         "not measured; an unchanged model passes in 21% of runs"),
    ],
)  # fmt: skip
def test_a_guard_is_shown_with_its_margin(margin, allowed, change):
    row = {"verdict": "worse", "guard": "preserved", "margin": margin}
    table = verdict_table(run(metrics(slope=0.5), metrics(slope=0.5), slope=row))
    told = f"guard preserved (margin {allowed}; {change})"
    assert table.rows[0][-1].note == told


def test_table_shows_the_change_with_its_sign_and_the_verdict_in_words():
    row = {"difference": 0.3, "low": 0.1, "high": 0.5, "p_holm": 0.02, "test": "paired bootstrap"}
    found = run(metrics(accuracy=0.5), metrics(accuracy=0.8), accuracy={**row, "verdict": "better"})
    table = verdict_table(found)
    change = ("Change", "p after Holm", "Test", "Verdict")
    assert table.columns == ("Metric", "Before", "After", *change)
    (cells,) = table.rows
    assert (cells[3].text, cells[3].interval) == ("+0.300", "0.100\u20130.500")
    assert [cell.text for cell in cells[4:]] == ["0.02", "paired bootstrap", "better"]
    assert verdict_table(run(metrics(accuracy=0.5))).columns == ("Metric", "Before")


def test_breakdown_with_the_same_measures_is_one_table():
    evaluation = {"by_case": {case: {"rate": {"value": 0.5}} for case in ("a_b", "c")}}
    (section,) = sections(run(evaluation, evaluation))
    ((_, table),) = section.tables
    assert section.title == "By case"
    assert table.columns == ("Case", "Rate, before", "Rate, after")
    assert [row[0].text for row in table.rows] == ["A b", "C"]


def test_cells_of_an_intersection_come_worst_first():
    cells = {"x": {"value": 4.0}, "y": {"value": 1.0}, "z": {"value": 5.0}, "w": {"value": None}}
    ratio = {"disparity_ratio": {"value": 1.4, "floor": 1.01}}
    (section,) = sections(run({"intersections": {"race x gender": ratio | cells}}))
    ((summary, table),) = section.tables
    assert section.folded
    assert summary == "Race \u00d7 gender: disparity ratio 1.40 before"
    assert [row[0].text for row in table.rows] == ["Y", "Z", "X", "W"]


def test_scalars_of_an_evaluation_are_no_breakdown():
    assert sections(run({"n_prompts": 4, "task": "x", "empty": {}, **metrics(a=1)})) == ()


def test_a_long_breakdown_is_folded():
    keys = [f"{race}, {age}" for race in "abcd" for age in ("old", "young")]
    evaluation = {"by_race_and_age": {key: {"rate": {"value": 0.5}} for key in keys}}
    (section,) = sections(run(evaluation))
    assert section.folded
    assert section.tables[0][0] == "By race and age: 8 rows"


@pytest.mark.parametrize(
    ("low", "shown"), [(7.0, ("12", "7\u201319")), (7.5, ("12.0", "7.5\u201319.0"))]
)
def test_counts_have_no_decimals(low, shown):
    cells = {"yes": {"value": 12.0, "low": low, "high": 19.0}, "no": {"value": 0.0}}
    (section,) = sections(run({"confusion": {"gold yes": cells}}))
    row = section.tables[0][1].rows[0]
    assert (row[1].text, row[1].interval) == shown


def test_a_breakdown_of_any_name_has_an_anchor_that_needs_no_quotes():
    rows = {"yes": {"accuracy": {"value": 0.5}}}
    names = ("by_label", 'by_" onclick=x', "<script>", "by_\u65e5\u672c")
    found = sections(run({"metrics": {}} | dict.fromkeys(names, rows)))
    anchors = ["table-by_label", "table-by_-onclick-x", "table-script-", "table-by_\u65e5\u672c"]
    assert [section.anchor for section in found] == anchors
