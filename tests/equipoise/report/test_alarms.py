"""The alarm over a run's steps: when it speaks, and when not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.alarms import FEWEST, MOST, Window, trend

RISING = [step / 10 for step in range(20)]
FALLING = RISING[::-1]
#: Ties, and steps at which nothing could be measured.
FIGURES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, math.nan, math.inf])


def reward_alone(rewards, figures, better):
    """The index of the first step up to which the reward rose and the figure did not improve."""
    window = Window(better)
    pairs = enumerate(zip(rewards, figures, strict=True))
    return next((step for step, pair in pairs if window.add(*pair)), None)


def test_it_speaks_at_the_first_step_that_a_window_ends_at():
    assert reward_alone(RISING, FALLING, "higher") == FEWEST - 1
    assert reward_alone(RISING, RISING, "lower") == FEWEST - 1


def test_a_figure_that_turns_late_is_seen_for_the_first_steps_are_forgotten():
    rewards = [step / 10 for step in range(60)]
    figures = [*rewards[:40], *(4.0 - step / 10 for step in range(20))]
    index = reward_alone(rewards, figures, "higher")
    assert 40 <= index < 40 + MOST


def test_a_figure_that_stays_where_it_was_is_no_improvement():
    assert reward_alone(RISING, [0.5] * 20, "higher") == FEWEST - 1


@pytest.mark.parametrize(
    ("rewards", "figures", "better"),
    [
        (RISING, RISING, "higher"),
        (RISING, FALLING, "lower"),
        (FALLING, FALLING, "higher"),  # what is paid falls too: no sign of a wrong reward
        ([0.5] * 20, FALLING, "higher"),
        (RISING, [math.nan] * 20, "higher"),
        (RISING[: FEWEST - 1], FALLING[: FEWEST - 1], "higher"),
        ([], [], "higher"),
    ],
)
def test_it_is_silent(rewards, figures, better):
    assert reward_alone(rewards, figures, better) is None


def test_the_trend_is_kendalls_tau():
    """Of 10 pairs 9 rise and one falls; a tie is neither."""
    assert trend([1, 2, 4, 3, 5]) == pytest.approx(0.8)
    assert trend([1.0, 1.0, 2.0]) == pytest.approx(2 / 3)


def test_steps_at_which_nothing_could_be_measured_are_passed_over():
    figures = [math.nan, *FALLING[:5], math.nan, *FALLING[5:]]
    rewards = [step / 10 for step in range(22)]
    assert reward_alone(rewards, figures, "higher") == FEWEST + 1


@given(st.lists(st.tuples(FIGURES, FIGURES), max_size=40), st.sampled_from(["higher", "lower"]))
def test_what_comes_later_changes_no_alarm(drawn, better):
    """Of each beginning of a run it says what it says of the whole, once that is long enough."""
    rewards = [reward + step / 10 for step, (reward, _) in enumerate(drawn)]
    figures = [figure for _, figure in drawn]
    index = reward_alone(rewards, figures, better)
    beginnings = [reward_alone(rewards[:n], figures[:n], better) for n in range(len(drawn) + 1)]
    spoken = len(drawn) + 1 if index is None else index + 1
    assert beginnings == [index if n >= spoken else None for n in range(len(drawn) + 1)]
