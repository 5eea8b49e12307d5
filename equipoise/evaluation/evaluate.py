"""evaluation.json: every metric of one measurement with its uncertainty."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from environments.base import Environment, FailureKind, HasPresentation
from environments.measurement import Array, Measurement, Metric
from environments.presentation import Presentation
from equipoise.evaluation.statistics import (
    StatisticsSettings,
    bootstrap_sums,
    floor,
    holm,
    interval,
    merge_clusters,
    metric_draws,
)

SCHEMA = 1

#: Section, key within it, name; the headline metrics have section "metrics" and key "".
Place = tuple[str, str, str]
Figures = dict[str, float | None]

_HEADLINES = "metrics"


def presentation_of(environment: Environment) -> Presentation:
    """What the environment says of itself; one that says nothing goes by plain names."""
    return environment.presentation if isinstance(environment, HasPresentation) else Presentation()


def evaluation_dict(
    measurement: Measurement,
    *,
    task: str,
    split: str,
    model: str,
    n_prompts: int,
    n_rollouts: int,
    failures: Mapping[FailureKind, int],
    settings: StatisticsSettings,
    presentation: Presentation,
) -> dict[str, Any]:
    """The content of evaluation.json; null is a figure that is not defined.

    Each figure has a percentile interval over clusters. One with a floor also has the median and
    the upper bound of the null and the one-sided p; in a breakdown these p are Holm-corrected
    over the figures of their section.
    """
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "task": task,
        "split": split,
        "model": model,
        "n_prompts": n_prompts,
        "n_rollouts": n_rollouts,
        "n_failed": sum(failures.values()),
        "failures": dict(failures),
        "confidence": settings.confidence,
        "presentation": presentation.to_json(),
        _HEADLINES: {},
    }
    figures = _figures(measurement, settings)
    for section in measurement.breakdowns:
        result[section] = {}
        _add_holm({place: figure for place, figure in figures.items() if place[0] == section})
    for (section, key, name), figure in figures.items():
        target = result[section] if section == _HEADLINES else result[section].setdefault(key, {})
        target[name] = figure
    return result


def headline_figures(measurement: Measurement, settings: StatisticsSettings) -> dict[str, Figures]:
    """The headline metrics alone, each with its interval."""
    return {
        name: figure
        for (section, _, name), figure in _figures(measurement, settings).items()
        if section == _HEADLINES
    }


def json_number(value: float | None) -> float | None:
    """A finite number or None: JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _places(measurement: Measurement) -> dict[Place, Metric]:
    """Every metric of a measurement with its place in evaluation.json."""
    headlines = {(_HEADLINES, "", name): m for name, m in measurement.metrics.items()}
    breakdowns = {
        (section, key, name): metric
        for section, keys in measurement.breakdowns.items()
        for key, metrics in keys.items()
        for name, metric in metrics.items()
    }
    return headlines | breakdowns


def _figures(measurement: Measurement, settings: StatisticsSettings) -> dict[Place, Figures]:
    metrics = _places(measurement)
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    bootstrap_rng, null_rng = np.random.default_rng(settings.seed).spawn(2)
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, bootstrap_rng), metrics)
    null = _null_draws(measurement, metrics, settings, null_rng)
    figures = {}
    for at, metric in metrics.items():
        value = float(metric.at(clusters.total))
        figures[at] = _with_interval(value, draws[at], settings.confidence)
        if at in null:
            figures[at] |= _with_floor(value, null[at], settings.confidence)
    return figures


def _null_draws(
    measurement: Measurement,
    metrics: Mapping[Place, Metric],
    settings: StatisticsSettings,
    rng: np.random.Generator,
) -> dict[Place, Array]:
    if measurement.null_sums is None:
        return {}
    floored = {at: metric for at, metric in metrics.items() if metric.floor}
    return metric_draws([measurement.null_sums(rng, settings.permutations)], floored)


def _with_interval(value: float, draws: Array, confidence: float) -> Figures:
    bounds = interval(draws, confidence) if math.isfinite(value) else None
    return {
        "value": json_number(value),
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
    }


def _with_floor(value: float, null: Array, confidence: float) -> Figures:
    noise = floor(value, null, confidence)
    return {
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
    }


def _add_holm(figures: Mapping[Place, Figures]) -> None:
    """Add p_holm beside every p of one family."""
    tested = {place: p for place, figure in figures.items() if (p := figure.get("p")) is not None}
    adjusted = holm(tested)
    for place, figure in figures.items():
        if "p" in figure:
            figure["p_holm"] = adjusted.get(place)
