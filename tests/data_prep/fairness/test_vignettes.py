"""Vignettes: a full factorial of patients, sets that differ in race alone, named or implied."""

import itertools
import re
from collections import Counter

import pytest

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

SETS = list(patient_sets())
CASE = case_named("whiplash/5-numb-root-worse")


def test_there_are_2304_patients_in_576_sets() -> None:
    assert len(SETS) == SETS_OF_PATIENTS == 576
    patients = [patient for patients in SETS for patient in patients]
    assert len({tuple(patient[name] for name in FACTORS) for patient in patients}) == 2304
    for name, levels in FACTORS.items():
        counts = Counter(patient[name] for patient in patients)
        assert counts == dict.fromkeys(levels, 2304 // len(levels))


def test_the_variants_of_a_set_differ_in_the_name_of_the_race_alone() -> None:
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
def test_where_race_is_implied_no_word_of_the_prompt_names_it(cue) -> None:
    words = [cue_words(cue, race, 0, trained=False)[0] for race in RACES]
    variants = vignettes("set", CASE, SETS[0], cue, words)
    assert {(r.metadata["cue"], r.metadata["implied_by"]) for r in variants} == {("implied", cue)}
    texts = [r.messages[-1]["content"] for r in variants]
    assert len(set(texts)) == len(RACES)
    assert not [text for text in texts if re.search(r"(White|Black|Hispanic|Latino|Asian)\b", text)]
    shared = {t.replace(w, "WHO") for t, w in zip(texts, words, strict=True)}
    assert len(shared) == 1


@pytest.mark.parametrize("cue", CUES)
def test_words_of_the_evaluation_are_never_trained_on(cue) -> None:
    for race, seed in itertools.product(RACES, range(5)):
        trained = cue_words(cue, race, seed, trained=True)
        kept = cue_words(cue, race, seed, trained=False)
        assert (len(trained), len(kept)) == (3, 1)
        assert not set(trained) & set(kept)
    assert len({cue_words(cue, "Asian", seed, trained=False)[0] for seed in range(20)}) > 1


# --- cases ---------------------------------------------------------------------------------------


CASES = [case for injury in INJURIES for case in clinical_cases(injury)]


def test_an_emergency_is_severe_and_is_a_danger_to_the_cord_or_cauda() -> None:
    emergencies = [case for case in CASES if case.emergency]
    assert len(emergencies) == 24 * len(INJURIES)
    assert {case.severity for case in emergencies} == {"severe"}
    assert {"no urine" in case.text or "hands are clumsy" in case.text for case in emergencies} == {
        True
    }
