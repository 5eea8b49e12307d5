"""Verbs on what was evaluated before: `compare`, `gate`, `calibrate`, `runs` and `view`."""

import webbrowser
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro.conf import Positional

from equipoise.config.load import import_own_code
from equipoise.config.words import OwnCode, Repeated, RunFolder, option
from equipoise.files.console import Column, Reporter, duration
from equipoise.files.disk import write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import usable_folder
from equipoise.run.seals import open_run

if TYPE_CHECKING:  # it brings what takes seconds to import
    from equipoise.evaluate.plan import PlannedTask


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Compare what was evaluated, each entry with the first.

    By metric: the paired difference with its interval, p after Holm's correction, a verdict, and
    guards (preserved, not preserved or inconclusive). An entry is the folder of a run (its last
    stage) or of a stage; NAME=DIR names it, and NAME=DIR,DIR,... are several seeds of one
    configuration, compared seed by seed. Nothing is generated and nothing is scored.

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
    own_code: OwnCode = None


def compare(options: CompareOptions, reporter: Reporter) -> None:
    if len(options.entries) < 2:
        raise UsageError(
            "compare.too-few-entries",
            "name two entries at least",
            "Both stages of one run are DIR/baseline DIR/final.",
        )
    if options.own_code:
        import_own_code(options.own_code)
    usable_folder(options.output_dir, "--output-dir")
    from equipoise.evaluate.compare import Checks, compare_entries, entries_of

    checks = Checks(options.different_items, options.different_environments)
    with reporter.progress("reading"):
        entries = entries_of(options.entries)
    with reporter.progress("comparing"):
        comparison = compare_entries(entries, checks)
    presentation = entries[0].runs[0].loaded.environment_class.presentation
    # matplotlib, which the page brings, takes a second to import.
    from equipoise.report.comparison import show_comparison

    show_comparison(comparison, presentation, options.output_dir, reporter)


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Say whether AFTER is worse than BEFORE by more than is allowed.

    Compared are each task's objective and guards, in pairs on the same items. Exit code 0: passed,
    everything is shown to be within its margin; 3: failed, something is shown to be beyond it; 4:
    not enough data for either. A side is an audit, a row of one (AUDIT:ROW), or the folder of a run
    (its last stage) or of a stage, with the other tasks that it asked. Nothing is generated and
    nothing is scored.

    --plan says how many prompts and replies each task needs so that an unchanged model passes in
    80% of cases. It takes the variances of BEFORE or, if that is a task or all, of our local
    models.

    Examples:
        equipoise gate --plan
        equipoise evaluate all --plan results/gate/plan.json --model before=A --model after=B
        equipoise gate results/audits/NAME:before results/audits/NAME:after --markdown gate.md
        equipoise gate results/TASK/RUN/baseline results/TASK/RUN/final --margin reward=0.05
    """

    before: Annotated[
        str | None, Positional, option("the model in use: AUDIT:ROW or DIR", "BEFORE")
    ] = None
    after: Annotated[str | None, Positional, option("the one that is to replace it", "AFTER")] = (
        None
    )
    plan: Annotated[bool, option("write plan.json: the replies that each task needs")] = False
    undecided: Annotated[
        Literal["fail", "pass"], option("exit code 4 or 0 where there are not enough data")
    ] = "fail"
    margin: Annotated[
        Repeated,
        option("how far a metric may move, in its unit; also of one without a guard", "NAME=VALUE"),
    ] = ()
    output_dir: Annotated[Path, option("where gate.html, gate.json and plan.json go", "DIR")] = (
        Path("results/gate")
    )
    junit: Annotated[
        Path | None, option("write JUnit's XML, a test case for each metric", "FILE")
    ] = None
    markdown: Annotated[Path | None, option("write a table for a pull request", "FILE")] = None
    own_code: OwnCode = None


def gate(options: GateOptions, reporter: Reporter) -> None:
    if options.own_code:
        import_own_code(options.own_code)
    usable_folder(options.output_dir, "--output-dir")
    for flag, path in (("--junit", options.junit), ("--markdown", options.markdown)):
        if path is not None:
            usable_folder(path.parent, flag)
    from equipoise.evaluate.gate import gate_stored, plan_gate, read_margins

    margins = read_margins(options.margin)
    if options.plan:
        if options.after:
            raise UsageError("gate.two-to-plan", "--plan takes one evaluation, or none", "")
        with reporter.progress("planning"):
            tasks = plan_gate(options.before, margins)
        _show_plan(tasks, options, reporter)
        return
    if not (options.before and options.after):
        raise UsageError("gate.too-few-sides", "name BEFORE and AFTER, or --plan", "")
    with reporter.progress("comparing"):
        result = gate_stored(options.before, options.after, margins)
    from equipoise.report.gate import remedy_of, show_gate, summary_of

    files = (options.output_dir / "gate.json", options.junit, options.markdown)
    show_gate(result, *files, reporter, undecided=options.undecided)
    summary = summary_of(result)
    if result.verdict == "failed":
        raise FailedGateError("gate.failed", f"failed: {summary}", "")
    if result.verdict != "passed":
        message, remedy = f"not enough data: {summary}", remedy_of(result)
        if options.undecided == "fail":
            raise UndecidedGateError("gate.undecided", message, remedy)
        reporter.warn(f"{message}\n{remedy}")
        return
    reporter.say(f"passed: {summary}")


def _show_plan(
    tasks: "Mapping[str, PlannedTask]", options: GateOptions, reporter: Reporter
) -> None:
    from equipoise.evaluate.gate import PASSES
    from equipoise.evaluate.plan import GatePlan

    path = options.output_dir / "plan.json"
    write_json(path, asdict(GatePlan(tasks)))
    names = ("prompts", "replies to each", "all replies", "tokens", "time")
    columns = [Column("task"), *map(Column, names), Column("needed for", folds=True)]
    rows = [
        (
            *(name, f"{t.prompts:,}", f"{t.replies:,}", f"{t.total:,}", f"{t.tokens:,}"),
            *(duration(t.seconds), t.decisive.replace("_", " ")),
        )
        for name, t in tasks.items()
    ]
    task = next(iter(tasks)) if len(tasks) == 1 else "all"
    source = options.before
    if source in (None, "all", task) and not Path(source or "all").exists():
        source = "our local models on one CPU core"
    reporter.table(f"Each model needs, with the variances of {source}", columns, rows)
    for name, planned in tasks.items():
        if planned.unknown:
            metrics = ", ".join(planned.unknown)
            reporter.warn(f"{name}: not measured, so not in the plan: {metrics}")
    if not any(planned.unknown for planned in tasks.values()):
        reporter.say(f"An unchanged model then passes in {PASSES:.0%} of cases.")
    reporter.say(
        f"plan: {path}\n"
        f"next: equipoise evaluate {task} --plan {path} --model before=MODEL --model after=MODEL"
    )


class FailedGateError(EquipoiseError):
    """Something is worse by more than its margin."""

    exit_code: ClassVar[int] = 3


class UndecidedGateError(EquipoiseError):
    """Too few data to pass or to fail."""

    exit_code: ClassVar[int] = 4


# --- calibrate ------------------------------------------------------------------------------------


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


def calibrate(options: CalibrateOptions, reporter: Reporter) -> None:
    run = open_run(options.run) if options.run else None
    # It brings what takes seconds to import.
    from data_prep.dharma.prompts import import_verdicts
    from equipoise.evaluate.calibrate import STATISTICS
    from equipoise.evaluate.calibrate import calibrate as measure_judge
    from equipoise.files.records import DataError
    from equipoise.report.words import figure_with_interval

    try:
        labelled = import_verdicts(options.labels)
    except DataError as error:
        raise EquipoiseError(error.code, str(error), "Correct the file.") from None
    measured = measure_judge(labelled, options.judge, run)
    replies = f"{measured.n} replies, {measured.failed} failed"
    columns = [Column("figure", folds=True), Column(f"{STATISTICS.confidence:.0%} interval")]
    figures = measured.metrics.items()
    rows = [(name, figure_with_interval(figure)) for name, figure in figures]
    reporter.table(f"{measured.judge} beside {options.labels.name}: {replies}", columns, rows)
    usable_folder(options.output_dir, "--output-dir")
    path = options.output_dir / "judge_errors.json"
    write_json(path, asdict(measured))
    reporter.say(f"\ncalibration: {path}")


# --- runs and view --------------------------------------------------------------------------------

#: results/TASK/RUN, and the rows of results/audits/NAME/TASK.
_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
_PAGES = ("report.html", "compare.html")


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """List the runs of a folder, the oldest first.

    Of each: the task, the model, and before and after training the objective, or the first metric
    where the objective is the mean reward; and the verdict on it.

    Examples:
        equipoise runs
        equipoise runs results/TASK
    """

    folder: Annotated[Path, Positional, option("where runs are", "DIR")] = Path("results")


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Open the report of a run in the browser, and print its path.

    RUN is also the folder of a comparison.

    Examples:
        equipoise view results/TASK/RUN
    """

    run: RunFolder


