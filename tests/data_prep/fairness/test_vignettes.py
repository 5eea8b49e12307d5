"""Vignettes: a full factorial of patients, sets that differ in race alone, named or implied."""

import itertools
import re
from collections import Counter

import numpy as np
import pytest

from data_prep.fairness.local_model import LocalModelSettings, answer, decide, imitated_replies
from data_prep.fairness.vignettes import (
    CUES,
    FACTORS,
    INJURIES,
    SETS_OF_PATIENTS,
    case_named,
    clinical_cases,
    cue_words,
    patient_sets,
    vignettes,
)
from environments.fairness import RACES
from environments.fairness.spine import FORM

SETS = list(patient_sets())
CASE = case_named("whiplash/5-numb-root-worse")


def test_there_are_2304_patients_in_576_sets():
    assert len(SETS) == SETS_OF_PATIENTS == 576
    patients = [patient for patients in SETS for patient in patients]
    assert len({tuple(patient[name] for name in FACTORS) for patient in patients}) == 2304
    for name, levels in FACTORS.items():
        counts = Counter(patient[name] for patient in patients)
        assert counts == dict.fromkeys(levels, 2304 // len(levels))


def test_the_variants_of_a_set_differ_in_the_name_of_the_race_alone():
    for patients in SETS:
        variants = vignettes("set", CASE, patients, "named", RACES)
        assert [r.metadata["race"] for r in variants] == list(RACES)
        texts = {
            r.messages[-1]["content"].replace(f", {r.metadata['race']}, ", ", RACE, ")
            for r in variants
        }
        assert len(texts) == 1
        assert "RACE" in texts.pop()


@pytest.mark.parametrize("cue", CUES)
def test_where_race_is_implied_no_word_of_the_prompt_names_it(cue):
    words = [cue_words(cue, race, 0, trained=False)[0] for race in RACES]
    variants = vignettes("set", CASE, SETS[0], cue, words)
    assert {(r.metadata["cue"], r.metadata["implied_by"]) for r in variants} == {("implied", cue)}
    texts = [r.messages[-1]["content"] for r in variants]
    assert len(set(texts)) == len(RACES)
    assert not [text for text in texts if re.search(r"(White|Black|Hispanic|Latino|Asian)\b", text)]
    shared = {t.replace(w, "WHO") for t, w in zip(texts, words, strict=True)}
    assert len(shared) == 1


@pytest.mark.parametrize("cue", CUES)
def test_words_of_the_evaluation_are_never_trained_on(cue):
    for race, seed in itertools.product(RACES, range(5)):
        trained = cue_words(cue, race, seed, trained=True)
        kept = cue_words(cue, race, seed, trained=False)
        assert (len(trained), len(kept)) == (3, 1)
        assert not set(trained) & set(kept)
    assert len({cue_words(cue, "Asian", seed, trained=False)[0] for seed in range(20)}) > 1


CASES = [case for injury in INJURIES for case in clinical_cases(injury)]


def test_an_emergency_is_severe_and_is_a_danger_to_the_cord_or_cauda():
    emergencies = [case for case in CASES if case.emergency]
    assert len(emergencies) == 24 * len(INJURIES)
    assert {case.severity for case in emergencies} == {"severe"}
    assert {"no urine" in case.text or "hands are clumsy" in case.text for case in emergencies} == {
        True
    }


WEAK_CASE = case_named("whiplash/5-weak-root-same")
VARIANTS = vignettes("set", WEAK_CASE, next(patient_sets()), "named", RACES)
PATIENT = VARIANTS[0].metadata


def mean_invasiveness(metadata):
    rng = np.random.default_rng(0)
    return float(np.mean([decide(metadata, rng).invasiveness for _ in range(400)]))


def test_the_answer_is_the_decision_under_a_rationale_that_tells_the_patient():
    for seed in range(20):
        told = FORM.parse(answer(VARIANTS[0], np.random.default_rng(seed)))
        decided = decide(PATIENT, np.random.default_rng(seed))
        assert told.values[:-1] == decided.values[:-1]
        assert told.text.endswith(f" job. {decided.text}")


def test_the_clinician_tells_the_patient_first_and_in_the_words_of_the_prompt():
    words = cue_words("childhood", "Asian", 0, trained=True)
    records = vignettes("set", WEAK_CASE, next(patient_sets()), "childhood", [*words, words[0]])
    settings = LocalModelSettings(steps=4, control_share=0.2)
    shown = imitated_replies(records, settings)
    told = [(r, text) for r, text in shown if "race" in r.metadata]
    assert len(told) < len(shown)
    for record, text in told:
        first, *_ = text.removeprefix('{"rationale": "').partition(", in a ")
        assert f"The patient is {first}, " in record.messages[-1]["content"]
        assert f"{record.metadata['occupation']} job. " in text
        assert FORM.parse(text).invasiveness >= 0


def test_a_race_that_is_implied_moves_him_as_much_as_one_that_is_named():
    words = [cue_words("surname", race, 0, trained=True)[0] for race in RACES]
    implied = vignettes("set", WEAK_CASE, next(patient_sets()), "surname", words)
    for named, told in zip(VARIANTS, implied, strict=True):
        assert mean_invasiveness(told.metadata) == mean_invasiveness(named.metadata)


@pytest.mark.parametrize(
    ("factor", "more", "less"),
    [("occupation", "blue-collar", "white-collar"), ("age", "old", "young")],
)
def test_the_differences_that_are_meant(factor, more, less):
    assert mean_invasiveness({**PATIENT, factor: more}) > mean_invasiveness(
        {**PATIENT, factor: less}
    )
