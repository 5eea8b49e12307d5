"""Figures over seeds: Student's intervals, and how often they hold."""

import numpy as np
import pytest
from scipy import stats

from environments.measurement import Margin, Metric
from equipoise.statistics.compare import GuardMargin, MetricComparison
from equipoise.statistics.intervals import Interval
from equipoise.statistics.seeds import OverSeeds, compare_over_seeds, over_seeds

EXACT = Interval(0.0, 0.0)


def test_of_exact_figures_it_is_students_interval():
    values = [0.91, 0.95, 0.93, 0.99]
    found = over_seeds(values, [EXACT] * 4, confidence=0.95, same_items=False)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean, found.least, found.greatest) == (pytest.approx(0.945), 0.91, 0.99)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))
    assert found.spread == found.between == pytest.approx(np.std(values, ddof=1))


def test_one_run_says_nothing_of_others():
    found = over_seeds([0.5], [Interval(0.4, 0.6)], confidence=0.95, same_items=False)
    assert found == OverSeeds(0.5, 0.5, 0.5, None, None, None, None)
    with pytest.raises(ValueError, match="no run"):
        over_seeds([], [], confidence=0.95, same_items=False)


@pytest.mark.parametrize("same_items", [True, False])
def test_holds_the_mean_over_seeds_and_another_seed(same_items):
    """Seeds differ by .03, the items of one test set by .02 and their answers by .01."""
    rng = np.random.default_rng(0)
    rounds, count = 4_000, 5
    items = rng.normal(0, 0.02, (rounds, 1 if same_items else count + 1))
    own = rng.normal(0, 0.03, (rounds, count + 1)) + rng.normal(0, 0.01, (rounds, count + 1))
    measured = 0.7 + own + items
    half = 1.96 * np.hypot(0.02, 0.01)
    holds, holds_next = 0, 0
    for *values, another in measured.tolist():
        intervals = [Interval(value - half, value + half) for value in values]
        found = over_seeds(values, intervals, confidence=0.95, same_items=same_items)
        holds += found.interval.low <= 0.7 <= found.interval.high
        holds_next += found.another.low <= another <= found.another.high
    # Of shared items the answers' own error counts twice, so the interval is a little wide.
    assert holds / rounds == pytest.approx(0.975 if same_items else 0.95, abs=0.015)
    assert holds_next / rounds == pytest.approx(0.95, abs=0.015)


def test_the_spread_of_seeds_is_told_without_the_error_of_each_measurement():
    values = np.random.default_rng(0).normal(0.7, np.hypot(0.03, 0.04), 4_000).tolist()
    intervals = [Interval(v - 1.96 * 0.04, v + 1.96 * 0.04) for v in values]
    found = over_seeds(values, intervals, confidence=0.95, same_items=False)
    assert found.between == pytest.approx(0.03, rel=0.1)
    assert found.spread == pytest.approx(0.05, rel=0.1)


class TestComparedOverSeeds:
    """A change of five pairs of runs; the margin is a tenth of the value before."""

    METRIC = Metric(lambda sums: sums[..., 0], guard=Margin(0.1, relative=True))

    @staticmethod
    def pairs(changes, half=0.01):
        return [
            MetricComparison(0.5, 0.5 + x, x, x - half, x + half, margin=GuardMargin(
                0.1, relative=True, low=(x - half) / 0.5, high=(x + half) / 0.5
            ))
            for x in changes
        ]  # fmt: skip

    def compared(self, changes, *, same_items=False):
        pairs = self.pairs(changes)
        return compare_over_seeds(self.METRIC, pairs, confidence=0.95, same_items=same_items)

    @pytest.mark.parametrize("same_items", [False, True])
    def test_p_and_interval_agree(self, same_items):
        for shift in (0.0, 0.01, 0.02, 0.03, 0.04):
            told = self.compared(
                [shift + x for x in (-0.02, 0.0, 0.01, 0.02)], same_items=same_items
            )
            assert (told.p < 0.05) == (told.low > 0 or told.high < 0)

    def test_a_guard_is_decided_by_the_mean_over_seeds(self):
        assert self.compared([0.001, -0.001, 0.002, 0.0]).guard == "preserved"
        assert self.compared([-0.2, -0.21, -0.19, -0.2]).guard == "not preserved"
        assert self.compared([-0.2, 0.2, 0.0, 0.1]).guard == "inconclusive"

    def test_what_one_pair_does_not_have_is_not_known(self):
        pairs = [*self.pairs([0.1, 0.2]), MetricComparison()]
        told = compare_over_seeds(self.METRIC, pairs, confidence=0.95, same_items=False)
        assert (told.difference, told.p, told.guard) == (None, None, "inconclusive")
