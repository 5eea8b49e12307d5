"""`equipoise gate`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.run.directory import usable_folder
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Say whether AFTER is worse than BEFORE by more than is allowed: each task's objective and guards, in
pairs on the same items. Exit code 0: passed, everything is shown to be within its margin; 3:
failed, something is shown to be beyond it; 4: not enough data for either. A side is an audit, a row
of one (AUDIT:ROW), or the folder of a run (its last stage) or of a stage. Nothing is generated and
nothing is scored.
"""
_EXAMPLES = """\
examples:
  equipoise evaluate --task all --model before=my/model --model after=my/new --run-name ship
  equipoise gate results/audits/ship:before results/audits/ship:after --markdown gate.md
  equipoise gate results/TASK/RUN/baseline results/TASK/RUN/final --margin reward=0.05
"""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the command line asks for."""

    before: str
    after: str
    margin: tuple[str, ...]
    output_dir: Path
    junit: Path | None
    markdown: Path | None
    unsealed: bool


def parse_options(arguments: Sequence[str] | None = None) -> GateOptions:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="BEFORE", help="the model that is in use: AUDIT:ROW, DIR")
    parser.add_argument("after", metavar="AFTER", help="the one that is to replace it")
    parser.add_argument(
        "--margin",
        action="append",
        default=[],
        metavar="[TASK/]NAME=VALUE",
        help="how far a metric may move, in its unit; of one without a guard too",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("results/gate"),
        metavar="DIR",
        help="where gate.json goes (default: %(default)s)",
    )
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="write JUnit's XML, a test case for each metric"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write a table for a pull request"
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_args(arguments)
    return GateOptions(**vars(given) | {"margin": tuple(given.margin)})


def run(options: GateOptions, reporter: Reporter) -> None:
    """Gate. Raises `EquipoiseError`, also for a verdict that is no pass."""
    usable_folder(options.output_dir, "--output-dir")
    for flag, path in (("--junit", options.junit), ("--markdown", options.markdown)):
        if path is not None:
            usable_folder(path.parent, flag)
    from equipoise.audit.gate import gate_stored, read_margins
    from equipoise.audit.gate_report import write_gate

    margins = read_margins(options.margin)
    result = gate_stored(
        options.before, options.after, margins, reporter, unsealed=options.unsealed
    )
    write_gate(result, options.output_dir, options.junit, options.markdown, reporter)
