"""Intervals, floors and tests against scipy, worked examples and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from environments.measurement import Array, Mean, Metric, measure_means
from equipoise.statistics import intervals
from equipoise.statistics.intervals import (
    Shares,
    beyond_p,
    bootstrap_sums,
    difference_bounds,
    difference_p,
    exceeding_p,
    floor,
    holm,
    interval,
    mcnemar,
    merge_clusters,
    metric_draws,
    share_bounds,
    student_quantile,
    swap_p,
)

MEAN = Metric(lambda t: t[..., 0] / t[..., 1])


def mean_draws(sums, draws, seed=0):
    rng = np.random.default_rng(seed)
    return metric_draws(bootstrap_sums(named(sums), draws, rng), {"mean": MEAN})["mean"]


def named(sums, strata=None):
    return merge_clusters([f"{row:04}" for row in range(len(sums))], sums, strata)


def clustered(seed, clusters=60, mean=3.0):
    """Sums of clusters of 1 to 8 values that share an effect: [total, number]."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(1, 9, size=clusters)
    effects = rng.normal(mean, 1.0, size=clusters)
    totals = [rng.normal(e, 0.5, size=n).sum() for e, n in zip(effects, numbers, strict=True)]
    return np.column_stack([totals, numbers])


class TestInterval:
    def test_agrees_with_scipy(self):
        values = np.random.default_rng(1).gamma(2.0, size=80)
        found = interval(mean_draws(np.column_stack([values, np.ones(80)]), 20_000), 0.9)
        theirs = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=20_000,
            method="percentile",
            confidence_level=0.9,
            rng=np.random.default_rng(2),
        ).confidence_interval
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)

    @pytest.mark.parametrize("undefined", [20, 1000])
    def test_none_where_many_are_undefined(self, undefined):
        draws = np.append(np.zeros(1000 - undefined), np.full(undefined, np.nan))
        assert interval(draws, 0.95) is None
        assert difference_p(draws) is None
        assert floor(1.0, draws, 0.95) is None


class TestBootstrapSums:
    def test_each_draw_resamples_as_many_clusters(self):
        draws = np.concatenate(
            list(bootstrap_sums(named(np.eye(5)), 300, np.random.default_rng(0)))
        )
        assert draws.shape == (300, 5)
        assert draws.sum(axis=1) == pytest.approx(np.full(300, 5.0))
        assert draws.mean(axis=0) == pytest.approx(np.ones(5), abs=0.2)

    def test_chunks_are_the_same_draws(self, monkeypatch):
        whole = mean_draws(clustered(0), 50)
        monkeypatch.setattr(intervals, "_WEIGHTS_AT_ONCE", 60 * 7)
        chunks = list(bootstrap_sums(named(clustered(0)), 50, np.random.default_rng(0)))
        assert [len(chunk) for chunk in chunks] == [7] * 7 + [1]
        assert mean_draws(clustered(0), 50) == pytest.approx(whole)

    def test_nothing_to_resample(self):
        with pytest.raises(ValueError, match="no clusters"):
            next(bootstrap_sums(named(np.empty((0, 2))), 10, np.random.default_rng(0)))


def test_rows_of_one_cluster_are_added_up():
    """Rows of one question are not independent evidence: the interval must not shrink with them."""
    merged = merge_clusters(["b", "a", "b"], np.array([[1.0, 1], [2, 1], [4, 1]]), ["y", "x", "y"])
    assert merged.names.tolist() == ["a", "b"]
    assert merged.sums.tolist() == [[2, 1], [5, 2]]
    assert merge_clusters([*"abcda"], np.ones((5, 1)), [*"xxyyx"]).strata.tolist() == [0, 0, 1, 1]


def test_a_cluster_in_two_strata_is_refused():
    with pytest.raises(ValueError, match="cluster 'b' is in two strata"):
        merge_clusters(["b", "a", "b"], np.ones((3, 1)), ["y", "x", "x"])


