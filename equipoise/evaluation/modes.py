"""modes.json: ways to get through the same prompts side by side, each tested against each."""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from environments.measurement import Measurement, Yardsticks
from equipoise.evaluation.compare import compare, with_verdicts
from equipoise.evaluation.evaluate import headline_figures
from equipoise.evaluation.statistics import StatisticsSettings

SCHEMA = 1


def modes_dict(
    modes: Mapping[str, Measurement], yardsticks: Yardsticks, settings: StatisticsSettings
) -> dict[str, Any]:
    """The content of modes.json.

    The modes are compared pairwise in the first metric of the first mode, on the clusters that
    both have, by McNemar's exact test where the metric has outcomes; Holm's correction is over all
    pairs.
    """
    metric = next(iter(next(iter(modes.values())).metrics))
    return {
        "schema": SCHEMA,
        "confidence": settings.confidence,
        "modes": {name: headline_figures(found, settings) for name, found in modes.items()},
        "metric": metric,
        "comparisons": _comparisons(modes, metric, settings),
        "seconds": dict(yardsticks.seconds),
        "sources": dict(yardsticks.sources),
        "notes": list(yardsticks.notes),
    }


def _comparisons(
    modes: Mapping[str, Measurement], metric: str, settings: StatisticsSettings
) -> list[dict[str, Any]]:
    alone = {name: _only(found, metric) for name, found in modes.items()}
    pairs = {
        (first, second): compare(alone[first], alone[second], settings)[metric]
        for first, second in itertools.combinations(modes, 2)
    }
    named = {f"{first} / {second}": found for (first, second), found in pairs.items()}
    better = next(iter(modes.values())).metrics[metric].better
    corrected = with_verdicts(named, dict.fromkeys(named, better), settings).values()
    return [
        {"modes": list(pair), **asdict(found)} for pair, found in zip(pairs, corrected, strict=True)
    ]


def _only(measurement: Measurement, metric: str) -> Measurement:
    """The measurement with one metric, so that no other is resampled."""
    metrics = {metric: measurement.metrics[metric]}
    return replace(measurement, metrics=metrics, breakdowns={}, null_sums=None)
