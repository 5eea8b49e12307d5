"""Comparisons of two measurements and their verdicts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from environments.base import Rollout, Score
from environments.measurement import Margin, Measurement, Metric, quotient
from equipoise.statistics.compare import GuardMargin, Halves, MetricComparison, compare, power_of
from equipoise.statistics.intervals import StatisticsSettings, holm

SETTINGS = StatisticsSettings(bootstrap_draws=2_000)
NAMES = tuple(f"set {i}" for i in range(40))


def measured(values, names=NAMES, better="higher", guard=None):
    sums = np.column_stack([values, np.ones(len(values))])
    metrics = {"mean": Metric(lambda t: t[..., 0] / t[..., 1], better, guard=guard)}
    return Measurement(tuple(names), sums, metrics)


def right_or_wrong(outcomes, names=NAMES, guard=None):
    """A rate; None is a cluster in which it is not defined."""
    sums = np.array([[o is True, o is not None] for o in outcomes], dtype=np.float64)

    given = np.array([o is True for o in outcomes])
    rate = Metric(lambda t: quotient(t[..., 0], t[..., 1]), "lower", outcomes=given, guard=guard)
    return Measurement(tuple(names[: len(given)]), sums, {"rate": rate})


NOISE = np.random.default_rng(0).normal(0, 1, 40)
SHIFT = np.random.default_rng(1).normal(0, 0.1, 40)


class TestPairedBootstrap:
    @pytest.mark.parametrize(
        ("change", "better", "verdict"),
        [
            (0.5, "higher", "better"),
            (-0.5, "higher", "worse"),
            (0.5, "lower", "worse"),
            (-0.5, "lower", "better"),
            (0.5, None, "changed"),
            (0.0, "higher", "no evidence"),
            (0.0, None, "no evidence"),
        ],
    )
    def test_verdict(self, change, better, verdict):
        after = NOISE + SHIFT - SHIFT.mean() + change
        found = compare(measured(NOISE, better=better), measured(after, better=better), SETTINGS)
        assert found["mean"].verdict == verdict
        assert found["mean"].test == "paired bootstrap"

    def test_pairs_cancel_what_the_clusters_share(self):
        """Clusters differ by about 1, the change by about 0.1: only pairing can see 0.1."""
        found = compare(measured(NOISE), measured(NOISE + SHIFT + 0.1), SETTINGS)["mean"]
        assert found.difference == pytest.approx(SHIFT.mean() + 0.1)
        assert found.low < found.difference < found.high
        assert found.high - found.low == pytest.approx(4 * 0.1 / math.sqrt(40), rel=0.3)
        assert found.verdict == "better"

    def test_only_shared_clusters_count(self):
        before = measured([*NOISE, 1e6], [*NAMES, "gone"])
        after = measured([*NOISE + 1, -1e6], [*NAMES, "added"])
        found = compare(before, after, SETTINGS)["mean"]
        assert found.before == pytest.approx(NOISE.mean())
        assert found.difference == pytest.approx(1)
        with pytest.raises(ValueError, match="no cluster in common"):
            compare(measured([1.0], ["a"]), measured([1.0], ["b"]), SETTINGS)

    def test_the_same_twice_is_no_evidence_and_an_undefined_metric_has_no_test(self):
        metrics = {"never": Metric(lambda t: np.full(t.shape[:-1], np.nan), "higher")}
        nothing = Measurement(NAMES, np.ones((40, 1)), metrics)
        unknown = {"never": MetricComparison(verdict="not measured")}
        assert compare(nothing, nothing, SETTINGS) == unknown
        found = compare(measured(NOISE), measured(NOISE), SETTINGS)["mean"]
        assert (found.difference, found.p, found.verdict) == (0, 1, "no evidence")


class TestMcNemar:
    def test_rates_interval_and_p(self):
        before = right_or_wrong([True] * 20 + [False] * 20)
        after = right_or_wrong([True] * 8 + [False] * 32)
        found = compare(before, after, SETTINGS)["rate"]
        assert (found.before, found.after, found.difference) == pytest.approx((0.5, 0.2, -0.3))
        assert found.p == pytest.approx(2**-12)  # twelve changed, all the same way
        assert found.low < -0.3 < found.high < 0
        assert (found.test, found.verdict) == ("mid-p McNemar", "better")

    def test_a_cluster_that_became_undefined_is_no_improvement(self):
        before = right_or_wrong([True] * 20 + [False] * 20)
        after = right_or_wrong([None] * 18 + [True] * 2 + [False] * 20)
        found = compare(before, after, SETTINGS)["rate"]
        assert (found.before, found.after, found.p) == (2 / 22, 2 / 22, 1)
        assert found.verdict == "no evidence"

    def test_a_lone_pair_has_a_difference_and_no_interval_and_none_has_neither(self):
        found = compare(right_or_wrong([True, None]), right_or_wrong([None, True]), SETTINGS)
        assert found["rate"] == MetricComparison(test="mid-p McNemar", verdict="not measured")
        found = compare(right_or_wrong([True]), right_or_wrong([False]), SETTINGS)["rate"]
        assert (found.before, found.after, found.difference) == (1, 0, -1)
        assert (found.low, found.p, found.verdict) == (None, None, "no evidence")

    def test_a_cluster_that_stands_twice_is_refused(self):
        twice = right_or_wrong([True, False], ["a", "a"])
        with pytest.raises(ValueError, match="one row for each cluster"):
            compare(twice, twice, SETTINGS)


class TestGuard:
    """`SHIFT` has a standard error of about 0.016, so its 90% interval is about 0.03 each way."""

    @pytest.mark.parametrize(
        ("change", "margin", "better", "status"),
        [
            *((0.0, 0.1, None, "preserved"), (0.0, 0.01, None, "inconclusive")),
            *(
                (0.1, 0.1, None, "inconclusive"),
                (0.5, 0.1, None, "not preserved"),
                (-0.5, 0.1, None, "not preserved"),
            ),
            *((0.5, 0.1, "higher", "preserved"), (-0.5, 0.1, "higher", "not preserved")),
            *((-0.1, 0.1, "higher", "inconclusive"), (0.5, 0.1, "lower", "not preserved")),
            (-0.5, 0.1, "lower", "preserved"),
        ],
    )
    def test_status(self, change, margin, better, status):
        after = NOISE + SHIFT - SHIFT.mean() + change
        guard = Margin(margin)
        before, changed = (measured(v, better=better, guard=guard) for v in (NOISE, after))
        found = compare(before, changed, SETTINGS)["mean"]
        assert found.guard == status
        assert (found.margin.by, found.margin.better) == (margin, better)
        assert found.low < found.margin.low < change < found.margin.high < found.high  # 90% in 95%

    @pytest.mark.parametrize(
        ("level", "status"),
        [
            (20.0, "preserved"),
            (-20.0, "preserved"),
            (2.0, "not preserved"),
            (-2.0, "not preserved"),
        ],
    )
    def test_a_relative_margin_is_one_of_the_value_before(self, level, status):
        before = NOISE - NOISE.mean() + level
        after = before + SHIFT - SHIFT.mean() + 0.5
        guard = Margin(0.05, relative=True)
        pair = (measured(values, guard=guard, better=None) for values in (before, after))
        found = compare(*pair, SETTINGS)["mean"]
        assert found.guard == status
        assert found.margin.relative
        assert found.margin.low < 0.5 / abs(level) < found.margin.high


def test_holm_over_the_family():
    """Of five means the first is shifted."""
    rng, metrics = np.random.default_rng(0), {}
    for k in range(5):
        metrics[f"mean {k}"] = Metric(lambda t, k=k: t[..., k] / t[..., 5], "higher")
    before, after = (
        np.column_stack([rng.normal(0, 1, (40, 5)) + shift * np.eye(5)[0], np.ones(40)])
        for shift in (0, 2)
    )
    found = compare(*(Measurement(NAMES, sums, metrics) for sums in (before, after)), SETTINGS)
    p_values = {name: c.p for name, c in found.items() if c.p is not None}
    assert {name: c.p_holm for name, c in found.items()} == holm(p_values)
    assert found["mean 0"].verdict == "better"
    assert all(c.verdict == "no evidence" for name, c in found.items() if name != "mean 0")


class TestPower:
    @pytest.mark.parametrize(
        ("better", "margin", "power"),
        [
            (None, 0.3, 0.9),  # 1.645 + 1.645 standard errors of 0.0912
            ("higher", 0.3, 0.95),
            ("lower", 0.3, 0.95),
            ("higher", 0.15, 0.5),
            (None, 0.1, 0.0),  # narrower than the interval: it can never be kept
        ],
    )
    def test_is_that_of_two_one_sided_tests(self, better, margin, power):
        guard = GuardMargin(margin, False, -0.5 - 0.15, -0.5 + 0.15, better)
        found = MetricComparison(difference=-0.5, margin=guard)  # what changed does not matter
        assert power_of(found, 1.6449) == pytest.approx(power, abs=1e-3)
        quarter = replace(guard, low=-0.5 - 0.3, high=-0.5 + 0.3)
        part = replace(found, margin=quarter)
        assert power_of(part, 1.6449, 0.25) == pytest.approx(power, abs=1e-3)

    def test_of_a_change_without_error(self):
        found = MetricComparison(difference=0.2, margin=GuardMargin(0.1, False, 0.2, 0.2))
        assert power_of(found, 1.7) == 1.0
        assert power_of(MetricComparison(margin=GuardMargin(0.1, False)), 1.7) is None

    def test_is_that_of_the_replies_before_whatever_has_changed(self):
        """A change of some clusters and not of others widens the interval of the change."""
        before = measured(NOISE, guard=Margin(0.3))
        uneven = measured(NOISE + 3.0 * (np.arange(40) % 2), guard=Margin(0.3))
        rng = np.random.default_rng(1)
        first, second = (
            measured(NOISE + rng.normal(0, 0.1, 40), guard=Margin(0.3)) for _ in range(2)
        )
        halves = Halves([(first, second)], 0.5)
        alone, beside = (
            compare(before, uneven, SETTINGS, halves=known)["mean"].margin
            for known in (None, halves)
        )
        assert alone.power < 0.5 < 0.99 < beside.power


def counted(rollouts, scores):
    """The mean of scores, which is guarded, and their sum."""
    sums = np.array([[score.value, 1.0] for score in scores], dtype=np.float64)
    mean = Metric(lambda t: t[..., 0] / t[..., 1], guard=Margin(1.0))
    metrics = {"mean": mean, "free": Metric(lambda t: t[..., 0])}
    return Measurement(tuple(r.prompt_id for r in rollouts), sums, metrics)


class TestHalves:
    def test_share_out_the_replies_to_each_prompt_several_times(self):
        rollouts = [Rollout(name, name, "test", "", "") for name in "aaaaabbbbb"]
        scores = [Score(float(n)) for n in range(10)]
        halves = Halves.of(counted, rollouts, scores)
        assert halves.share == 0.4
        pairs = list(halves.pairs)
        parts = [[set(part.sums[:, 0]) for part in pair] for pair in pairs]
        for first, second in parts:
            assert (len(first), len(second), first & second) == (4, 4, set())
            for part in (first, second):
                assert sum(value < 5 for value in part) == 2  # of each prompt
        assert len({frozenset(first) for first, _ in parts}) > 1
        assert list(pairs[0][0].metrics) == ["mean"]
        # It needs two replies to every prompt.
        rollouts = [Rollout(name, name, "test", "", "") for name in "aab"]
        assert Halves.of(counted, rollouts, [Score(0.0)] * 3) is None

    def test_power_is_that_of_the_mean_square_of_all_pairs_errors(self):
        before = measured(NOISE, guard=Margin(0.3))
        rng = np.random.default_rng(1)
        pairs = [
            tuple(measured(NOISE + rng.normal(0, s, 40), guard=Margin(0.3)) for _ in range(2))
            for s in (0.1, 0.8)
        ]
        errors = [
            compare(before, before, SETTINGS, halves=Halves(known, 0.5))["mean"].margin.error
            for known in ([pairs[0]], [pairs[1]], pairs)
        ]
        assert errors[0] < errors[1] / 4
        assert errors[2] ** 2 == pytest.approx((errors[0] ** 2 + errors[1] ** 2) / 2)


def test_what_is_0_before_by_construction_is_neither_better_nor_worse():
    def with_error(values):
        found = measured(values, better="lower")
        metrics = {"error": replace(found.metrics["mean"], of_reference=True, zero_if_frozen=True)}
        return replace(found, metrics=metrics | found.metrics)

    before, after = with_error(NOISE), with_error(NOISE + 5)
    found = compare(before, after, SETTINGS, frozen=True)
    assert (found["error"].verdict, found["mean"].verdict) == ("changed", "worse")
    assert compare(before, after, SETTINGS)["error"].verdict == "worse"
