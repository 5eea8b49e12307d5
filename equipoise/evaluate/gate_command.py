"""`equipoise gate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from equipoise.run.directory import usable_folder
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import Repeated, Unsealed, option


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Say whether AFTER is worse than BEFORE by more than is allowed.

    Compared are each task's objective and guards, in pairs on the same items. Exit code 0: passed,
    everything is shown to be within its margin; 3: failed, something is shown to be beyond it; 4:
    not enough data for either. A side is an audit, a row of one (AUDIT:ROW), or the folder of a run
    (its last stage) or of a stage. Nothing is generated and nothing is scored.

    Examples:
        equipoise evaluate all --model before=my/model --model after=my/new --run-name ship
        equipoise gate results/audits/ship:before results/audits/ship:after --markdown gate.md
        equipoise gate results/TASK/RUN/baseline results/TASK/RUN/final --margin reward=0.05
    """

    before: Annotated[str, Positional, option("the model in use: AUDIT:ROW or DIR", "BEFORE")]
    after: Annotated[str, Positional, option("the one that is to replace it", "AFTER")]
    margin: Annotated[
        Repeated,
        option("how far a metric may move, in its unit; also of one without a guard", "NAME=VALUE"),
    ] = ()
    output_dir: Annotated[Path, option("where gate.json goes", "DIR")] = Path("results/gate")
    junit: Annotated[
        Path | None, option("write JUnit's XML, a test case for each metric", "FILE")
    ] = None
    markdown: Annotated[Path | None, option("write a table for a pull request", "FILE")] = None
    unsealed: Unsealed = False


def run(options: GateOptions, reporter: Reporter) -> None:
    """Gate. Raises `EquipoiseError`, also for a verdict that is no pass."""
    usable_folder(options.output_dir, "--output-dir")
    for flag, path in (("--junit", options.junit), ("--markdown", options.markdown)):
        if path is not None:
            usable_folder(path.parent, flag)
    from equipoise.evaluate.gate import gate_stored, read_margins
    from equipoise.evaluate.gate_report import write_gate

    margins = read_margins(options.margin)
    result = gate_stored(
        options.before, options.after, margins, reporter, unsealed=options.unsealed
    )
    write_gate(result, options.output_dir, options.junit, options.markdown, reporter)
