"""`equipoise calibrate`, a verb of the dharma task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from data_prep.files import write_json
from equipoise.run.directory import usable_folder
from equipoise.run.seals import open_run
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import option


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """Measure how far the judge of the dharma task errs beside a person's labels.

    LABELS is JSONL, see docs/judges.md. Of each violation: accuracy, kappa, sensitivity and
    specificity, with intervals. With --run the violation rates of that run are corrected by these
    errors; its judge, rubric and policy must be those of --judge.

    Examples:
        equipoise calibrate labels.jsonl --judge judge.yaml
        equipoise calibrate labels.jsonl --judge judge.yaml --run results/dharma/RUN
    """

    labels: Annotated[Path, Positional, option("JSONL of labelled replies", "LABELS")]
    judge: Annotated[
        Path | None, option("YAML with the keys of env.dharma (default: the answer key)", "FILE")
    ] = None
    run: Annotated[Path | None, option("a run of the dharma task", "DIR")] = None
    output_dir: Annotated[Path, option("where judge_errors.json goes", "DIR")] = Path()


def run(options: CalibrateOptions, reporter: Reporter) -> None:
    """Measure the judge. Raises `EquipoiseError`."""
    opened = open_run(options.run) if options.run else None
    # It brings what takes seconds to import.
    from equipoise.evaluate.calibrate import calibrate

    content = calibrate(options.labels, options.judge, opened, reporter)
    usable_folder(options.output_dir, "--output-dir")
    path = options.output_dir / "judge_errors.json"
    write_json(path, content)
    reporter.say(f"\ncalibration: {path}")
