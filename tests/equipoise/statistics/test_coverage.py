"""Intervals hold about as often as they say; the whole simulation is in tests/benchmarks."""

import pytest

from tests.equipoise.statistics.simulation import (
    guard_kept,
    mcnemar_rejected,
    mean_difference,
    mean_held,
    share_difference,
    share_guard_kept,
    share_held,
    stratified_mean_held,
)

pytestmark = pytest.mark.deep


def test_of_means():
    assert mean_held(40, 200) > 0.9
    assert stratified_mean_held(40, 200) > 0.9
    held, rejected = mean_difference(40, 200, 0.0)
    assert held > 0.9
    assert rejected < 0.1


@pytest.mark.parametrize(
    ("chance", "trials", "correlation"),
    [(0.005, 4, 0.3), (0.05, 8, 0.3), (0.05, 1, 0.0), (0.98, 0, 0.3)],
)
def test_of_shares(chance, trials, correlation):
    """Percentile intervals hold .42, .90, .85 and .74 of the time here."""
    assert 0.93 < share_held(40, 4_000, chance, trials=trials, correlation=correlation) < 0.99


def test_of_changes_of_rare_shares():
    held, rejected = share_difference(40, 2_000, 0.05, 0.05)
    assert held > 0.93
    assert rejected < 0.06
    assert share_difference(90, 2_000, 0.05, 0.01)[0] > 0.93
    assert mcnemar_rejected(40, 1_000) < 0.06


def test_a_guard_at_its_margin_is_seldom_kept():
    assert guard_kept(40, 200, 0.3, 0.3)[0] < 0.1
    assert guard_kept(40, 100, 0.0, 0.3)[0] > 0.8
    assert share_guard_kept(40, 4_000, 0.9, 0.85, 0.05) < 0.06


@pytest.mark.parametrize("margin", [0.18, 0.25])
def test_the_power_of_a_guard_is_how_often_it_is_kept_where_nothing_changes(margin):
    kept, told = guard_kept(40, 200, 0.0, margin)
    assert 0.1 < kept < 0.95
    assert told == pytest.approx(kept, abs=0.1)
