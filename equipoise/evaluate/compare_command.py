"""`equipoise compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from equipoise.errors import UsageError
from equipoise.run.directory import usable_folder
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import Unsealed, option


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Compare what was evaluated, each entry with the first.

    By metric: the paired difference with its interval, p after Holm's correction, a verdict, and
    guards kept, lost or not shown. An entry is the folder of a run (its last stage) or of a stage;
    NAME=DIR names it, and NAME=DIR,DIR,... are several seeds of one configuration, compared seed
    by seed. Nothing is generated and nothing is scored.

    Examples:
        equipoise compare results/TASK/RUN/baseline results/TASK/RUN/final
        equipoise compare results/TASK/FIRST results/TASK/SECOND results/TASK/THIRD
        equipoise compare before=r/a-1,r/a-2 after=r/b-1,r/b-2 --output-dir over-seeds
    """

    entries: Annotated[tuple[str, ...], Positional, option("DIR, NAME=DIR, NAME=DIR,DIR", "ENTRY")]
    output_dir: Annotated[Path, option("where compare.json and compare.html go", "DIR")] = Path(
        "results/comparison"
    )
    different_items: Annotated[bool, option("compare on the prompts that both were asked")] = False
    different_environments: Annotated[
        bool, option("compare although scores were given with other settings, models or code")
    ] = False
    unsealed: Unsealed = False
    dry_run: Annotated[bool, option("show the comparison, and write nothing")] = False


def run(options: CompareOptions, reporter: Reporter) -> None:
    """Compare. Raises `EquipoiseError`."""
    if len(options.entries) < 2:
        raise UsageError(
            "name two entries at least", "Both stages of one run are DIR/baseline DIR/final."
        )
    if not options.dry_run:
        usable_folder(options.output_dir, "--output-dir")
    # matplotlib, which the page brings, takes a second to import.
    from equipoise.evaluate.compare import compare_entries, print_compared, write_comparison
    from equipoise.evaluate.entries import Checks, entries_of

    checks = Checks(options.different_items, options.different_environments)
    with reporter.progress("reading"):
        entries = entries_of(options.entries, unsealed=options.unsealed)
    compared = compare_entries(entries, checks, reporter)
    if options.dry_run:
        print_compared(compared, reporter)
        return
    write_comparison(compared, options.output_dir, reporter)
