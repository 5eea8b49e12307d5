"""Estimates of a small measurement, and the signal in rewards."""

from dataclasses import replace

import numpy as np
import pytest

from environments.base import UNPARSEABLE, Failure, Rollout, Score
from environments.measurement import Array, Measurement, Metric
from equipoise.statistics.evaluation import (
    Estimate,
    estimates_of,
    headline_figures,
    learning_signal,
)
from equipoise.statistics.intervals import StatisticsSettings, holm

SETTINGS = StatisticsSettings(bootstrap_draws=500, permutations=199)


def mean_of(column, *, floor=False):
    return Metric(lambda t: t[..., column] / t[..., 2], "lower", floor)


@pytest.fixture
def toy():
    """Two means of twenty clusters; under the null the second is about 0."""
    rng = np.random.default_rng(0)
    sums = np.column_stack([rng.normal(5, 1, 20), rng.normal(1, 1, 20), np.ones(20)])

    def null(rng, draws):
        signs = rng.choice([-1.0, 1.0], size=(draws, 20))
        result: Array = np.full((draws, 3), np.nan)
        result[:, 1:] = np.column_stack([signs @ sums[:, 1], np.full(draws, 20.0)])
        return result

    return Measurement(
        clusters=tuple(map(str, range(20))),
        sums=sums,
        metrics={
            "level": mean_of(0),
            "effect": mean_of(1, floor=True),
            "never": Metric(lambda t: np.full(t.shape[:-1], np.nan), floor=True),
        },
        breakdowns={"parts": {key: {"effect": mean_of(1, floor=True)} for key in ("a", "b")}},
        null_sums=null,
    )


class TestEstimates:
    def test_interval_and_floor(self, toy):
        level, effect, _ = estimates_of(toy, SETTINGS)[0].values()
        assert level.low < level.value < level.high
        assert (level.floor, level.p) == (None, None)
        assert abs(effect.floor) < 0.15 < effect.floor_high < effect.value
        assert effect.p < 0.05
        assert effect.low is effect.high is None
        unbiased = {"effect": replace(toy.metrics["effect"], unbiased=True)}
        effect = headline_figures(replace(toy, metrics=unbiased), SETTINGS)["effect"]
        assert 0 < effect.low < effect.value < effect.high
        assert effect.p < 0.05

    def test_what_is_undefined_is_none_and_holm_is_within_a_breakdown(self, toy):
        metrics, breakdowns = estimates_of(toy, SETTINGS)
        assert metrics["never"] == Estimate()
        effects = {key: cells["effect"] for key, cells in breakdowns["parts"].items()}
        p_values = {key: effect.p for key, effect in effects.items()}
        assert {key: effect.p_holm for key, effect in effects.items()} == holm(p_values)


BROKEN = {UNPARSEABLE: "no JSON"}


def signal(groups, broken=0):
    """Of one group of rewards per prompt; the first `broken` replies cannot be read."""
    rollouts = [
        Rollout(f"p{i}", "s", "test", "Q", f"reply {value}")
        for i, values in enumerate(groups)
        for value in values
    ]
    values = [value for group in groups for value in group]
    down = Failure("server_error", "down")
    scores = [
        Score(v, {}, down if v is None else None, BROKEN if n < broken else {})
        for n, v in enumerate(values)
    ]
    return learning_signal(rollouts, scores)


def test_ties_are_counted_by_prompt():
    found = signal([(1, 1), (0, 1), (0, 0), (0.1 + 0.2, 0.3)])
    assert (found.groups, found.tied) == (4, 0.75)
    assert found.spread == pytest.approx(0.125)
    assert not found.none
    assert signal([(1, 1), (0, 0)]).none
    assert signal([(1, None, 1), (None, None)]).none, "an unscored reply has no reward"


@pytest.mark.parametrize(("second", "broken", "none"), [(1, 2, True), (1, 0, False), (0, 2, False)])
def test_one_generation_of_each_prompt_is_evidence_enough_where_none_is_read(second, broken, none):
    found = signal([(1,), (second,)], broken)
    assert found.none is none
    assert found.little
    assert str(found).startswith(("all", "not all"))


def test_a_long_reply_is_shown_by_its_beginning():
    rollout = Rollout("p", "s", "test", "Q", "word \n" * 10_000)
    shown = str(learning_signal([rollout], [Score(1.0)]).commonest[0])
    assert shown.startswith("1x, score 1: 'word word")
    assert len(shown) < 200
