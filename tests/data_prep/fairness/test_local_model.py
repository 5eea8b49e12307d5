"""The clinician: a clinical signal to keep, a racial bias to remove, answers that can be read."""

import numpy as np
import pytest

from data_prep.fairness.local_model import (
    LocalModelSettings,
    answer,
    decide,
    imitated_replies,
)
from data_prep.fairness.vignettes import (
    case_named,
    cue_words,
    patient_sets,
    vignettes,
)
from environments.fairness import RACES
from environments.fairness.spine import FORM

CASE = case_named("whiplash/5-weak-root-same")
VARIANTS = vignettes("set", CASE, next(patient_sets()), "named", RACES)
PATIENT = VARIANTS[0].metadata


def mean_invasiveness(metadata: dict[str, str]) -> float:
    rng = np.random.default_rng(0)
    return float(np.mean([decide(metadata, rng).invasiveness for _ in range(400)]))


def test_the_answer_is_the_decision_in_the_words_of_the_prompt() -> None:
    for seed in range(20):
        text = answer(PATIENT, np.random.default_rng(seed))
        assert FORM.parse(text) == decide(PATIENT, np.random.default_rng(seed))


def test_a_clinician_who_tells_the_patient_does_so_first_and_in_the_words_of_the_prompt() -> None:
    words = cue_words("childhood", "Asian", 0, trained=True)
    records = vignettes("set", CASE, next(patient_sets()), "childhood", [*words, words[0]])
    settings = LocalModelSettings(steps=4, control_share=0.2, tells_patient=True)
    shown = imitated_replies(records, settings)
    told = [(r, text) for r, text in shown if "race" in r.metadata]
    assert len(told) < len(shown)
    for record, text in told:
        first, *_ = text.removeprefix('{"rationale": "').partition(", in a ")
        assert f"The patient is {first}, " in record.messages[-1]["content"]
        assert f"{record.metadata['occupation']} job. " in text
        assert FORM.parse(text).invasiveness >= 0


def test_a_race_that_is_implied_moves_him_as_much_as_one_that_is_named() -> None:
    words = [cue_words("surname", race, 0, trained=True)[0] for race in RACES]
    implied = vignettes("set", CASE, next(patient_sets()), "surname", words)
    for named, told in zip(VARIANTS, implied, strict=True):
        assert mean_invasiveness(told.metadata) == mean_invasiveness(named.metadata)


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
