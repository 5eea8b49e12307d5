"""The verdict table, the breakdowns and the sentence of outcome."""

from dataclasses import replace

import pytest

from environments.presentation import Finding, Presentation
from equipoise.report.run_files import RunFiles
from equipoise.report.tables import breakdown_sections, outcome, summary, verdict_table


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
        (
            UNKNOWN,
            UNKNOWN,
            "",
            "The ratio could not be measured before training and after training",
        ),
    ],
)
def test_outcome_tells_the_first_metric(before, after, verdict, start):
    told = outcome(run(before, after, accuracy={"verdict": verdict or "changed"}))
    assert told.startswith(start)
    assert told.endswith(".")
    assert ("(90% CI 0.400\u20130.600)" in told) is bool(verdict)


def test_outcome_and_verdict_tell_the_cut():
    row = {"verdict": "better", "removed_share": {"value": 0.965, "low": -0.01, "high": 0.994}}
    found = run(metrics(ratio=1.4), metrics(ratio=1.02), ratio=row)
    told = "raining removed 96.5% (\u22121.0% to 99.4%) of "
    assert summary(found) == f"T{told}the ratio beyond sampling noise."
    assert verdict_table(found).rows[0][-1].note == f"t{told}it"


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
    assert summary(found) == "1 of 3 guards are preserved; not preserved: d; inconclusive: c."


def test_a_finding_is_in_the_terms_of_the_patients_beside_noise():
    """Who had more is said of each stage, and text that names no figure stays as it is."""

    def stage(gap, white, black):
        cells = {"White": {"surgery": {"value": white}}, "Black": {"surgery": {"value": black}}}
        figures = {"gap": {"value": gap, "floor": 0.4, "floor_high": 0.8}}
        return {"metrics": figures, "by_race": cells}

    text = "{most} patients had surgery {value} points more often than {least} ones {x}"
    finding = Finding("gap", text, breakdown="by_race", measure="surgery")
    found = run(stage(14.1, 30, 16), stage(0.5, 20.0, 20.5), gap={"verdict": "no evidence"})
    found = replace(found, presentation=Presentation(findings=(finding,)))
    assert outcome(found) == (
        "White patients had surgery 14.1 points more often than Black ones {x} before training and "
        "0.500 after it (Black above White; noise alone gives up to 0.800); "
        "there is no evidence of a change."
    )
    share = Presentation(
        findings=(Finding("rate", "of 100 questions, {value} were answered", 100),)
    )
    found = replace(run(metrics(rate=0.62), metrics(rate=0.08)), presentation=share)
    before = "Of 100 questions, 62 (52\u201372) were answered"
    assert outcome(found) == f"{before} before training and 8 (\u22122 to 18) after it."
    audited = replace(run(metrics(rate=0.62)), presentation=share, provenance={"audit": {}})
    assert outcome(audited) == f"{before}."


def test_the_summary_counts_the_baselines_that_are_beaten():
    against = {"reward": {"before": 0.1, "verdict": "better"}}
    unread = {"reward": {"before": None, "verdict": "not measured"}}
    baselines = {"constant": against, "best_of_n": against, "vote": unread}
    probe = {"baselines": {name: {"against": rows} for name, rows in baselines.items()}}
    found = replace(run(metrics(reward=1)), probe=probe)
    assert summary(found) == "The trained model beats 1 of 1 trivial baselines in reward."


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


def test_a_breakdown_has_a_row_for_each_key_and_measure():
    evaluation = {"by_case": {case: {"rate": {"value": 0.5}} for case in ("a_b", "c")}}
    (section,) = breakdown_sections(run(evaluation, evaluation))
    ((title, table),) = section.tables
    assert (title, section.folded) == ("By case", True)
    assert table.columns == ("Case", "Metric", "Before", "After")
    assert [[cell.text for cell in row[:2]] for row in table.rows] == [
        ["A b", "Rate"],
        ["C", "Rate"],
    ]


def test_scalars_of_an_evaluation_are_no_breakdown():
    found = run({"n_prompts": 4, "task": "x", "empty": {}, **metrics(a=1)})
    assert breakdown_sections(found) == ()


@pytest.mark.parametrize(
    ("low", "shown"), [(7.0, ("12", "7\u201319")), (7.5, ("12.0", "7.5\u201319.0"))]
)
def test_counts_have_no_decimals(low, shown):
    cells = {"yes": {"value": 12.0, "low": low, "high": 19.0}, "no": {"value": 0.0}}
    (section,) = breakdown_sections(run({"confusion": {"gold yes": cells}}))
    row = section.tables[0][1].rows[0]
    assert (row[2].text, row[2].interval) == shown
