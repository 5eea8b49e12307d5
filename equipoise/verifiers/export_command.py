"""`recipes/export_verifiers.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Make the package with which verifiers, and so prime-rl, trains on a task's rewards.
RUN has the environment's settings, the prompts and the frozen model's rollouts; it is not changed.
"""
_EXAMPLES = """\
examples:
  uv run recipes/export_verifiers.py results/TASK/RUN --output verifiers/TASK
  uv pip install -e verifiers/TASK
  vf-eval equipoise-TASK --client.base-url http://localhost:8000/v1 --model MODEL --no-push
"""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line asks for."""

    run: Path
    output: Path
    unsealed: bool


def parse_options(arguments: Sequence[str] | None = None) -> ExportOptions:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_args(arguments)
    return ExportOptions(given.run, given.output, given.unsealed)


def run(options: ExportOptions, reporter: Reporter) -> None:
    """Write the folder. Raises `EquipoiseError`."""
    from equipoise.verifiers.export import export  # it brings what takes a second to import

    for line in export(RunDirectory(options.run), options.output, unsealed=options.unsealed):
        reporter.say(line)
