"""Modes, and trivial baselines, in the report."""

from dataclasses import replace

import pytest

from environments.presentation import Presentation, Words
from equipoise.report.head import alerts
from equipoise.report.run_files import RunFiles
from equipoise.report.tables import mode_sections, probe_sections

FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}
WORDS = {"accuracy": Words("share of right answers")}
BARE = RunFiles(
    evaluations={"before": {}, "after": {}},
    replies={"before": (), "after": ()},
    presentation=Presentation(words=WORDS),
)
PAIR = {"difference": 0.1, "low": 0.05, "high": 0.15, "p_holm": 0.01, "test": "mid-p McNemar"}
MODES = {
    "confidence": 0.95,
    "metric": "accuracy",
    "modes": {
        "no_retrieval": {"accuracy": FIGURE, "retrieval_recall": {"value": None}},
        "planning": {"accuracy": FIGURE, "retrieval_recall": FIGURE},
    },
    "comparisons": [{"modes": ["no_retrieval", "planning"], **PAIR, "verdict": "better"}],
    "seconds": {"search": 0.0021},
    "sources": {"index": "bm25:1234"},
    "notes": ["Options were shown."],
}
POLICY = {"note": "one reply", "metrics": {"reward": FIGURE, "accuracy": FIGURE}}
PROBE = {
    "metric": "accuracy",
    "constants": {"constant": {"reply": "<b>Rest.</b>", "worth": 0.9, "tried": 3}},
    "baselines": {"best_of_n": POLICY},
}
CHANGE = {"difference": -0.2, "low": -0.3, "high": -0.1, "p_holm": 0.002, "verdict": "worse"}


def table_of(probe, trained=True):
    """The table of baselines, with the trained model beside them where there is one."""
    found = replace(BARE, probe=probe, modes={"trivial": probe} if trained else {})
    ((_, table),) = probe_sections(found)[0].tables
    told = [alert.text for alert in alerts(found) if "does not beat" in alert.text]
    return table, told


def test_modes_pairs_times_and_notes_are_shown():
    assert mode_sections(BARE) == ()
    (section,) = mode_sections(replace(BARE, modes=MODES))
    (_, modes), (_, pairs) = section.tables
    assert modes.columns == ("Mode", "Share of right answers", "Retrieval recall")
    assert [cell.text for cell in modes.rows[0]][:2] == ["no retrieval", "0.500"]
    assert pairs.columns[1] == "Change in share of right answers"
    assert pairs.rows[0][0].text.endswith("planning")
    assert "better" in pairs.rows[0][-1].text
    for told in ("search 2.1 ms", "Options were shown.", "index bm25:1234"):
        assert told in section.note


def test_trivial_baselines_are_shown_before_training():
    table, _ = table_of(PROBE, trained=False)
    assert table.columns == ("Baseline", "Reward", "Share of right answers")
    assert [cell.text for cell in table.rows[0]] == ["best of n", "0.500", "0.500"]
    assert table.rows[0][0].note == "one reply"
    assert ": <b>Rest.</b>" in probe_sections(replace(BARE, probe=PROBE))[0].note


def test_after_training_the_model_stands_beside_them_and_a_lost_one_is_an_alert():
    baselines = {"best_of_n": POLICY | {"against": {"reward": CHANGE}}}
    table, told = table_of(PROBE | {"baselines": baselines, "not_beaten": ["best_of_n"]})
    assert table.columns[3:] == (
        "Trained \N{MINUS SIGN} baseline",
        "p after Holm",
        "Test",
        "Verdict",
    )
    assert "worse" in table.rows[0][-1].text
    assert [text.partition("does not beat in ")[2] for text in told] == ["reward: best of n."]


def test_a_task_with_an_objective_of_its_own_is_compared_by_that():
    figure = {"value": 0.25, "low": 0.1, "high": 0.4}
    policy = {"metrics": {"far": figure, "accuracy": figure}, "against": {"far": CHANGE}}
    trivial = {"objective": "far", "baselines": {"vote": policy}, "not_beaten": ["vote"]}
    table, told = table_of(PROBE | trivial)
    assert (table.columns[1], table.rows[0][1].text) == ("Far", "0.250")
    assert [text.partition("does not beat in ")[2] for text in told] == ["far: vote."]


def test_no_trivial_baseline_lacks_a_sentence():
    baselines = {name: {"note": "", "metrics": {}} for name in ("constant", "random race", "mine")}
    baselines["constant"]["note"] = "gives one reply"
    said = Presentation(words={"random race": Words("random race", "deals replies at random")})
    probe = {"baselines": baselines, "metric": "accuracy"}
    ((_, table),) = probe_sections(replace(BARE, probe=probe, presentation=said))[0].tables
    notes = [row[0].note for row in table.rows]
    assert notes[:2] == ["gives one reply", "deals replies at random"]
    assert notes[2]


@pytest.mark.parametrize(
    ("figure", "told"),
    [(FIGURE, "0.500 (0.400\N{EN DASH}0.600)"), ({"value": None}, "could not be measured")],
)
def test_what_greedy_is_compared_with_is_said_also_without_a_figure(figure, told):
    baselines = {"greedy": POLICY | {"against": {"reward": CHANGE}}}
    table, _ = table_of(PROBE | {"baselines": baselines, "trained_greedy": {"reward": figure}})
    assert "temperature 0" in table.rows[0][-1].note and told in table.rows[0][-1].note


def test_a_policy_has_its_noise_floor_beside_its_figure():
    figures = {"accuracy": {**FIGURE, "floor": 0.3, "floor_high": 0.4, "p": 0.2}}
    baselines = {"random race": {"note": "", "metrics": figures}}
    table, _ = table_of({"baselines": baselines, "metric": "accuracy"}, trained=False)
    assert table.rows[0][2].noise == "noise alone 0.30 (up to 0.40); p\u00a00.2"
