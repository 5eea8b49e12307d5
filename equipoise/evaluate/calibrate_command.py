"""`equipoise calibrate`, a verb of one task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from equipoise.errors import UsageError
from equipoise.run.directory import usable_folder
from equipoise.run.seals import open_run, unsealed_note
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import DryRun, Unsealed, option

RULES = "rules"


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Measure how far a judge can be trusted: its agreement with labels, and with a run.

    JUDGE is the word rules, or a YAML file with the keys of the run's judge. With a run, its final
    rollouts are rated again, what its own judge said is taken from the file, and the report shows
    the result. A judge that is a model is told the rubric of the run, or that of --rubric, or else
    the shipped one.

    With a person's verdicts the run's own judge is measured, and no other one is asked: it rates
    the same replies, and the violation rates of the run are corrected by its errors.

    Examples:
        equipoise calibrate --judge rules --prompts labelled.jsonl
        equipoise calibrate --judge judge.yaml --run results/dharma/RUN
        equipoise calibrate --verdicts verdicts.jsonl --run results/dharma/RUN
    """

    judge: Annotated[str, option("rules, or a YAML file", "FILE")] = RULES
    prompts: Annotated[Path | None, option("JSONL with tier and scope", "FILE")] = None
    run: Annotated[Path | None, option("a run of the dharma task", "DIR")] = None
    rubric: Annotated[Path | None, option("for a judge that is a model", "FILE")] = None
    verdicts: Annotated[Path | None, option("JSONL, see docs/dharma.md", "FILE")] = None
    limit: Annotated[int, option("replies to rate again", "N")] = 400
    output_dir: Annotated[
        Path | None, option("where the JSON goes (default: the run, or this folder)", "DIR")
    ] = None
    unsealed: Unsealed = False
    dry_run: DryRun = False

    def check(self) -> None:
        """Raise `UsageError` for words that do not go together."""
        if not (self.prompts or self.run) or self.limit < 1:
            raise UsageError(
                "calibrate.no-prompts",
                "--prompts or --run is needed, and a --limit of at least 1",
                "",
            )
        if self.verdicts and (not self.run or self.prompts or self.judge != RULES):
            raise UsageError(
                "calibrate.exclusive-options",
                "--verdicts measures the judge of a --run, and that one alone",
                "",
            )
        if self.rubric and self.judge == RULES:
            raise UsageError(
                "calibrate.rubric-without-judge",
                "--rubric is what a model is told that judges",
                "Name one with --judge.",
            )


def run(options: CalibrateOptions, reporter: Reporter) -> None:
    """Measure the judge. Raises `EquipoiseError`."""
    options.check()
    opened = open_run(options.run, unsealed=options.unsealed) if options.run else None
    if opened and opened.unsealed:
        reporter.warn(unsealed_note(opened.unsealed))
    # It brings what takes seconds to import.
    from equipoise.evaluate.calibrate import Standards, calibrate, show_plan, write_calibration

    standards = Standards(options.prompts, opened, options.verdicts, options.limit)
    if options.dry_run:
        show_plan(
            "the judge of the run" if options.verdicts else options.judge, standards, reporter
        )
        return
    if options.output_dir:
        usable_folder(options.output_dir, "--output-dir")
    judge = None if options.judge == RULES else Path(options.judge)
    content = calibrate(judge, options.rubric, standards)
    write_calibration(content, standards, options.output_dir, reporter)