class TestStrata:
    def test_what_strata_differ_by_does_not_widen_the_interval(self):
        """A sampler that fixed the sizes of strata far apart varies by what is within them."""
        rng = np.random.default_rng(0)
        values = np.repeat([0.0, 10.0], 20) + rng.normal(0, 1, 40)
        sums = np.column_stack([values, np.ones(40)])
        strata = ["mild"] * 20 + ["severe"] * 20
        within = np.hypot(values[:20].std(ddof=1), values[20:].std(ddof=1)) / 2 / math.sqrt(20)

        def spread(clusters):
            draws = bootstrap_sums(clusters, 4_000, np.random.default_rng(1))
            return float(metric_draws(draws, {"mean": MEAN})["mean"].std())

        assert spread(named(sums, strata)) == pytest.approx(within, rel=0.05)
        assert spread(named(sums)) > 4 * within

    @pytest.mark.parametrize("strata", [["a", "b", "c", "c", "c"], ["a", "b", "b", "c", "c"]])
    def test_a_stratum_of_one_cluster_is_joined_with_another(self, strata):
        (draws,) = bootstrap_sums(named(np.eye(5), strata), 300, np.random.default_rng(0))
        assert (draws.std(axis=0) > 0.3).all()
        assert draws.sum(axis=1) == pytest.approx(np.full(300, 5.0))


class TestFloor:
    def test_counts_the_observed_arrangement(self):
        found = floor(3.0, np.arange(5.0), 0.95)
        assert found.p == (1 + 2) / (1 + 5)  # 3 and 4 reach 3
        assert (found.median, found.high) == (2, 3.8)

    def test_p_is_never_zero_and_a_tie_is_one_in_spite_of_rounding(self):
        assert floor(9.0, np.zeros(1999), 0.95).p == 1 / 2000
        assert floor(0.1 + 0.2, np.full(9, 0.3), 0.95).p == 1
        assert floor(math.nan, np.zeros(9), 0.95) is None


@pytest.mark.parametrize(
    # Fagerland, Lydersen & Laake 2013: airways of 21 children; the exact p is .070.
    ("gained", "lost", "p"), [(1, 7, 0.039), (0, 0, 1.0), (5, 5, 1.0), (0, 12, 2**-12)]
)  # fmt: skip
def test_mcnemar_counts_half_of_what_was_observed(gained, lost, p):
    before = np.array([False] * gained + [True] * lost + [True, False] * 4)
    after = np.array([True] * gained + [False] * lost + [True, False] * 4)
    assert mcnemar(before, after) == pytest.approx(p, abs=5e-4)


class TestDifferenceP:
    @pytest.mark.parametrize("degrees", [3, 39, math.inf])
    def test_is_the_level_at_which_the_interval_reaches_zero(self, degrees):
        draws = np.random.default_rng(0).normal(1.0, 0.5, 10_000)
        p = difference_p(draws, degrees)
        just = interval(draws, 1 - p, degrees)
        assert just.low == pytest.approx(0, abs=0.02)


def test_students_quantile_of_no_and_of_infinite_degrees():
    assert student_quantile(0.975, 0) == math.inf
    assert student_quantile(0.975, math.inf) == pytest.approx(1.959964)


def test_exceeding_is_the_level_at_which_the_interval_begins_at_the_bound():
    draws = mean_draws(clustered(0), 20_000)
    for confidence in (0.8, 0.9, 0.98):
        bounds = interval(draws, confidence, 59)
        p = exceeding_p(draws, bounds.low, 59)
        assert p == pytest.approx((1 - confidence) / 2, rel=0.03)
    assert exceeding_p(draws, float(np.median(draws)) + 0.01) == 1.0
    assert exceeding_p(np.full(100, math.nan), 0.0) is None


class TestHolm:
    def test_worked_example(self):
        """Four tests: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 1 x 0.04 raised to the one before."""
        found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
        assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
        assert list(found) == ["a", "b", "c", "d"]
        assert holm({"a": 0.6, "b": 0.9}) == {"a": 1, "b": 1}
        assert holm({}) == {}


def shares(hits, trials=1.0):
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
