"""How far the judge of one task can be trusted: by labels, by a run, by a person's verdicts."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from data_prep.dharma.prompts import import_prompts, import_verdicts
from data_prep.files import write_json
from data_prep.text_files import DataError
from environments.base import OutcomeError, SetupError
from environments.chat import ModelSettings
from environments.dharma.calibration import (
    RIGHT,
    Agreement,
    CalibrationError,
    agreement_with_labels,
    agreement_with_ratings,
    agreement_with_verdicts,
)
from environments.dharma.environment import DharmaEnvironment, make_judge
from environments.dharma.judge import SHIPPED, Judge, ModelJudge, Rubric, read_rubric
from environments.dharma.policy import Policy, PolicySettings, Violations, hash_text, load_policy
from environments.measurement import Array, Measurement
from environments.yaml_file import YamlFileError, check_tree, read_tree
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import EquipoiseError, UsageError
from equipoise.models.task_environment import build_environment
from equipoise.report.beside import added_section
from equipoise.report.renderers import print_sections
from equipoise.report.report import write_report
from equipoise.report.run_files import RunFiles
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import owning
from equipoise.run.rollouts import read_stage_rollouts
from equipoise.run.seals import OpenedRun, record_files
from equipoise.statistics.evaluation import Figures, headline_figures, json_number
from equipoise.statistics.intervals import (
    Shares,
    StatisticsSettings,
    difference_bounds,
    effective_trials,
    merge_clusters,
    student_quantile,
)
from equipoise.terminal.console import Column, Reporter

# --- misclassification ----------------------------------------------------------------------------
# Rates by a classifier that errs, corrected by its errors on items whose truth is known.
#
# If it says yes to a share `se` of what is so and no to a share `sp` of what is not, a true rate
# shows as rate * se + (1 - rate) * (1 - sp). Solved for the rate that is the estimate of Rogan &
# Gladen (1978, doi:10.1093/oxfordjournals.aje.a112510). Its interval has the uncertainty of the
# rate and of both errors, by Lang & Reiczigel (2014, doi:10.1016/j.prevetmed.2013.09.015); Lee et
# al. (arXiv 2511.21140) take both to language models that classify. Simulated coverage is in
# docs/statistics.md.


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """How often a classifier is right, and on how many independent items that was seen, [...]."""

    sensitivity: Array
    positives: Array
    specificity: Array
    negatives: Array

    @classmethod
    def of(cls, sensitivity: Shares, specificity: Shares) -> "ErrorRates":
        """From the hits among what is so, and the rejections among what is not."""
        return cls(
            *(sensitivity.share, effective_trials(sensitivity)),
            *(specificity.share, effective_trials(specificity)),
        )

    @property
    def power(self) -> Array:
        """Youden's index: 1 without error; NaN where it is no better than a guess."""
        index = np.asarray(self.sensitivity + self.specificity - 1)
        return np.where(index > 0, index, np.nan)

    @property
    def variances(self) -> tuple[Array, Array]:
        """Of sensitivity and specificity."""
        return (
            np.asarray(self.sensitivity * (1 - self.sensitivity) / self.positives),
            np.asarray(self.specificity * (1 - self.specificity) / self.negatives),
        )

    def adjusted(self) -> "ErrorRates":
        """With a hit and a miss more of each kind: no error was seen in ten items is not none."""
        return ErrorRates(
            *((self.sensitivity * self.positives + 1) / (self.positives + 2), self.positives + 2),
            *((self.specificity * self.negatives + 1) / (self.negatives + 2), self.negatives + 2),
        )

    def tell_apart(self, quantile: float) -> Array:
        """Whether it is shown to be better than a guess."""
        adjusted = self.adjusted()
        return np.asarray(adjusted.power > quantile * np.sqrt(sum(adjusted.variances)))


def corrected_rate(shares: Shares, errors: ErrorRates) -> Array:
    """The true rate behind what is said, within 0 and 1; NaN where that is but a guess."""
    return np.clip(_truth(shares.share, errors), 0.0, 1.0)


def _truth(rate: Array, errors: ErrorRates) -> Array:
    return np.asarray((rate + errors.specificity - 1) / errors.power)


