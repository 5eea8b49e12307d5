"""Modes, and policies without skill, in the report."""

from dataclasses import replace
from typing import Any

import pytest

from environments.presentation import Presentation, Words
from equipoise.report.beside import mode_sections, probe_sections
from equipoise.report.head import alerts
from equipoise.report.run_files import RunFiles

ESTIMATE = {"value": 0.5, "low": 0.4, "high": 0.6}
MODES = {
    "confidence": 0.95,
    "metric": "accuracy",
    "modes": {
        "no_retrieval": {"accuracy": ESTIMATE, "retrieval_recall": {"value": None}},
        "planning": {"accuracy": ESTIMATE, "retrieval_recall": ESTIMATE},
    },
    "comparisons": [
        {
            "modes": ["no_retrieval", "planning"],
            "difference": 0.1,
            "low": 0.05,
            "high": 0.15,
            "p_holm": 0.01,
            "test": "mid-p McNemar",
            "verdict": "better",
        }
    ],
    "seconds": {"search": 0.0021},
    "sources": {"index": "bm25:1234"},
    "notes": ["Options were shown."],
}


def run(modes: Any = None) -> RunFiles:
    words = {"accuracy": Words("share of right answers")}
    return RunFiles(
        evaluations={"before": {}, "after": {}},
        replies={"before": (), "after": ()},
        modes=modes or {},
        presentation=Presentation(words=words),
    )


def test_a_run_without_other_files_has_no_such_part() -> None:
    assert mode_sections(run()) == ()


def test_modes_pairs_times_and_notes_are_shown() -> None:
    (section,) = mode_sections(run(MODES))
    (_, modes), (_, pairs) = section.tables
    assert modes.columns == ("Mode", "Share of right answers", "Retrieval recall")
    assert [cell.text for cell in modes.rows[0]][:2] == ["no retrieval", "0.500"]
    assert pairs.columns[1] == "Change in share of right answers"
    assert pairs.rows[0][0].text.endswith("planning")
    assert "better" in pairs.rows[0][-1].text
    assert "search 2.1 ms" in section.note
    assert "Options were shown." in section.note
    assert "index bm25:1234" in section.note


@pytest.mark.parametrize(
    "modes",
    [
        {"modes": None, "comparisons": 3},
        {"modes": {"a": 3, "b": {"accuracy": "x"}}, "comparisons": [3], "metric": None},
        {"modes": 3, "seconds": [1], "sources": 2, "notes": "x"},
    ],
    ids=str,
)
def test_damaged_modes_do_no_harm(modes: Any) -> None:
    assert len(mode_sections(run(modes))) == 1


FIGURE = {"value": 0.5, "low": 0.4, "high": 0.6}
POLICY = {"note": "one reply", "metrics": {"reward": FIGURE, "accuracy": FIGURE}}
PROBE = {
    "metric": "accuracy",
    "constants": {"constant": {"reply": "<b>Rest.</b>", "reward": 0.9, "tried": 3}},
    "policies": {"best_of_n": POLICY},
}
CHANGE = {"difference": -0.2, "low": -0.3, "high": -0.1, "p_holm": 0.002, "verdict": "worse"}


def probed(probe: Any, modes: Any = None) -> RunFiles:
    return replace(run(modes), probe=probe)


def test_policies_without_skill_are_shown_before_training() -> None:
    (section,) = probe_sections(probed(PROBE))
    ((_, table),) = section.tables
    assert table.columns == ("Policy", "Reward", "Share of right answers")
    assert [cell.text for cell in table.rows[0]] == ["best of n", "0.500", "0.500"]
    assert table.rows[0][0].note == "one reply"
    assert ": <b>Rest.</b>" in section.note


def test_after_training_the_model_stands_beside_them_and_a_lost_one_is_an_alert() -> None:
    policies = {"best_of_n": POLICY | {"against": {"reward": CHANGE}}}
    trivial = PROBE | {"policies": policies, "not_beaten": ["best_of_n"]}
    files = probed(trivial, {"trivial": trivial})
    (section,) = probe_sections(files)
    ((_, table),) = section.tables
    assert table.columns[3:] == ("Trained minus it", "p after Holm", "Test", "Verdict")
    assert "worse" in table.rows[0][-1].text
    assert [a.text for a in alerts(files) if "without skill" in a.text] == [
        "Policies without skill that the trained model does not beat in reward: best of n."
    ]
    assert mode_sections(files) == ()


def test_a_task_with_an_objective_of_its_own_is_compared_by_that() -> None:
    figure = {"value": 0.25, "low": 0.1, "high": 0.4}
    policy = {"metrics": {"far": figure, "accuracy": figure}, "against": {"far": CHANGE}}
    trivial = PROBE | {"objective": "far", "policies": {"vote": policy}, "not_beaten": ["vote"]}
    files = probed(trivial, {"trivial": trivial})
    ((_, table),) = probe_sections(files)[0].tables
    assert table.columns[1] == "Far"
    assert "0.25" in table.rows[0][1].text
    assert [a.text for a in alerts(files) if "without skill" in a.text] == [
        "Policies without skill that the trained model does not beat in far: vote."
    ]


@pytest.mark.parametrize(
    "probe",
    [
        {},
        {"policies": 3},
        {"policies": {"a": 3, "b": {"metrics": 1, "against": 2}}, "constants": 5, "metric": None},
    ],
    ids=str,
)
def test_a_damaged_probe_does_no_harm(probe: Any) -> None:
    sections = probe_sections(probed(probe, {"trivial": {"not_beaten": 3}}))
    assert len(sections) == (1 if "constants" in probe else 0)


def test_no_policy_without_skill_lacks_a_sentence() -> None:
    names = ("constant", "random race", "mine")
    policies = {name: {"note": "", "metrics": {}} for name in names}
    policies["constant"]["note"] = "gives one reply"
    found = replace(run(), probe={"policies": policies, "metric": "accuracy"})
    said = Presentation(words={"random race": Words("random race", "deals replies at random")})
    ((_, table),) = probe_sections(replace(found, presentation=said))[0].tables
    notes = [row[0].note for row in table.rows]
    assert notes[:2] == ["gives one reply", "deals replies at random"]
    assert notes[2] == "a way of the task's own, which does not say what it does"


@pytest.mark.parametrize(
    ("figure", "told"),
    [
        (FIGURE, "which has 0.500 (0.400\N{EN DASH}0.600)"),
        ({"value": None}, "which could not be measured"),
    ],
)
def test_what_greedy_is_compared_with_is_said_also_without_a_figure(figure: Any, told: str) -> None:
    policies = {"greedy": POLICY | {"against": {"reward": CHANGE}}}
    trivial = PROBE | {"policies": policies, "trained_greedy": {"reward": figure}}
    ((_, table),) = probe_sections(probed(trivial, {"trivial": trivial}))[0].tables
    assert table.rows[0][-1].note == f"compared with the trained model at temperature 0, {told}"


def test_a_policy_has_its_noise_floor_beside_its_figure() -> None:
    figures = {"accuracy": {**ESTIMATE, "floor": 0.3, "floor_high": 0.4, "p": 0.2}}
    policies = {"random race": {"note": "", "metrics": figures}}
    found = replace(run(), probe={"policies": policies, "metric": "accuracy"})
    ((_, table),) = probe_sections(found)[0].tables
    assert table.rows[0][2].noise == "noise alone 0.30 (up to 0.40); p\u00a00.2"
