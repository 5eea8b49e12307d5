"""`equipoise compare` and `equipoise gate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from equipoise.config.task_code import import_own_code
from equipoise.errors import UsageError
from equipoise.run.directory import usable_folder
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import (
    OwnCode,
    Repeated,
    Unsealed,
    option,
)


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
    own_code: OwnCode = None
    dry_run: Annotated[bool, option("show the comparison, and write nothing")] = False


def compare(options: CompareOptions, reporter: Reporter) -> None:
    """Compare what was evaluated. Raises `EquipoiseError`."""
    if len(options.entries) < 2:
        raise UsageError(
            "compare.too-few-entries",
            "name two entries at least",
            "Both stages of one run are DIR/baseline DIR/final.",
        )
    if options.own_code:
        import_own_code(options.own_code)
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


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Say whether AFTER is worse than BEFORE by more than is allowed.

    Compared are each task's objective and guards, in pairs on the same items. Exit code 0: passed,
    everything is shown to be within its margin; 3: failed, something is shown to be beyond it; 4:
    not enough data for either. A side is an audit, a row of one (AUDIT:ROW), or the folder of a run
    (its last stage) or of a stage, with the other tasks that it asked. Nothing is generated and
    nothing is scored.

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
    own_code: OwnCode = None


def gate(options: GateOptions, reporter: Reporter) -> None:
    """Gate. Raises `EquipoiseError`, also for a verdict that is no pass."""
    if options.own_code:
        import_own_code(options.own_code)
    usable_folder(options.output_dir, "--output-dir")
    for flag, path in (("--junit", options.junit), ("--markdown", options.markdown)):
        if path is not None:
            usable_folder(path.parent, flag)
    from equipoise.evaluate.gate import gate_stored, read_margins
    from equipoise.evaluate.gate_report import print_gate, write_gate

    margins = read_margins(options.margin)
    result = gate_stored(
        options.before, options.after, margins, reporter, unsealed=options.unsealed
    )
    path = options.output_dir / "gate.json"
    write_gate(result, path, options.junit, options.markdown)
    print_gate(result, path, reporter)