def corrected_bounds(shares: Shares, errors: ErrorRates, confidence: float) -> tuple[Array, Array]:
    """The interval of `corrected_rate`; NaN where what is said may be a guess.

    Student's t stands in for the normal quantile and the effective number of trials for their
    number, since replies to like prompts are alike.
    """
    t = student_quantile((1 + confidence) / 2, shares.degrees)
    number = effective_trials(shares)
    rate = (shares.share * number + t**2 / 2) / (number + t**2)
    adjusted = errors.adjusted()
    truth = _truth(rate, adjusted)
    of_hits, of_rejections = adjusted.variances
    shift = 2 * t**2 * (truth * of_hits - (1 - truth) * of_rejections)
    of_rate = rate * (1 - rate) / (number + t**2)
    variance = of_rate + truth**2 * of_hits + (1 - truth) ** 2 * of_rejections
    half = t * np.sqrt(variance) / adjusted.power
    value = corrected_rate(shares, errors)
    low = np.minimum(np.clip(truth + shift - half, 0.0, 1.0), value)
    high = np.maximum(np.clip(truth + shift + half, 0.0, 1.0), value)
    valid = errors.tell_apart(t)
    return np.where(valid, low, np.nan), np.where(valid, high, np.nan)


def corrected_change(before: Shares, after: Shares, errors: ErrorRates) -> Array:
    """The change of the true rate, where the errors before are those after."""
    return np.asarray((after.share - before.share) / errors.power)


def corrected_change_bounds(
    before: Shares, after: Shares, errors: ErrorRates, confidence: float
) -> tuple[Array, Array]:
    """The interval of `corrected_change`, NaN where what is said may be a guess.

    MOVER joins that of the change which was seen with the error of what it is divided by.
    """
    t = student_quantile((1 + confidence) / 2, before.degrees)
    low, high = difference_bounds(before, after, confidence)
    difference, adjusted = after.share - before.share, errors.adjusted()
    change = corrected_change(before, after, errors)
    of_scale = t * np.abs(change) * np.sqrt(sum(adjusted.variances)) / adjusted.power
    below, above = (
        np.hypot(side / adjusted.power, of_scale) for side in (difference - low, high - difference)
    )
    valid = errors.tell_apart(t)
    return np.where(valid, change - below, np.nan), np.where(valid, change + above, np.nan)


# --- calibrate ------------------------------------------------------------------------------------


_NAME_A_RUN = "Name a run of the dharma task."

FILE, OF_VERDICTS = "judge_agreement.json", "judge_errors.json"
STATISTICS = StatisticsSettings()


@dataclass(frozen=True, slots=True)
class Standards:
    """Standards for a judge: labels, the judge of a run, or verdicts in place of both."""

    labels: Path | None
    opened: OpenedRun | None
    verdicts: Path | None
    #: So many replies of the run are rated again.
    limit: int


def calibrate(judge: Path | None, rubric: Path | None, standards: Standards) -> dict[str, Any]:
    """Measure a judge, the rules where no file describes one. Return the content of the JSON file.

    Verdicts measure the judge of the run. Raises `EquipoiseError`.
    """
    opened = standards.opened
    try:
        if opened and standards.verdicts:
            identity, sections = sections_of_verdicts(standards.verdicts, opened)
        else:
            model = open_judge(judge, rubric_of(rubric, opened) if judge else SHIPPED)
            identity, sections = model.identity, sections_of_agreement(model, standards)
    except DataError as error:
        raise EquipoiseError(error.code, str(error), "Correct the file.") from None
    except (CalibrationError, OutcomeError) as error:
        raise EquipoiseError(error.code, str(error), "See docs/dharma.md.") from None
    head = {"schema": 2, "judge": identity, "confidence": STATISTICS.confidence}
    return {**head, "unsealed": opened.unsealed if opened else (), "sections": sections}


def sections_of_agreement(judge: Judge, standards: Standards) -> dict[str, Any]:
    """Return how far it agrees with labels and with the judge of the run."""
    sections = {}
    if path := standards.labels:
        labels = agreement_with_labels(judge, import_prompts(path))
        sections["labels"] = section(f"labels of {path.name}", judge.identity, labels)
    if opened := standards.opened:
        scored = read_stage_rollouts(opened.run, "final")
        ratings = agreement_with_ratings(judge, policy_of(opened), *scored, standards.limit)
        sections["judges"] = section("the judge of the run", judge.identity, ratings)
    return sections


def write_calibration(
    content: dict[str, Any], standards: Standards, folder: Path | None, reporter: Reporter
) -> None:
    """Write it to a folder, else into the run and its report, else to the current folder."""
    for part in content["sections"].values():
        measures = added_section(RunFiles(), {**part, "counts": {}})
        print_sections(reporter, [measures], FILE)
    opened, name = standards.opened, OF_VERDICTS if standards.verdicts else FILE
    if folder or not opened:
        path = (folder or Path()) / name
        write_json(path, content)
        reporter.say(f"\nagreement: {path}")
        return
    run = opened.run
    with owning(run.root, reporter.warn):
        write_json(run.added / name, content)
        if not opened.unsealed:
            record_files(run, run.added)
        report = write_report(run.root, unsealed=opened.unsealed)
    reporter.say(f"\nagreement: {run.added / name}\nreport: {report}")


