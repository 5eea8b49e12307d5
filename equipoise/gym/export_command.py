"""`recipes/export_gym.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.run.directory import RunDirectory
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Make the folder with which NeMo Gym serves a task's rewards: server, configuration, manifest, data.
RUN has the environment's settings, the prompts and the frozen model's rollouts; it is not changed.
"""
_EXAMPLES = """\
examples:
  uv run recipes/export_gym.py results/TASK/RUN --output gym/TASK
  gym env validate gym/TASK/environments/equipoise_TASK/manifest.yaml
"""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line asks for."""

    run: Path
    output: Path
    in_flight: int | None
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
    parser.add_argument(
        "--in-flight",
        type=int,
        metavar="N",
        help="the limit of requests that Gym is started with (num_samples_in_parallel), if any",
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_args(arguments)
    return ExportOptions(given.run, given.output, given.in_flight, given.unsealed)


def run(options: ExportOptions, reporter: Reporter) -> None:
    """Write the folder. Raises `EquipoiseError`."""
    from equipoise.gym.export import export  # it brings what takes a second to import

    for line in export(
        RunDirectory(options.run), options.output, options.in_flight, unsealed=options.unsealed
    ):
        reporter.say(line)
