"""How far the judge of one task can be trusted: by labels, by a run, by a person's verdicts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from data_prep.dharma.prompts import import_prompts, import_verdicts
from data_prep.faults import DataError
from data_prep.files import write_json
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
from equipoise.evaluate.calibrate_command import RULES, CalibrateOptions
from equipoise.models.task_environment import build_environment
from equipoise.report.beside import added_section
from equipoise.report.report import write_report
from equipoise.report.run_files import RunFiles
from equipoise.report.terminal import print_sections
from equipoise.run.directory import RunDirectory, usable_folder
from equipoise.run.kept_files import OpenedRun, open_run, record_files, unsealed_note
from equipoise.run.ownership import owning
from equipoise.run.rollouts import read_stage_rollouts
from equipoise.statistics.evaluation import Figures, headline_figures, json_number
from equipoise.statistics.intervals import StatisticsSettings, merge_clusters
from equipoise.statistics.misclassification import (
    ErrorRates,
    corrected_bounds,
    corrected_change,
    corrected_change_bounds,
    corrected_rate,
)
from equipoise.statistics.shares import Shares
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

FILE, OF_VERDICTS = "judge_agreement.json", "judge_errors.json"
STATISTICS = StatisticsSettings()


def calibrate(options: CalibrateOptions, reporter: Reporter) -> None:
    """Ask the judge, then print and write the agreement. Raises `EquipoiseError`."""
    opened = open_run(options.run, unsealed=options.unsealed) if options.run else None
    unsealed = opened.unsealed if opened else ()
    if unsealed:
        reporter.warn(unsealed_note(unsealed))
    if options.dry_run:
        show_plan(options, opened, reporter)
        return
    if options.output_dir:
        usable_folder(options.output_dir, "--output-dir")
    try:
        if opened and options.verdicts:
            judge, sections = sections_of_verdicts(options.verdicts, opened)
        else:
            judge, sections = sections_of_agreement(options, opened)
    except DataError as error:
        raise EquipoiseError(str(error), "Correct the file.") from None
    except (CalibrationError, OutcomeError) as error:
        raise EquipoiseError(str(error), "See docs/dharma.md.") from None
    for part in sections.values():
        show(reporter, part)
    head = {"schema": 2, "judge": judge, "confidence": STATISTICS.confidence}
    content = {**head, "unsealed": unsealed, "sections": sections}
    name = OF_VERDICTS if options.verdicts else FILE
    if opened and not options.output_dir:
        add_to_run(opened, name, content, reporter)
        return
    path = (options.output_dir or Path()) / name
    write_json(path, content)
    reporter.say(f"\nagreement: {path}")


def sections_of_agreement(
    options: CalibrateOptions, opened: OpenedRun | None
) -> tuple[str, dict[str, Any]]:
    """The judge's identity, and how far it agrees with labels and with the judge of the run."""
    judge = open_judge(options.judge, rubric_of(options, opened))
    sections = {}
    if options.prompts:
        labels = agreement_with_labels(judge, import_prompts(options.prompts))
        sections["labels"] = section(f"labels of {options.prompts.name}", judge.identity, labels)
    if opened:
        scored = read_stage_rollouts(opened.run, "final")
        ratings = agreement_with_ratings(judge, policy_of(opened), *scored, options.limit)
        sections["judges"] = section("the judge of the run", judge.identity, ratings)
    return judge.identity, sections


def add_to_run(opened: OpenedRun, name: str, content: dict[str, Any], reporter: Reporter) -> None:
    """Write the agreement into the run, and the report that shows it."""
    run = opened.run
    with owning(run.root, reporter.warn):
        write_json(run.added / name, content)
        if not opened.unsealed:
            record_files(run, run.added)
        report = write_report(run.root, unsealed=opened.unsealed)
    reporter.say(f"\nagreement: {run.added / name}\nreport: {report}")


def show_plan(options: CalibrateOptions, opened: OpenedRun | None, reporter: Reporter) -> None:
    """Tabulate what would be rated."""
    rows = []
    try:
        if options.prompts:
            labelled = len(import_prompts(options.prompts))
            rows.append((f"labels of {options.prompts.name}", f"{labelled:,}"))
        if options.verdicts:
            decided = len(import_verdicts(options.verdicts))
            rows.append((f"replies of {options.verdicts.name}", f"{decided:,}"))
        elif opened:
            rollouts, _ = read_stage_rollouts(opened.run, "final")
            rows.append((f"replies of {options.run}", f"{min(options.limit, len(rollouts)):,}"))
    except DataError as error:
        raise EquipoiseError(str(error), "Correct the file.") from None
    columns = [Column("what", folds=True), Column("to rate, at most")]
    judge = "the judge of the run" if options.verdicts else options.judge
    reporter.table(f"What {judge} would judge", columns, rows)


