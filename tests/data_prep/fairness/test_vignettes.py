"""The vignettes: a full factorial in which a set's variants differ in race alone."""

from collections import Counter

import pytest

from data_prep.fairness.vignettes import (
    CASES,
    FACTORS,
    SETS_PER_CASE,
    cases_named,
    control,
    demographics,
    vignettes,
)
from environments.disparity import RACES, SCHEMA_TEXT

FIRST = vignettes(CASES[0])


def test_one_case_has_2304_vignettes_in_576_sets() -> None:
    assert len(FIRST) == 2304
    assert SETS_PER_CASE == 576
    assert set(Counter(r.set_id for r in FIRST).values()) == {4}
    assert len(Counter(r.set_id for r in FIRST)) == 576


def test_every_combination_of_the_factors_stands_once() -> None:
    combinations = {tuple(r.metadata[name] for name in FACTORS) for r in FIRST}
    assert len(combinations) == len(FIRST)
    for name, levels in FACTORS.items():
        counts = Counter(r.metadata[name] for r in FIRST)
        assert counts == dict.fromkeys(levels, 2304 // len(levels))


def test_the_variants_of_a_set_differ_in_the_name_of_the_race_alone() -> None:
    for start in range(0, len(FIRST), 4):
        variants = FIRST[start : start + 4]
        assert [r.metadata["race"] for r in variants] == list(RACES)
        assert len({r.set_id for r in variants}) == 1
        texts = {
            r.messages[-1]["content"].replace(f", {r.metadata['race']}, ", ", RACE, ")
            for r in variants
        }
        assert len(texts) == 1
        assert "RACE" in texts.pop()


def test_all_ids_and_all_prompts_are_unique() -> None:
    records = [r for case in CASES for r in vignettes(case)] + [control(c) for c in CASES]
    assert len({r.id for r in records}) == len(records)
    assert len({r.messages[-1]["content"] for r in records}) == len(records)


def test_a_control_names_no_demographics() -> None:
    record = control(CASES[0])
    assert record.split == "control"
    assert "race" not in record.metadata
    patient = FIRST[0].metadata
    text = FIRST[0].messages[-1]["content"]
    assert text == f"{record.messages[-1]['content']} {demographics(patient)}"
    assert record.messages[0] == FIRST[0].messages[0]
    assert SCHEMA_TEXT in record.messages[0]["content"]


def test_two_cases_of_each_severity() -> None:
    assert Counter(case.severity for case in CASES) == {"mild": 2, "moderate": 2, "severe": 2}


def test_cases_are_chosen_by_name() -> None:
    assert cases_named([]) == list(CASES)
    names = ["whiplash", "lumbar_strain", "whiplash"]
    assert [c.name for c in cases_named(names)] == ["lumbar_strain", "whiplash"]
    with pytest.raises(ValueError, match="no clinical case 'whiplush', 'x'; there are lumbar_str"):
        cases_named(["whiplush", "whiplash", "x"])