def show_plan(judge: str, standards: Standards, reporter: Reporter) -> None:
    """Tabulate what a judge would rate."""
    rows, opened = [], standards.opened
    try:
        if path := standards.labels:
            rows.append((f"labels of {path.name}", f"{len(import_prompts(path)):,}"))
        if path := standards.verdicts:
            rows.append((f"replies of {path.name}", f"{len(import_verdicts(path)):,}"))
        elif opened:
            rollouts, _ = read_stage_rollouts(opened.run, "final")
            number = min(standards.limit, len(rollouts))
            rows.append((f"replies of {opened.run.root}", f"{number:,}"))
    except DataError as error:
        raise EquipoiseError(error.code, str(error), "Correct the file.") from None
    columns = [Column("what", folds=True), Column("to rate, at most")]
    reporter.table(f"What {judge} would judge", columns, rows)


def rubric_of(path: Path | None, opened: OpenedRun | None) -> Rubric:
    """Return a file's rubric, else the run's, else the shipped one. Raises `EquipoiseError`."""
    try:
        if path:
            return read_rubric(path)
        return rubric_of_run(opened) if opened else SHIPPED
    except YamlFileError as error:
        raise UsageError(error.code, str(error), "Correct the file, see docs/dharma.md.") from None


def rubric_of_run(opened: OpenedRun) -> Rubric:
    """Return the rubric of a run's judge. Raises `EquipoiseError` if it has changed since."""
    named = keys_of(opened.run).get("rubric")
    rubric = read_rubric(Path(named)) if named else SHIPPED
    sources = opened.provenance.get("sources", {})
    texts = {"judge/label_prompt": rubric.label_prompt, "judge/rate_prompt": rubric.rate_prompt}
    if any(sources.get(name, hash_text(text)) != hash_text(text) for name, text in texts.items()):
        raise EquipoiseError(
            "calibrate.changed-rubric",
            f"since the run its rubric has changed: {named or 'the shipped one'}",
            "Put back what it was, or name the one to judge by with --rubric.",
        )
    return rubric


def keys_of(run: RunDirectory) -> dict[str, Any]:
    """The keys of `env.dharma` of a run. Raises `EquipoiseError` where it has none."""
    try:
        return dict(read_yaml(run.config)["env"]["dharma"])
    except OSError as error:
        raise EquipoiseError(
            "calibrate.no-run",
            f"{run.root} is no run: {run.config.name}: {error.strerror}",
            _NAME_A_RUN,
        ) from None
    except (TypeError, KeyError, ValueError, yaml.YAMLError):
        raise EquipoiseError(
            "calibrate.other-task", f"{run.config} has no env.dharma", _NAME_A_RUN
        ) from None


def open_judge(path: Path | None, rubric: Rubric) -> Judge:
    """Return the judge that a YAML file describes; the rules without one. Raises `UsageError`."""
    try:
        settings = ModelSettings()
        if path:
            settings = check_tree(path, read_tree(path), ModelSettings, strict=False)
        judge = make_judge(settings, rubric)
    except YamlFileError as error:
        raise UsageError(error.code, str(error), "See docs/dharma.md.") from None
    except ValueError as error:
        raise UsageError(
            "calibrate.invalid-judge", f"no judge from {path}: {error}", "See docs/dharma.md."
        ) from None
    if judge is None:
        from equipoise.models.chat import HuggingFaceChatModel  # imports torch

        return ModelJudge(HuggingFaceChatModel(str(settings.model_name)), rubric=rubric)
    return judge


def policy_of(opened: OpenedRun) -> Policy:
    """The policy that decided in a run. Raises `EquipoiseError` where it cannot be had any more."""
    try:
        policy = load_policy(PolicySettings.model_validate(keys_of(opened.run).get("policy", {})))
    except (ValidationError, SetupError) as error:
        raise EquipoiseError(
            "calibrate.unusable-policy",
            f"the policy of the run cannot be used: {error}",
            "Put it back where the run's config.yaml names it.",
        ) from None
    sources = opened.provenance.get("sources", {})
    changed = [n for n, hashed in policy.sources.items() if sources.get(f"policy/{n}") != hashed]
    if changed:
        raise EquipoiseError(
            "calibrate.changed-policy",
            f"since the run its policy has changed: {', '.join(changed)}",
            "Put back what it was, or the two judges are not alike.",
        )
    return policy


# --- verdicts of a person ------------------------------------------------------------------------