def rubric_of(options: CalibrateOptions, opened: OpenedRun | None) -> Rubric:
    """That of --rubric, else the run's, else the shipped one. Raises `EquipoiseError`."""
    if options.judge == RULES:
        return SHIPPED
    try:
        if options.rubric:
            return read_rubric(options.rubric)
        return rubric_of_run(opened) if opened else SHIPPED
    except YamlFileError as error:
        raise UsageError(str(error), "Correct the file, see docs/dharma.md.") from None


def rubric_of_run(opened: OpenedRun) -> Rubric:
    """Return the rubric of a run's judge. Raises `EquipoiseError` if it has changed since."""
    named = keys_of(opened.run).get("rubric")
    rubric = read_rubric(Path(named)) if named else SHIPPED
    sources = opened.provenance.get("sources", {})
    texts = {"judge/label_prompt": rubric.label_prompt, "judge/rate_prompt": rubric.rate_prompt}
    if any(sources.get(name, hash_text(text)) != hash_text(text) for name, text in texts.items()):
        raise EquipoiseError(
            f"since the run its rubric has changed: {named or 'the shipped one'}",
            "Put back what it was, or name the one to judge by with --rubric.",
        )
    return rubric


def keys_of(run: RunDirectory) -> dict[str, Any]:
    """The keys of `env.dharma` of a run. Raises `EquipoiseError` where it has none."""
    try:
        return dict(yaml.safe_load(read_yaml(run.config))["env"]["dharma"])
    except OSError as error:
        message = f"{run.root} is no run: {run.config.name}: {error.strerror}"
    except (TypeError, KeyError, ValueError, yaml.YAMLError):
        message = f"{run.config} has no env.dharma"
    raise EquipoiseError(message, "Name a run of the dharma task.")


def open_judge(name: str, rubric: Rubric) -> Judge:
    """The rules, or the judge that a YAML file describes. Raises `UsageError`."""
    try:
        tree = {} if name == RULES else read_tree(Path(name))
        settings = check_tree(Path(name), tree, ModelSettings, strict=False)
        judge = make_judge(settings, rubric)
    except YamlFileError as error:
        raise UsageError(str(error), "See docs/dharma.md.") from None
    except ValueError as error:
        raise UsageError(f"no judge from {name}: {error}", "See docs/dharma.md.") from None
    if judge is None:
        from equipoise.models.chat import HuggingFaceChatModel  # imports torch

        return ModelJudge(HuggingFaceChatModel(str(settings.model_name)), rubric=rubric)
    return judge


def policy_of(opened: OpenedRun) -> Policy:
    """The policy that decided in a run. Raises `EquipoiseError` where it cannot be had any more."""
    try:
        policy = load_policy(PolicySettings.model_validate(keys_of(opened.run).get("policy", {})))
    except (ValidationError, SetupError) as error:
        message = f"the policy of the run cannot be used: {error}"
        raise EquipoiseError(message, "Put it back where the run's config.yaml names it.") from None
    sources = opened.provenance.get("sources", {})
    changed = [n for n, hashed in policy.sources.items() if sources.get(f"policy/{n}") != hashed]
    if changed:
        message = f"since the run its policy has changed: {', '.join(changed)}"
        raise EquipoiseError(message, "Put back what it was, or the two judges are not alike.")
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
        message = f"the settings of the run cannot be used: {error}"
        raise EquipoiseError(message, "Put back what its config.yaml names.") from None
    assert isinstance(environment, DharmaEnvironment)
    sources, run_sources = environment.sources(), opened.provenance.get("sources", {})
    if changed := sorted(name for name in sources if sources[name] != run_sources.get(name)):
        raise EquipoiseError(
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
            judged = headline_figures(only(stages[stage], rate), STATISTICS)[rate]
            figures[f"{stage}_{rate}_as_judged"] = judged
            figures[f"{stage}_{rate}_corrected"] = figure(corrected_rate(shares, errors), bounds)
        if len(by_stage) == len(stages) == 2:
            pair = by_stage["baseline"], by_stage["final"]
            bounds = corrected_change_bounds(*pair, errors, STATISTICS.confidence)
            figures[f"change_of_{rate}_corrected"] = figure(corrected_change(*pair, errors), bounds)
    return figures


def only(measurement: Measurement, name: str) -> Measurement:
    """The measurement with one of its metrics."""
    return replace(measurement, metrics={name: measurement.metrics[name]}, breakdowns={})


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


def show(reporter: Reporter, part: dict[str, Any]) -> None:
    """Print the measures of one comparison."""
    measures = {**part, "counts": {}}
    print_sections(reporter, [added_section(RunFiles(), measures)], FILE)
