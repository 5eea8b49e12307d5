"""Rates by a judge, corrected by its errors: the formula, its limits, and how often it holds."""

import numpy as np
import pytest

from equipoise.evaluate.calibrate import ErrorRates, corrected_bounds, corrected_rate
from equipoise.statistics.intervals import share_bounds
from tests.equipoise.statistics.simulation import beta_binomial, rate, shares_of

GOOD, FAIR = (0.95, 0.95), (0.7, 0.95)


def judge_errors(rng, judge, items):
    """As a calibration of so many items of each kind shows them."""
    seen = [rng.binomial(items.astype(int), chance) / items for chance in judge]
    return ErrorRates(seen[0], items, seen[1], items)


def said(rng, truth, judge, shape):
    """Simulate a judge's verdicts on four replies in each cluster, where truths are correlated."""
    trials = np.full(shape, 4.0)
    true = beta_binomial(rng, truth, trials, 0.3)
    hits = rng.binomial(true.astype(int), judge[0])
    return shares_of(hits + rng.binomial((trials - true).astype(int), 1 - judge[1]), trials)


def corrected_held(clusters, rounds, truth, judge, items):
    """Coverage of the corrected interval, that of the judge's own, and where there is one."""
    rng = np.random.default_rng([clusters, items])
    errors = judge_errors(rng, judge, np.full(rounds, float(items)))
    shares = said(rng, truth, judge, (rounds, clusters))
    low, high = corrected_bounds(shares, errors, 0.95)
    naive = share_bounds(shares, 0.95)
    known = np.isfinite(low)
    held = (low <= truth) & (truth <= high)
    return rate(held[known]), rate((naive[0] <= truth) & (truth <= naive[1])), rate(known)


def test_a_rate_that_the_errors_alone_would_show_is_none():
    """A twentieth of nothing, and 19 in 20 of everything, is what this judge says."""
    errors = ErrorRates(*(np.asarray(x) for x in (0.95, 400.0, 0.95, 400.0)))
    trials = np.ones((3, 400))
    hits = np.zeros((3, 400))
    hits[0, :20], hits[1, :200], hits[2, :380] = 1, 1, 1
    shares = shares_of(hits, trials)
    assert corrected_rate(shares, errors) == pytest.approx([0.0, 0.5, 1.0])
    low, high = corrected_bounds(shares, errors, 0.95)
    assert low[0] == 0.0 and 0 < high[0] < 0.06
    assert low[1] < 0.5 < high[1]
    assert high[2] == 1.0 and low[2] > 0.94


def test_figures_of_the_method_by_hand():
    """(.1 + .9 - 1) / (.8 + .9 - 1) = 0, and (.31 + .9 - 1) / .7 = .3."""
    errors = ErrorRates(*(np.asarray(x) for x in (0.8, 50.0, 0.9, 50.0)))
    hits = np.zeros(1000)
    hits[:310] = 1
    assert corrected_rate(shares_of(hits, np.ones(1000)), errors) == pytest.approx(0.3)


@pytest.mark.parametrize("judge", [(0.5, 0.5), (0.3, 0.6), (0.55, 0.55)])
def test_a_judge_that_may_only_guess_corrects_nothing(judge):
    errors = ErrorRates(*(np.asarray(x) for x in (judge[0], 30.0, judge[1], 30.0)))
    shares = shares_of(np.tile([0.0, 1.0], 20), np.ones(40))
    assert np.isnan(corrected_bounds(shares, errors, 0.95)).all()


def test_no_error_in_few_items_is_not_none():
    shares = shares_of(np.tile([0.0, 0.0, 0.0, 1.0], 50), np.ones(200))
    widths = []
    for items in (10.0, 100.0, 10_000.0):
        errors = ErrorRates(*(np.asarray(x) for x in (1.0, items, 1.0, items)))
        low, high = corrected_bounds(shares, errors, 0.95)
        widths.append(float(high - low))
    own_low, own_high = share_bounds(shares, 0.95)
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] == pytest.approx(float(own_high - own_low), rel=0.05)


@pytest.mark.parametrize("judge", [GOOD, FAIR])
@pytest.mark.parametrize("truth", [0.05, 0.3])
def test_intervals_hold_where_those_of_the_judge_do_not(truth, judge):
    held, naive, known = corrected_held(90, 2_000, truth, judge, 100)
    assert held > 0.93
    assert naive < held
    assert known == 1.0
