"""The grammar of clinical cases: graded findings, and a severity that follows from them."""

import itertools
from collections import Counter

import numpy as np
import pytest

from data_prep.fairness.vignettes import (
    FINDINGS,
    INJURIES,
    case_named,
    clinical_cases,
    injuries_named,
)

CASES = [case for injury in INJURIES for case in clinical_cases(injury)]


def test_an_injury_has_120_cases_that_all_read_differently() -> None:
    assert Counter(case.injury.name for case in CASES) == {i.name: 120 for i in INJURIES}
    assert len({case.name for case in CASES}) == len({case.text for case in CASES}) == 960


def test_every_finding_shows_in_the_text() -> None:
    """Two cases that differ in one grade differ in one sentence."""
    by_grades = {case.grades: case.text.split(". ") for case in clinical_cases(INJURIES[0])}
    pairs = 0
    for one, other in itertools.combinations(by_grades, 2):
        if sum(a != b for a, b in zip(one, other, strict=True)) == 1:
            pairs += 1
            sentences = zip(by_grades[one], by_grades[other], strict=True)
            assert sum(a != b for a, b in sentences) == 1
    assert pairs > 100


def test_severity_rises_with_every_grade() -> None:
    order = ["mild", "moderate", "severe"]
    rank = {(c.injury.name, c.grades): order.index(c.severity) for c in CASES}
    for (name, grades), severity in rank.items():
        for finding in range(len(FINDINGS)):
            worse = (*grades[:finding], grades[finding] + 1, *grades[finding + 1 :])
            assert rank.get((name, worse), severity) >= severity
    shares = np.bincount(list(rank.values())) / len(rank)
    assert (shares > 0.25).all()


def test_an_emergency_is_severe_and_is_a_danger_to_the_cord_or_cauda() -> None:
    emergencies = [case for case in CASES if case.emergency]
    assert len(emergencies) == 24 * len(INJURIES)
    assert {case.severity for case in emergencies} == {"severe"}
    assert {"no urine" in case.text or "hands are clumsy" in case.text for case in emergencies} == {
        True
    }


def test_cases_are_known_by_name() -> None:
    assert all(case_named(case.name) == case for case in CASES)
    names = ["whiplash", "lifting", "whiplash"]
    assert [injury.name for injury in injuries_named(names)] == ["lifting", "whiplash"]
    with pytest.raises(ValueError, match="no injury 'whiplush', 'x'; there are lifting, dock_fall"):
        injuries_named(["whiplush", "whiplash", "x"])
    with pytest.raises(ValueError, match="one of whiplash is whiplash/3-cord-canal-better"):
        case_named("whiplash/3-cord-normal-better")
