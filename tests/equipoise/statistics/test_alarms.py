"""The alarm over a run's steps: when it speaks, and when not."""

import math

import pytest

from equipoise.statistics.alarms import WINDOW, reward_alone, trend

RISING = [step / 10 for step in range(20)]
FALLING = RISING[::-1]


def test_it_speaks_at_the_first_step_that_a_window_ends_at():
    assert reward_alone(RISING, FALLING, "higher") == WINDOW - 1
    assert reward_alone(RISING, RISING, "lower") == WINDOW - 1


def test_later_when_the_figure_turns_later():
    figures = [*RISING[:12], *(1.2 - step / 10 for step in range(8))]
    index = reward_alone(RISING, figures, "higher")
    assert index is not None
    assert 12 <= index < 20


@pytest.mark.parametrize(
    ("rewards", "figures", "better"),
    [
        (RISING, RISING, "higher"),
        (RISING, FALLING, "lower"),
        (FALLING, FALLING, "higher"),  # what is paid falls too: no sign of a wrong reward
        (RISING, [math.nan] * 20, "higher"),
        (RISING[: WINDOW - 1], FALLING[: WINDOW - 1], "higher"),
        ([], [], "higher"),
    ],
)
def test_it_is_silent(rewards, figures, better):
    assert reward_alone(rewards, figures, better) is None


def test_the_trend_is_kendalls_tau():
    """Of 10 pairs 8 rise and 2 fall; a tie and a NaN are neither."""
    assert trend([1, 2, 4, 3, 5]) == pytest.approx(0.8)
    assert trend([1, 3, 2, 5, 4]) == pytest.approx(0.6)
    assert trend([1.0, 1.0, math.nan, 2.0]) == pytest.approx(2 / 6)
