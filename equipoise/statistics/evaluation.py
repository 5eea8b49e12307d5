"""evaluation.json: every metric of one measurement with its uncertainty."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from environments.base import FailureKind
from environments.measurement import Array, Measurement, Metric
from environments.presentation import Presentation
from equipoise.statistics.excess import Effect, excess, widening_for
from equipoise.statistics.intervals import (
    Clusters,
    Interval,
    Key,
    StatisticsSettings,
    bootstrap_sums,
    floor,
    holm,
    interval,
    merge_clusters,
    metric_draws,
)
from equipoise.statistics.shares import Shares, share_bounds

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
    floor also has the median and the upper bound of the null, the one-sided p, and what it exceeds
    its null by without noise; its `low` and `high` are of `without_noise`, the estimate of the
    metric without it. In a breakdown the p are Holm-corrected over the figures of their section.
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


def _metrics_by_address(measurement: Measurement) -> dict[Address, Metric]:
    """Every metric of a measurement by its address in evaluation.json."""
    headlines = {(_HEADLINES, "", name): m for name, m in measurement.metrics.items()}
    breakdowns = {
        (section, key, name): metric
        for section, keys in measurement.breakdowns.items()
        for key, metrics in keys.items()
        for name, metric in metrics.items()
    }
    return headlines | breakdowns


def _figures(measurement: Measurement, settings: StatisticsSettings) -> dict[Address, Figures]:
    metrics = _metrics_by_address(measurement)
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    null = null_draws_of(measurement, settings)
    resampled = {
        address: m for address, m in metrics.items() if not m.floor or m.unbiased or null is None
    }
    rng = np.random.default_rng(settings.seed)
    draws = metric_draws(bootstrap_sums(clusters, settings.bootstrap_draws, rng), resampled)
    floored = {address: m for address, m in metrics.items() if m.floor}
    effects = {} if null is None else effects_of(clusters, null, settings, floored)
    figures = {}
    for address, metric in metrics.items():
        effect = effects.get(address)
        if address in draws:
            figures[address] = _with_interval(metric, clusters, draws[address], settings.confidence)
            if effect is not None:
                figures[address] |= _beside_floor(
                    metric, effect, settings.confidence, figures[address]
                )
        elif effect is not None:
            figures[address] = _with_floor(metric, effect, settings.confidence)
    return figures


def null_draws_of(measurement: Measurement, settings: StatisticsSettings) -> Array | None:
    """Total sums [D, K] under the null; None of a task without one."""
    if measurement.null_sums is None:
        return None
    null_rng = np.random.default_rng(settings.seed).spawn(2)[1]
    return measurement.null_sums(null_rng, settings.permutations)


def effects_of(
    clusters: Clusters, null: Array, settings: StatisticsSettings, metrics: Mapping[Key, Metric]
) -> dict[Key, Effect]:
    """The observed effect with both kinds of noise, as many draws of each.

    Metrics of other clusters differ in how much the noise is widened.
    """
    rng = np.random.default_rng(settings.seed).spawn(2)[0]
    draws = np.concatenate(list(bootstrap_sums(clusters, len(null), rng)))

    @cache
    def effect(degrees: int) -> Effect:
        widening = widening_for(degrees, settings.confidence)
        return Effect.of(clusters.total, null, draws, widening)

    return {key: effect(clusters.of(metric).degrees) for key, metric in metrics.items()}


def _with_interval(metric: Metric, clusters: Clusters, draws: Array, confidence: float) -> Figures:
    value = json_number(float(metric.at(clusters.total)))
    bounds = None
    if value is not None:
        own = clusters.of(metric)
        shares = Shares.of(metric, own.sums, own.strata)
        bounds = (
            interval(draws, confidence, own.degrees)
            if shares is None
            else Interval(*map(float, share_bounds(shares, confidence)))
        )
    return {
        "value": value,
        "low": bounds.low if bounds else None,
        "high": bounds.high if bounds else None,
    }


def _beside_floor(metric: Metric, effect: Effect, confidence: float, figures: Figures) -> Figures:
    """The noise of a metric from which none need be taken off: what it exceeds is what it is."""
    noise = floor(effect.truth(metric, 1.0), effect.draws_of(metric)(0.0), confidence)
    return {
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
        "excess": figures["value"],
        "excess_low": figures["low"],
        "excess_high": figures["high"],
    }


def _with_floor(metric: Metric, effect: Effect, confidence: float) -> Figures:
    """The metric as it is, with its noise; the estimate and the interval without it, the excess.

    `low` to `high` is of `without_noise`, which is the null and the excess.
    """
    value = effect.truth(metric, 1.0)
    noise = floor(value, effect.draws_of(metric)(0.0), confidence)
    estimate = excess(effect, metric, confidence) if noise else None
    equal = effect.truth(metric, 0.0)
    return {
        "value": json_number(value),
        "without_noise": equal + estimate.value if estimate else None,
        "low": equal + estimate.low if estimate else None,
        "high": equal + estimate.high if estimate else None,
        "floor": noise.median if noise else None,
        "floor_high": noise.high if noise else None,
        "p": noise.p if noise else None,
        "excess": estimate.value if estimate else None,
        "excess_low": estimate.low if estimate else None,
        "excess_high": estimate.high if estimate else None,
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
