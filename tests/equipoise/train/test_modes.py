"""modes.json: intervals per mode, exact tests between pairs, Holm over all pairs."""

import numpy as np
import pytest

from environments.measurement import Measurement, Metric, Modes
from equipoise.statistics.intervals import StatisticsSettings, holm, mcnemar
from equipoise.train.probe import modes_dict

SETTINGS = StatisticsSettings(bootstrap_draws=500)


def answered(outcomes: list[int]) -> Measurement:
    right = np.array(outcomes, dtype=bool)
    sums = np.column_stack([right, np.ones(len(right))])
    rate = Metric(lambda t: t[..., 0] / t[..., 1], "higher", outcomes=right)
    recall = Metric(lambda t: t[..., 0] * np.nan, "higher")
    names = tuple(f"q{n}" for n in range(len(right)))
    return Measurement(names, sums, {"accuracy": rate, "recall": recall})


MODES = {
    "nothing": answered([0] * 30 + [1] * 10),
    "question": answered([0] * 22 + [1] * 18),
}
STAGES = {"trained": answered([0] * 2 + [1] * 38)}


@pytest.fixture(scope="module")
def found() -> dict:
    modes = Modes(MODES, {"final": "trained"}, {"search": 0.1}, {"index": "x"}, ("a note",))
    return modes_dict(modes, STAGES, SETTINGS)


def test_every_mode_has_its_figures_with_intervals(found: dict) -> None:
    assert list(found["modes"]) == ["nothing", "question", "trained"]
    figure = found["modes"]["trained"]["accuracy"]
    assert figure["value"] == 38 / 40
    assert figure["low"] < 38 / 40 < figure["high"]
    assert found["modes"]["trained"]["recall"]["value"] is None
    assert (found["seconds"], found["notes"]) == ({"search": 0.1}, ["a note"])
    assert found["sources"] == {"index": "x"}


def test_pairs_are_tested_exactly_and_corrected_together(found: dict) -> None:
    pairs = {tuple(row["modes"]): row for row in found["comparisons"]}
    assert len(pairs) == 3
    p = {
        pair: mcnemar(*((MODES | STAGES)[name].metrics["accuracy"].outcomes for name in pair))
        for pair in pairs
    }
    assert {pair: row["p"] for pair, row in pairs.items()} == p
    assert {pair: row["p_holm"] for pair, row in pairs.items()} == holm(p)
    assert all(row["test"] == "mid-p McNemar" for row in pairs.values())
    assert pairs["nothing", "trained"]["verdict"] == "better"
    assert pairs["nothing", "question"]["difference"] == pytest.approx(0.2)


def test_only_questions_of_both_modes_are_compared() -> None:
    few = Modes({"first": answered([0] * 10)}, {"final": "second"})
    (row,) = modes_dict(few, {"second": answered([1] * 30)}, SETTINGS)["comparisons"]
    assert row["p"] == mcnemar(np.zeros(10, bool), np.ones(10, bool))