def sections_of_verdicts(path: Path, opened: OpenedRun) -> tuple[str, dict[str, Any]]:
    """The identity of the run's judge, its errors, and the rates of the run corrected by them."""
    replies = import_verdicts(path)
    environment = environment_of(opened)
    agreement = agreement_with_verdicts(replies, environment.score(replies))
    judge = environment.sources()["judge"]
    sections = {
        "verdicts": section(f"verdicts of {path.name}", judge, agreement),
        "corrected": {
            "title": "Violation rates, corrected by the errors of the judge",
            "note": f"As {judge} says, and as its errors on {agreement.judged:,} replies of "
            f"{path.name} let the truth be seen (Rogan & Gladen; docs/statistics.md). This holds "
            "where the judge errs on the replies of the run as it does on those, before training "
            "as after. A figure that is missing: the judge may be one that guesses.",
            "n": agreement.judged,
            "failed": agreement.failed,
            "metrics": corrected_figures(opened, environment, agreement.measurement),
            "counts": {},
        },
    }
    return judge, sections


def environment_of(opened: OpenedRun) -> DharmaEnvironment:
    """Rebuild the environment of the run. Raises `EquipoiseError` if it is not as it was."""
    try:
        environment = build_environment(
            f"{DharmaEnvironment.__module__}.{DharmaEnvironment.__name__}",
            keys_of(opened.run),
            str(opened.run.root.parent / "cache"),
        )
    except ValidationError as error:
        raise EquipoiseError(
            "calibrate.invalid-settings",
            f"the settings of the run cannot be used: {error}",
            "Put back what its config.yaml names.",
        ) from None
    assert isinstance(environment, DharmaEnvironment)
    sources, run_sources = environment.sources(), opened.provenance.get("sources", {})
    if changed := sorted(name for name in sources if sources[name] != run_sources.get(name)):
        raise EquipoiseError(
            "calibrate.changed-sources",
            f"since the run {', '.join(changed)} changed",
            "Put back what it was: the errors of another judge correct nothing.",
        )
    return environment


def corrected_figures(
    opened: OpenedRun, environment: DharmaEnvironment, agreement: Measurement
) -> dict[str, Figures]:
    """Each rate of violations of both stages, and its change, as judged and corrected."""
    stages = {
        stage: environment.measure(*read_stage_rollouts(opened.run, stage))
        for stage in ("baseline", "final")
        if opened.run.rollouts(stage).exists()
    }
    figures: dict[str, Figures] = {}
    for name in Violations.model_fields:
        kinds = [shares_of(agreement, f"{name}_{kind}") for kind in RIGHT]
        if kinds[0] is None or kinds[1] is None:
            continue
        errors, rate = ErrorRates.of(kinds[0], kinds[1]), f"{name}_violation_rate"
        rates = {stage: shares_of(measured, rate) for stage, measured in stages.items()}
        by_stage = {stage: shares for stage, shares in rates.items() if shares is not None}
        for stage, shares in by_stage.items():
            bounds = corrected_bounds(shares, errors, STATISTICS.confidence)
            metric = {rate: stages[stage].metrics[rate]}
            alone = replace(stages[stage], metrics=metric, breakdowns={})
            judged = headline_figures(alone, STATISTICS)[rate]
            figures[f"{stage}_{rate}_as_judged"] = judged
            figures[f"{stage}_{rate}_corrected"] = figure(corrected_rate(shares, errors), bounds)
        if len(by_stage) == len(stages) == 2:
            pair = by_stage["baseline"], by_stage["final"]
            bounds = corrected_change_bounds(*pair, errors, STATISTICS.confidence)
            figures[f"change_of_{rate}_corrected"] = figure(corrected_change(*pair, errors), bounds)
    return figures


def shares_of(measurement: Measurement, name: str) -> Shares | None:
    """A metric's hits and trials by cluster; None where it has not been measured on two."""
    clusters = merge_clusters(measurement.clusters, measurement.sums, measurement.strata)
    metric = measurement.metrics.get(name)
    shares = Shares.of(metric, clusters.sums, clusters.strata) if metric else None
    return shares if shares is not None and shares.trials.sum() > 0 else None


def figure(value: Array, bounds: tuple[Array, Array]) -> Figures:
    """A figure with its interval; None for what is not defined, and for all of it without one."""
    low, high = (json_number(float(bound)) for bound in bounds)
    return {"value": None if low is None else json_number(float(value)), "low": low, "high": high}


# --- what is shown -------------------------------------------------------------------------------


def section(standard: str, judge: str, agreement: Agreement) -> dict[str, Any]:
    """Return the report's section on one comparison."""
    return {
        "title": f"Agreement of the judge with {standard}",
        "note": f"Judge: {judge}. {agreement.judged:,} judged, {agreement.failed:,} "
        "failed. Kappa is weighted by squared distance; 1 is full agreement, 0 what chance gives. "
        f"Tables: rows {standard}, columns this judge.",
        "n": agreement.judged,
        "failed": agreement.failed,
        "metrics": headline_figures(agreement.measurement, STATISTICS),
        "counts": agreement.counts,
    }
