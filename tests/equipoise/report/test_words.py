"""How numbers and hostile text are put into words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.presentation import Words
from equipoise.report.words import (
    Estimate,
    figure,
    figure_with_interval,
    key_name,
    metric_name,
    metric_note,
    noise,
    number,
    p_value,
    plain_name,
    printable,
    read_estimate,
    section_title,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "\u2013"),
        (0.0, "0"),
        (1.386, "1.39"),
        (0.06634, "0.0663"),
        (-0.36, "\u22120.360"),
        (-0.00001, "\u22121.0e\u221205"),
        (3072.0, "3,072"),
    ],
)
def test_figures_have_three_digits(value: float | None, words: str) -> None:
    assert figure(value) == words


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (None, "\u2013"),
        (Estimate(), "\u2013"),
        (Estimate(1.386, 1.35, 1.444), "1.39 (1.35\u20131.44)"),
        (Estimate(0.009, 0.003, 0.016), "0.0090 (0.0030\u20130.0160)"),
        (Estimate(-0.05, -0.4, 0.1), "\u22120.050 (\u22120.400 to 0.100)"),
        (Estimate(0.98, 0.955, 1.0), "0.980 (0.955\u20131.000)"),
        (Estimate(0.02, 1e-16, 0.04), "0.0200 (0.0000\u20130.0400)"),
        (Estimate(1.386, 1.35), "1.39"),
    ],
)
def test_interval_shares_its_decimals_with_the_value(estimate: Estimate | None, words: str) -> None:
    assert figure_with_interval(estimate) == words


def test_level_stands_before_the_interval() -> None:
    assert (
        figure_with_interval(Estimate(2.0, 1.0, 3.0), "95% CI ") == "2.00 (95% CI 1.00\u20133.00)"
    )


def test_value_that_rounds_to_zero_has_no_sign() -> None:
    assert figure_with_interval(Estimate(-0.001, -0.9, 1.4)) == "0.00 (\u22120.90 to 1.40)"


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (None, ""),
        (Estimate(1.0), ""),
        (Estimate(1.39, floor=1.012), "noise alone 1.012"),
        (
            Estimate(1.39, floor=1.012, floor_high=1.031, p=0.0005),
            "noise alone 1.012 (up to 1.031); p\u00a00.0005",
        ),
        (
            Estimate(0.4, floor=0.021, p=0.01, p_holm=0.05),
            "noise alone 0.021; p\u00a00.05 after Holm",
        ),
    ],
)
def test_noise_names_what_is_known(estimate: Estimate | None, words: str) -> None:
    assert noise(estimate) == words


@pytest.mark.parametrize(
    ("p", "words"),
    [(None, "\u2013"), (0.00001, "< 0.0001"), (0.0005, "0.0005"), (0.0412, "0.041"), (1.0, "1")],
)
def test_p_value(p: float | None, words: str) -> None:
    assert p_value(p) == words


@given(st.one_of(st.none(), st.booleans(), st.text(), st.floats(), st.integers(-9, 9)))
def test_number_is_finite_or_none(found: object) -> None:
    value = number(found)
    assert value is None or json.dumps(value, allow_nan=False)


def test_estimate_needs_an_object_and_no_key() -> None:
    assert read_estimate(None) is None
    assert read_estimate([1.0]) is None
    assert read_estimate({"value": 1, "low": "x", "p": None}) == Estimate(1.0)


def test_names() -> None:
    words = {"gini": Words("Gini coefficient", "0 is equal"), "by_part": Words("By part")}
    assert metric_name("gini", words) == "Gini coefficient"
    assert metric_note("gini", words) == "0 is equal"
    assert metric_name("exact_match", words) == "exact match"
    assert metric_note("exact_match", words) == ""
    assert section_title("by_part", words) == section_title("by_part", {}) == "By part"
    assert key_name("by_part") == "part"
    assert plain_name("kl") == "KL"


@given(st.text(st.characters(), max_size=300))
def test_printable_text_can_be_written_and_hides_nothing(text: str) -> None:
    shown = printable(text, 100)
    shown.encode("utf-8")
    assert not {"\x00", "\x1b", "\u202e", "\u2066"} & set(shown)
    assert len(shown) < 140


def test_printable_text_says_what_it_clips() -> None:
    assert printable("x" * 2100, 100) == "x" * 100 + " \u2026 (2,000 more characters)"
