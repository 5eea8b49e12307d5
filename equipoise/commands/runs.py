"""`equipoise runs` and `equipoise view`: the runs of a folder, and the report of one."""

import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from equipoise.files.console import Column, Reporter
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.options import RunFolder, option

#: results/TASK/RUN, and the rows of results/audits/NAME/TASK.
_DEPTHS = ("*", "*/*", "*/*/*", "*/*/*/*")
_PAGES = ("report.html", "compare.html")


@dataclass(frozen=True, slots=True)
class RunsOptions:
    """List the runs of a folder, the oldest first.

    Of each: the task, the model, the objective before and after training, and the verdict on it.

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
    names = ("run", "task", "model", "objective")
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
        provenance, objective = files.provenance, files.objective
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
        reporter.say("There is no browser here: copy the file, which holds all it needs.")
