"""`recipes/compare.py`: its command line, and what it does."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.run.directory import usable_folder
from equipoise.run.kept_files import UNSEALED, UNSEALED_HELP
from equipoise.terminal.console import Reporter

_DESCRIPTION = """\
Compare what was evaluated, each entry with the first: by metric the paired difference with its
interval, p after Holm's correction, a verdict, and guards kept, lost or not shown. An entry is the
folder of a run (its last stage) or of a stage; NAME=DIR names it, and NAME=DIR,DIR,... are several
seeds of one configuration, compared seed by seed. Nothing is generated and nothing is scored.
"""
_EXAMPLES = """\
examples:
  uv run recipes/compare.py results/TASK/RUN/baseline results/TASK/RUN/final
  uv run recipes/compare.py results/TASK/FIRST results/TASK/SECOND results/TASK/THIRD
  uv run recipes/compare.py before=r/a-1,r/a-2,r/a-3 after=r/b-1,r/b-2,r/b-3 --output over-seeds
"""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command line asks for."""

    entries: tuple[str, ...]
    output: Path
    different_items: bool
    different_environments: bool
    unsealed: bool


def parse_options(arguments: Sequence[str] | None = None) -> CompareOptions:
    """Read the command line; wrong usage ends the program with code 2."""
    parser = argparse.ArgumentParser(
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("entries", nargs="+", metavar="ENTRY", help="DIR, NAME=DIR, NAME=DIR,DIR")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/comparison"),
        metavar="DIR",
        help="where compare.json and compare.html go (default: %(default)s)",
    )
    parser.add_argument(
        "--different-items",
        action="store_true",
        help="compare on the prompts that were asked of both, where others were asked too",
    )
    parser.add_argument(
        "--different-environments",
        action="store_true",
        help="compare although scores were given with other settings, models or code",
    )
    parser.add_argument(UNSEALED, action="store_true", help=UNSEALED_HELP)
    given = parser.parse_args(arguments)
    if len(given.entries) < 2:
        parser.error("name two entries at least; both stages of one run are DIR/baseline DIR/final")
    return CompareOptions(**vars(given) | {"entries": tuple(given.entries)})


def run(options: CompareOptions, reporter: Reporter) -> None:
    """Compare. Raises `EquipoiseError`."""
    usable_folder(options.output, "--output")
    # matplotlib, which the page brings, takes a second to import.
    from equipoise.audit.compare import compare_entries, write_comparison
    from equipoise.audit.entries import Checks, entries_of

    checks = Checks(options.different_items, options.different_environments)
    with reporter.progress("reading"):
        entries = entries_of(options.entries, unsealed=options.unsealed)
    write_comparison(compare_entries(entries, checks, reporter), options.output, reporter)
