"""evaluation.json: every metric of one measurement with its uncertainty."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from environments.base import FailureKind
from environments.measurement import Array, Measurement, Metric
from environments.presentation import Presentation
from equipoise.statistics.intervals import (
    Clusters,
    Interval,
    Shares,
    StatisticsSettings,
    bootstrap_sums,
    floor,
    holm,
    interval,
    merge_clusters,
    metric_draws,
    share_bounds,
)

SCHEMA = 1

#: Section, key within it, name; the headline metrics have section "metrics" and key "".
Address = tuple[str, str, str]
Figures = dict[str, float | None]

_HEADLINES = "metrics"


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

    Each figure has an interval over clusters: Wilson's of a share, else the bootstrap's. One with a
    floor has the median and the upper bound of the null and the one-sided p in place of it: its
    noise biases it, and resampling adds the noise again, so that an interval of the largest of four
    means over the smallest never holds 1. An unbiased one has both. In a breakdown the p are
    Holm-corrected over the figures of their section.
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
        _add_holm({address: figure for address, figure in figures.items() if address[0] == section})
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


def _figures(measurement: Measurement, settings: StatisticsSettings) -> dict[Address, Figures]:
    metrics = {(_HEADLINES, "", name): metric for name, metric in measurement.metrics.items()}
    for section, keys in measurement.breakdowns.items():
        for key, of_key in keys.items():
            metrics |= {(section, key, name): metric for name, metric in of_key.items()}
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    null = _null_draws(measurement, settings)
    resampled = {
        address: m for address, m in metrics.items() if not m.floor or m.unbiased or null is None
    }
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), resampled)
    figures = {}
    for address, metric in metrics.items():
        figure = _with_interval(metric, clusters, draws.get(address), settings.confidence)
        if metric.floor and null is not None:
            figure |= _floor_of(metric, clusters, null, settings.confidence)
        figures[address] = figure
    return figures


def _null_draws(measurement: Measurement, settings: StatisticsSettings) -> Array | None:
    """Total sums [D, K] under the null; None of a task without one."""
    if measurement.null_sums is None:
        return None
    null_rng = np.random.default_rng(settings.seed).spawn(2)[1]
    return measurement.null_sums(null_rng, settings.permutations)


def _with_interval(
    metric: Metric, clusters: Clusters, draws: Array | None, confidence: float
) -> Figures:
    value = json_number(float(metric.at(clusters.total)))
    bounds = None
    if value is not None and draws is not None:
        shares = Shares.of(metric, clusters.sums, clusters.strata)
        bounds = (
            interval(draws, confidence, clusters.degrees)
            if shares is None
            else Interval(*map(float, share_bounds(shares, confidence)))
        )
    return {
        "value": value,
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
    }


def _floor_of(metric: Metric, clusters: Clusters, null: Array, confidence: float) -> Figures:
    """The noise floor of a metric, and how likely noise is to reach the observed value."""
    noise = floor(float(metric.at(clusters.total)), metric.at(null), confidence)
    return {
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
    }


def _add_holm(figures: Mapping[Address, Figures]) -> None:
    """Add p_holm beside every p of one family."""
    tested = {
        address: p for address, figure in figures.items() if (p := figure.get("p")) is not None
    }
    adjusted = holm(tested)
    for address, figure in figures.items():
        if "p" in figure:
            figure["p_holm"] = adjusted.get(address)
