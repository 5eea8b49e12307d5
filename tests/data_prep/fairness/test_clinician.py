"""The clinician: a clinical signal to keep, a racial bias to remove, answers that can be read."""

import numpy as np
import pytest

from data_prep.fairness.clinician import BIAS, URGENCY, answer, decide
from data_prep.fairness.vignettes import CASES, control, vignettes
from environments.disparity import RACES
from environments.disparity.decision import parse_decision

PATIENT = vignettes(CASES[2])[0].metadata


def mean_invasiveness(metadata: dict[str, str]) -> float:
    rng = np.random.default_rng(0)
    return float(np.mean([decide(metadata, rng).invasiveness for _ in range(400)]))


def test_the_answer_is_the_decision_in_the_words_of_the_prompt() -> None:
    for seed in range(20):
        text = answer(PATIENT, np.random.default_rng(seed))
        assert parse_decision(text) == decide(PATIENT, np.random.default_rng(seed))


def test_the_answers_vary_and_depend_on_the_seed_alone() -> None:
    rng = np.random.default_rng(0)
    assert len({answer(PATIENT, rng) for _ in range(20)}) > 5


def test_the_bias_is_the_one_written_down() -> None:
    means = {race: mean_invasiveness({**PATIENT, "race": race}) for race in RACES}
    assert sorted(means, key=means.get) == sorted(BIAS, key=BIAS.get)
    assert max(means.values()) / min(means.values()) > 1.2


def test_severe_cases_are_treated_more() -> None:
    means = [mean_invasiveness({"case": c.name, "severity": c.severity}) for c in CASES]
    assert means == sorted(means)
    assert means[-1] - means[0] > 5


@pytest.mark.parametrize(
    ("factor", "more", "less"),
    [
        ("occupation", "blue-collar", "white-collar"),
        ("age", "old", "young"),
    ],
)
def test_the_differences_that_are_meant(factor: str, more: str, less: str) -> None:
    assert mean_invasiveness({**PATIENT, factor: more}) > mean_invasiveness(
        {**PATIENT, factor: less}
    )


def test_every_case_and_every_race_is_known() -> None:
    assert set(URGENCY) == {case.name for case in CASES}
    assert set(BIAS) == set(RACES)
    for case in CASES:
        assert decide(control(case).metadata, np.random.default_rng(0)).rationale
