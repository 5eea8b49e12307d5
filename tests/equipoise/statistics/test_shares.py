"""Intervals and the paired test of shares: against scipy, at the bounds, of rare hits."""

import numpy as np
import pytest
from scipy import stats

from environments.measurement import Array, Mean, measure_means
from equipoise.statistics.intervals import (
    Shares,
    beyond_p,
    difference_bounds,
    share_bounds,
    swap_p,
)


def shares(hits: object, trials: object = 1.0) -> Shares:
    array: Array = np.asarray(hits, dtype=np.float64)
    one_stratum = np.zeros(array.shape[-1], dtype=np.intp)
    return Shares(
        array, np.broadcast_to(np.asarray(trials, dtype=np.float64), array.shape), one_stratum
    )


@pytest.mark.parametrize("hits", [0, 1, 30, 999, 1000])
def test_of_independent_trials_it_is_wilsons(hits):
    low, high = share_bounds(shares(np.arange(1000) < hits), 0.95)
    theirs = stats.binomtest(hits, 1000).proportion_ci(0.95, "wilson")
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=2e-4)


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_a_rate_at_the_bound_is_as_sure_as_the_exact_interval_has_it(confidence):
    """All right in 240 questions: Clopper and Pearson's interval begins at .985."""
    low, high = share_bounds(shares(np.ones(240)), confidence)
    exact = stats.binomtest(240, 240).proportion_ci(confidence)
    assert high == 1
    assert low == pytest.approx(exact.low, abs=0.002)


def test_replies_to_one_prompt_are_not_so_many_prompts():
    """At the bound nothing shows how alike they are, so they count half."""
    low, _ = share_bounds(shares(np.full(40, 4), 4.0), 0.95)
    alone, _ = share_bounds(shares(np.ones(40)), 0.95)
    many, _ = share_bounds(shares(np.ones(160)), 0.95)
    assert alone < low < many


def test_values_between_0_and_1_have_their_own_spread():
    """Values that hardly differ are not coin flips."""
    values = np.random.default_rng(0).uniform(0.75, 0.85, 60)
    low, high = share_bounds(shares(values), 0.95)
    assert low < values.mean() < high
    assert high - low < 0.08 < 0.2  # of coin flips it would be 0.2


class TestDifference:
    def test_pairs_narrow_it(self):
        before = np.arange(100) % 2.0
        after = np.where(np.arange(100) < 6, 1.0, before)  # three more
        paired = difference_bounds(shares(before), shares(after), 0.95)
        shuffled = difference_bounds(shares(before), shares(np.sort(after)), 0.95)
        assert paired[0] < 0.03 < paired[1]
        assert paired[1] - paired[0] < 0.6 * (shuffled[1] - shuffled[0])

    def test_what_both_have_in_common_goes_out(self):
        """27 sets with 160 trials each that change by chance alone: a guard of 2 points is kept.

        With the bounds of each share, which clusters widen, it is kept in .65 of such samples.
        """
        rng = np.random.default_rng(0)
        trials = np.full((400, 27), 160.0)
        chances = np.clip(rng.normal(0.85, 0.15, trials.shape), 0.3, 1.0)
        pair = [
            Shares(rng.binomial(160, chances).astype(float), trials, np.zeros(27, dtype=np.intp))
            for _ in range(2)
        ]
        low, high = difference_bounds(*pair, 0.9)
        assert 0.88 < np.mean((low <= 0) & (high >= 0)) < 0.96
        assert np.mean(low > -0.02) > 0.78


class TestBeyond:
    @pytest.mark.parametrize("sign", [1, -1])
    def test_is_the_level_at_which_the_interval_leaves_the_margin(self, sign):
        rng = np.random.default_rng(0)
        low, high = rng.uniform(0.2, 0.5, 200), rng.uniform(0.4, 0.7, 200)
        pair = [shares(values) for values in (low, high)][::sign]
        for confidence in (0.8, 0.9, 0.98):
            end = abs(float(difference_bounds(*pair, confidence)[0 if sign > 0 else 1]))
            p = beyond_p(*pair, end, None)
            assert p == pytest.approx((1 - confidence) / 2, rel=1e-3)
            assert beyond_p(*pair, end, "higher") == (1.0 if sign > 0 else p)
            assert beyond_p(*pair, end, "lower") == (p if sign > 0 else 1.0)


class TestSwap:
    @pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (2, 9), (14, 3), (0, 12)])
    def test_of_one_yes_or_no_each_it_is_mcnemars_exact_one(self, gained, lost):
        before = np.array([False] * gained + [True] * lost + [True, False] * 9)
        after = np.array([True] * gained + [False] * lost + [True, False] * 9)
        found = swap_p(shares(before), shares(after), 20_000, np.random.default_rng(0))
        exact = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
        assert found == pytest.approx(exact, abs=0.01, rel=0.1)

    def test_four_rare_hits_that_went_away_are_no_evidence(self):
        """A bootstrap has .018 on one side: it draws none of the four clusters so rarely."""
        before = shares(np.arange(40) < 4)
        found = swap_p(before, shares(np.zeros(40)), 10_000, np.random.default_rng(0))
        assert found == pytest.approx(2 / 2**4, abs=0.01)


def test_a_yes_or_no_and_a_share_say_their_trials():
    values = [1.0, 0.0, None, 1.0]
    metrics = measure_means(
        [*"aabb"],
        {
            "right": Mean(values, yes_or_no=True),
            "recall": Mean(values, share=True),
            "documents": Mean(values),
        },
    )
    trials = {name: m.trials for name, m in metrics.metrics.items()}
    assert trials["documents"] is None
    for name in ("right", "recall"):
        found = Shares.of(metrics.metrics[name], metrics.sums, np.zeros(2, dtype=np.intp))
        assert (found.hits.tolist(), found.trials.tolist()) == ([1.0, 1.0], [2.0, 1.0])