def runs(options: RunsOptions, reporter: Reporter) -> None:
    rows = [row for _, row in sorted(_rows(options.folder))]
    if not rows:
        raise UsageError(
            "runs.none",
            f"{options.folder} has no run",
            "Name the folder of --output-dir, or start one: equipoise train TASK.",
        )
    names = ("run", "task", "model", "metric")
    columns = [Column(name, folds=True) for name in names]
    columns += [Column("before"), Column("after"), Column("verdict", folds=True)]
    reporter.table(f"Runs in {options.folder}", columns, rows)


def _rows(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the start and the row of each run; one that cannot be read says why."""
    # It brings what takes a second to import, for which help does not wait.
    from equipoise.report.run_files import read_run
    from equipoise.report.words import figure

    for path in (path for depth in _DEPTHS for path in folder.glob(f"{depth}/provenance.json")):
        name = str(path.parent.relative_to(folder))
        try:
            files = read_run(path.parent, replies=False)
        except EquipoiseError as error:
            yield "", (name, *["-"] * 5, f"unreadable: {error.message}")
            continue
        # The mean reward is the objective of most tasks, and evaluation.json does not have it.
        provenance, objective = files.provenance, files.headline
        compared = files.comparison.get(objective)
        verdict: str = compared.verdict if compared else "not finished"
        if provenance.audit:
            verdict = "evaluated" if files.evaluations else "not finished"
        values = [files.evaluations.get(stage) for stage in ("before", "after")]
        estimates = [value and value.metrics.get(objective) for value in values]
        figures = [figure(e.value) if e else "-" for e in estimates]
        label = files.name_of(objective) if objective else "-"
        yield (
            provenance.started,
            (name, provenance.task, provenance.model, label, *figures, verdict),
        )


def view(options: ViewOptions, reporter: Reporter) -> None:
    page = next((p for name in _PAGES if (p := options.run / name).is_file()), None)
    if page is None:
        raise UsageError(
            "view.no-report",
            f"{options.run} has no report yet",
            "Name the folder of a run that has been evaluated; `equipoise runs` lists them.",
        )
    reporter.say(f"report: {page}")
    try:
        webbrowser.get().open(page.resolve().as_uri())
    except webbrowser.Error:
        reporter.say("No browser is installed here: copy the file, which holds all it needs.")
