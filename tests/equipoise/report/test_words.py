"""How numbers and hostile text are put into words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.words import (
    figure,
    figure_with_interval,
    noise,
    number,
    printable,
)
from equipoise.statistics.evaluation import Estimate


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((None, "\u2013"), (0.0, "0"), (1.386, "1.39"), (0.06634, "0.0663")),
        *((-0.36, "\u22120.360"), (-0.00001, "\u22121.0e\u221205"), (3072.0, "3,072")),
    ],
)
def test_figures_have_three_digits(value, words):
    assert figure(value) == words


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (None, "\u2013"),
        (Estimate(), "\u2013"),
        (Estimate(1.386, 1.35, 1.444), "1.39 (95% CI 1.35\u20131.44)"),
        (Estimate(0.009, 0.003, 0.016), "0.0090 (95% CI 0.0030\u20130.0160)"),
        (Estimate(-0.05, -0.4, 0.1), "\u22120.050 (95% CI \u22120.400 to 0.100)"),
        (Estimate(0.98, 0.955, 1.0), "0.980 (95% CI 0.955\u20131.000)"),
        (Estimate(0.02, 1e-16, 0.04), "0.0200 (95% CI 0.0000\u20130.0400)"),
        (Estimate(1.386, 1.35), "1.39"),
        (Estimate(0.0, 0.0, 0.008), "0 (95% CI 0\u20130.00800)"),
        (Estimate(-0.001, -0.9, 1.4), "0.00 (95% CI \u22120.90 to 1.40)"),
    ],
)
def test_interval_shares_its_decimals_with_the_value(estimate, words):
    assert figure_with_interval(estimate, "95%") == words


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
        (Estimate(0.4, floor=0.021, p_holm=0.05), "noise alone 0.021; p\u00a00.05 after Holm"),
    ],
)
def test_noise_names_what_is_known(estimate, words):
    assert noise(estimate) == words


@given(st.one_of(st.none(), st.booleans(), st.text(), st.floats(), st.integers(-9, 9)))
def test_number_is_finite_or_none(found):
    value = number(found)
    assert value is None or json.dumps(value, allow_nan=False)


@given(st.text(st.characters(), max_size=300))
def test_printable_text_can_be_written_and_hides_nothing(text):
    shown = printable(text, 100)
    shown.encode("utf-8")
    assert not {"\x00", "\x1b", "\u202e", "\u2066"} & set(shown)
    assert len(shown) < 140


def test_printable_text_says_what_it_clips():
    assert printable("x" * 2100, 100) == "x" * 100 + " \u2026 (2,000 more characters)"
