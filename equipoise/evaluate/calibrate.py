"""Errors of dharma's judge against a person's labels, and violation rates corrected for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from environments.base import Rollout, Score, outcomes_of
from environments.dharma.environment import DharmaEnvironment, DharmaSettings
from environments.dharma.judge import VERDICTS
from environments.dharma.metrics import DharmaOutcome
from environments.dharma.policy import Violations
from environments.measurement import Array, Mean, Measurement, Metric, measure_means, quotient
from environments.yaml_file import YamlFileError, check_tree, read_tree
from equipoise.files.disk import CACHE_DIR
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_scored_rollouts
from equipoise.run.task import make_environment, provide_models
from equipoise.statistics.evaluation import Estimate, Estimates, headline_figures, json_number
from equipoise.statistics.intervals import (
    Shares,
    StatisticsSettings,
    effective_trials,
    merge_clusters,
    student_quantile,
)

STATISTICS = StatisticsSettings()


@dataclass(frozen=True, slots=True)
class Calibration:
    """The content of judge_errors.json: how far a judge errs on `n` labelled replies."""

    judge: str
    n: int
    failed: int
    metrics: Estimates


def calibrate(
    replies: Sequence[Rollout], judge: Path | None, run: RunDirectory | None
) -> Calibration:
    """Compare the user's judge with labelled replies; correct the rates of a run by its errors."""
    environment = open_environment(judge)
    sources = environment.sources()
    of_run = (run.ledger.read().sources or {}) if run else sources
    if differing := [name for name in sources if sources[name] != of_run.get(name)]:
        raise UsageError(
            "calibrate.another-judge",
            f"the run was scored with another {', '.join(differing)}: the errors of one judge "
            "correct nothing of another",
            "Name the run's judge, rubric and policy with --judge, as they were.",
        )
    scores = environment.score(replies)
    measured = agreement(replies, scores)
    figures = headline_figures(measured, STATISTICS)
    if run:
        figures |= corrected_figures(run, environment, measured)
    failed = sum(score.value is None for score in scores)
    return Calibration(sources["judge"], len(scores), failed, figures)


def open_environment(judge: Path | None) -> DharmaEnvironment:
    """The environment with the keys of `env.dharma` in a file. Raises `EquipoiseError`."""
    try:
        tree = read_tree(judge) if judge else {}
        settings = check_tree(judge or Path(), tree, DharmaSettings, strict=False)
    except YamlFileError as error:
        raise UsageError(error.code, str(error), "It holds the keys of env.dharma.") from None
    environment = make_environment(DharmaEnvironment, settings)
    assert isinstance(environment, DharmaEnvironment)
    provide_models(environment, CACHE_DIR)
    return environment


# --- agreement ------------------------------------------------------------------------------------


#: Measure -> the labels that it is taken of.
_KINDS = {"accuracy": (True, False), "sensitivity": (True,), "specificity": (False,)}


