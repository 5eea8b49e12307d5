"""What a metric exceeds its noise by: the ends of the scale, agreement with the floor's test."""

import math

import numpy as np
import pytest

from environments.measurement import Array, Metric
from equipoise.statistics.evaluation import Effect, excess, excess_cut
from equipoise.statistics.intervals import floor

DRAWS = 2_000
LARGEST_RATIO = Metric(lambda t: t.max(axis=-1) / t.min(axis=-1))


def effect(means: list[float], seed: int = 0, error: float = 0.05) -> Effect:
    """Four means, with independent errors of this size under the null and as observed."""
    rng = np.random.default_rng(seed)
    observed: Array = np.array(means)
    null = np.nanmean(observed) + rng.normal(0, error, (DRAWS, len(means)))
    return Effect.of(observed, null, observed + rng.normal(0, error, null.shape))


def test_nothing_but_noise_exceeds_nothing():
    found = excess(effect([4.5, 4.52, 4.48, 4.5]), LARGEST_RATIO, 0.95)
    assert (found.value, found.low) == (0, 0)
    assert 0 < found.high < 0.05


def test_a_clear_effect_is_the_observed_one():
    found = excess(effect([6.0, 5.0, 4.0, 4.5]), LARGEST_RATIO, 0.95)
    assert found.value == pytest.approx(0.5, abs=0.005)
    error = 1.5 * 0.05 * np.hypot(1 / 6, 1 / 4)
    assert (found.low, found.high) == pytest.approx(
        (0.5 - 1.96 * error, 0.5 + 1.96 * error), abs=0.01
    )


def test_excludes_nothing_exactly_where_the_floor_does():
    decided = set()
    for seed in range(40):
        means = 4.5 + np.random.default_rng(100 + seed).normal(0, 0.08, 4)
        own = effect(means.tolist(), seed)
        noise = floor(own.truth(LARGEST_RATIO, 1.0), own.draws_of(LARGEST_RATIO)(0.0), 0.95)
        found = excess(own, LARGEST_RATIO, 0.95)
        if abs(noise.p - 0.05) > 0.002:  # 1 is added to both counts of p
            assert (found.low > 0) == (noise.p < 0.05)
            decided.add(found.low > 0)
    assert decided == {True, False}


def test_every_column_that_may_matter_is_drawn():
    """Of a largest of many, some of them not defined, one column says nothing of the others."""
    own = effect([6.0, 5.0, 4.0, 4.5, np.nan])
    largest = Metric(lambda t: np.fmax.reduce(t, axis=-1) - 4)
    drawn = own.draws_of(largest)(1.0)
    expected = largest.at(own.null + own.effect + own.noise)
    assert drawn == pytest.approx(expected)


def test_an_undefined_metric_exceeds_nothing():
    assert excess(effect([1.0] * 4), Metric(lambda t: t[..., 0] * np.nan), 0.95) is None


class TestCut:
    BEFORE = effect([6.0, 5.0, 4.0, 4.5])

    def test_all_of_it(self):
        found = excess_cut(self.BEFORE, effect([4.5, 4.52, 4.48, 4.5], 1), LARGEST_RATIO, 0.95)
        assert (found.value, found.high) == (1, 1)
        assert 0.9 < found.low < 1

    def test_half_of_it(self):
        found = excess_cut(self.BEFORE, effect([5.0, 4.5, 4.0, 4.2], 1), LARGEST_RATIO, 0.95)
        assert found.value == pytest.approx(0.5, abs=0.02)
        assert found.low < 0.5 < found.high

    def test_more_than_before_is_below_nothing(self):
        found = excess_cut(self.BEFORE, effect([8.0, 5.0, 4.0, 4.5], 1), LARGEST_RATIO, 0.95)
        assert found.high < 0

    def test_of_nothing_clear_there_is_no_cut(self):
        nothing = effect([4.5, 4.52, 4.48, 4.5])
        assert excess_cut(nothing, nothing, LARGEST_RATIO, 0.95) is None


@pytest.mark.filterwarnings("error")
def test_an_infinite_scale_of_no_effect_is_undefined_and_says_nothing():
    nothing = np.zeros((2, 1))
    effect = Effect(np.ones(1), np.zeros(1), nothing, nothing)
    assert math.isnan(effect.truth(Metric(lambda sums: sums[..., 0]), math.inf))