def agreement(replies: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
    """Accuracy, kappa, sensitivity and specificity of each violation, clustered by family."""
    judged = [outcome and outcome.judged for outcome in outcomes_of(scores, DharmaOutcome)]
    if not any(judged):
        reason = next((s.error.text for s in scores if s.error), "no reply can be read")
        raise EquipoiseError("calibrate.nothing-judged", f"the judge rated no reply: {reason}", "")
    means = {}
    for name in Violations.model_fields:
        labels = [reply.metadata[VERDICTS].get(name) for reply in replies]
        verdicts = [j and getattr(j.decision.violations, name) for j in judged]
        for measure, answers in _KINDS.items():
            pairs = zip(labels, verdicts, strict=True)
            agreements = [None if v is None or y not in answers else v == y for y, v in pairs]
            means[f"{name}_{measure}"] = Mean(agreements, "higher", share=True)
    measured = measure_means([str(reply.metadata["family"]) for reply in replies], means)
    metrics = dict(measured.metrics)
    for name in Violations.model_fields:
        hits, rejections = (measured.metrics[f"{name}_{kind}"] for kind in [*_KINDS][1:])
        metrics[f"{name}_kappa"] = Metric(partial(_kappa, hits, rejections), "higher")
    return replace(measured, metrics=metrics)


def _kappa(sensitivity: Metric, specificity: Metric, sums: Array) -> Array:
    """Cohen's kappa; NaN where the labels are all alike."""
    assert sensitivity.trials and specificity.trials
    positives, negatives = sensitivity.trials(sums), specificity.trials(sums)
    hits = sensitivity.at(sums) * positives
    rejections, total = specificity.at(sums) * negatives, positives + negatives
    flagged = hits + negatives - rejections
    chance = positives * flagged + negatives * (total - flagged)
    return quotient(total * (hits + rejections) - chance, total**2 - chance)


# --- corrected rates ------------------------------------------------------------------------------
# If a judge says yes to a share `se` of what is so and no to a share `sp` of what is not, a true
# rate shows as rate * se + (1 - rate) * (1 - sp). Solved for the rate that is the estimate of Rogan
# & Gladen (1978, doi:10.1093/oxfordjournals.aje.a112510). Its interval has the uncertainty of the
# rate and of both errors, by Lang & Reiczigel (2014, doi:10.1016/j.prevetmed.2013.09.015).


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """A judge's hit rates, and the number of independent items behind each, [...]."""

    sensitivity: Array
    positives: Array
    specificity: Array
    negatives: Array

    @property
    def power(self) -> Array:
        """Youden's index: 1 without error; NaN where it does not beat a guess."""
        index = np.asarray(self.sensitivity + self.specificity - 1)
        return np.where(index > 0, index, np.nan)

    def adjusted(self) -> "ErrorRates":
        """Add a hit and a miss of each kind: ten items without an error do not show a rate of 0."""
        p, n = self.positives, self.negatives
        hits, rejections = self.sensitivity * p + 1, self.specificity * n + 1
        return ErrorRates(hits / (p + 2), p + 2, rejections / (n + 2), n + 2)


def corrected_rate(shares: Shares, errors: ErrorRates) -> Array:
    """Correct a rate for the judge's errors, within 0 and 1; NaN if the judge only guesses."""
    return np.clip(_truth(shares.share, errors), 0.0, 1.0)


def _truth(rate: Array, errors: ErrorRates) -> Array:
    return np.asarray((rate + errors.specificity - 1) / errors.power)


def corrected_bounds(shares: Shares, errors: ErrorRates, confidence: float) -> tuple[Array, Array]:
    """The interval of `corrected_rate` over clusters; NaN if the judge may only be guessing."""
    t = student_quantile((1 + confidence) / 2, shares.degrees)
    number = effective_trials(shares)
    rate = (shares.share * number + t**2 / 2) / (number + t**2)
    adjusted = errors.adjusted()
    truth = _truth(rate, adjusted)
    of_hits = adjusted.sensitivity * (1 - adjusted.sensitivity) / adjusted.positives
    of_rejections = adjusted.specificity * (1 - adjusted.specificity) / adjusted.negatives
    shift = 2 * t**2 * (truth * of_hits - (1 - truth) * of_rejections)
    of_rate = rate * (1 - rate) / (number + t**2)
    variance = of_rate + truth**2 * of_hits + (1 - truth) ** 2 * of_rejections
    half = t * np.sqrt(variance) / adjusted.power
    value = corrected_rate(shares, errors)
    better_than_a_guess = adjusted.power > t * np.sqrt(of_hits + of_rejections)
    low = np.minimum(np.clip(truth + shift - half, 0.0, 1.0), value)
    high = np.maximum(np.clip(truth + shift + half, 0.0, 1.0), value)
    return np.where(better_than_a_guess, low, np.nan), np.where(better_than_a_guess, high, np.nan)


def corrected_figures(
    run: RunDirectory, environment: DharmaEnvironment, measured: Measurement
) -> dict[str, Estimate]:
    """Each rate of violations of the run's stages, as judged and corrected."""
    figures: dict[str, Estimate] = {}
    for stage in (stage for stage in ("baseline", "final") if run.rollouts(stage).exists()):
        of_stage = environment.measure(*read_scored_rollouts(run.rollouts(stage)))
        as_judged = headline_figures(of_stage, STATISTICS)
        for name in Violations.model_fields:
            rate = f"{name}_violation_rate"
            hits, rejections = (_shares(measured, f"{name}_{k}") for k in [*_KINDS][1:])
            shares = _shares(of_stage, rate)
            if hits is None or rejections is None or shares is None:
                continue
            errors = ErrorRates(
                *(hits.share, effective_trials(hits)),
                *(rejections.share, effective_trials(rejections)),
            )
            bounds = corrected_bounds(shares, errors, STATISTICS.confidence)
            low, high = (json_number(float(bound)) for bound in bounds)
            value = None if low is None else json_number(float(corrected_rate(shares, errors)))
            figures[f"{stage}_{rate}_as_judged"] = as_judged[rate]
            figures[f"{stage}_{rate}_corrected"] = Estimate(value, low, high)
    return figures


def _shares(measurement: Measurement, name: str) -> Shares | None:
    """A metric's hits and trials by cluster; None where it has not been measured on two."""
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    shares = Shares.of(measurement.metrics[name], clusters.sums, clusters.strata)
    return shares if shares is not None and shares.trials.sum() > 0 else None
