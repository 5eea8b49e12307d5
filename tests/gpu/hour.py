"""A GPU hour: steps that each prove something on one machine and write down what they measured.

    python -m tests.gpu.hour --list
    python -m tests.gpu.hour --minutes 9.5        # again and again, until no step is left

It needs no network. In OUTPUT_DIR/DEVICE hour.jsonl has a record of each step and hour.md a table
of them, both written after every step; logs/ has what the commands said. A step that is done is not
done again, one that failed only if it is named, and those that need it are then not covered.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from data_prep.files import read_jsonl, write_jsonl, write_text
from equipoise.config.load import count_gpus
from equipoise.errors import EquipoiseError, UsageError
from equipoise.report.document import Cell, Table
from equipoise.report.renderers import grid
from equipoise.terminal.console import Column, Reporter
from equipoise.terminal.exits import guarded
from equipoise.terminal.options import option, read_options
from tests.gpu.attempt import GB, Attempt, Figures
from tests.gpu.steps import STEPS, Step

DONE, FAILED, NOT_COVERED = "done", "failed", "not covered"


@dataclass(frozen=True, slots=True)
class HourOptions:
    """Run the steps of a GPU hour that are not done yet, what no CPU can show first.

    Examples:
        python -m tests.gpu.hour --list
        python -m tests.gpu.hour --minutes 9.5
        python -m tests.gpu.hour small --device cpu
    """

    steps: Annotated[
        tuple[str, ...], Positional, option("these alone, also where they failed", "STEP")
    ] = ()
    device: Annotated[Literal["cuda", "cpu"], option("cpu: tiny shapes")] = "cuda"
    output_dir: Annotated[Path, option("records, logs and runs", "DIR")] = Path("results/gpu-hour")
    minutes: Annotated[float, option("start no step that may take longer", "N")] = 60.0
    list: Annotated[bool, option("show the steps, and what each proves")] = False


@dataclass(slots=True)
class Records:
    """Records of the steps, by name, in the two files that show them."""

    folder: Path
    rows: dict[str, Figures] = field(init=False)

    def __post_init__(self) -> None:
        path = self.folder / "hour.jsonl"
        self.rows = {row["step"]: row for row in read_jsonl(path)} if path.exists() else {}

    def status(self, step: str) -> str | None:
        """`DONE`, `FAILED`, `NOT_COVERED`, or None before its first attempt."""
        return self.rows[step]["status"] if step in self.rows else None

    def add(self, step: Step, status: str, says: str = "", **figures: Any) -> None:
        """Write the record of a step, over an earlier one."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"step": step.name, "status": status, "at": at, "says": says, **figures}
        self.rows[step.name] = row | {"proves": step.proves, "left_open_by_a_cpu": step.left_open}
        write_jsonl(self.folder / "hour.jsonl", self.rows.values())
        write_text(self.folder / "hour.md", f"{grid(_table(self.rows.values()))}\n")


def _table(rows: Iterable[Figures]) -> Table:
    """The records as a table."""
    return Table(
        ("step", "status", "s", "figures", "proves", "left open by a CPU"),
        tuple(tuple(map(Cell, map(str, _cells(row)))) for row in rows),
    )


def _cells(row: Figures) -> tuple[object, ...]:
    figures = ", ".join(f"{name} {value}" for name, value in row.get("figures", {}).items())
    says = row["says"] or figures
    shows = (row["proves"], row["left_open_by_a_cpu"])
    return row["step"], row["status"], row.get("seconds", ""), says, *shows


def take(step: Step, options: HourOptions, records: Records) -> None:
    """Attempt a step and record what came of it."""
    reason = step.lacking(options.device) or ", ".join(
        f"{name} is not done" for name in step.needs if records.status(name) != DONE
    )
    if reason:
        records.add(step, NOT_COVERED, reason)
        return
    attempt = Attempt(step.name, records.folder.absolute(), options.device, step.minutes)
    started = time.monotonic()
    try:
        figures, status, says = dict(step.act(attempt)), DONE, ""
    except Exception as error:  # noqa: BLE001  it is recorded, and other steps go on
        figures, status, says = {}, FAILED, f"{type(error).__name__}: {error}"
    if attempt.peak:
        figures["peak_gb"] = round(attempt.peak / GB, 2)
    seconds = round(time.monotonic() - started, 1)
    records.add(step, status, says, device=options.device, seconds=seconds, figures=figures)


def run(options: HourOptions, reporter: Reporter, steps: tuple[Step, ...] = STEPS) -> None:
    """Run what is left. Raises `EquipoiseError` at the end where a step failed."""
    if unknown := set(options.steps) - {step.name for step in steps}:
        raise UsageError(
            "hour.unknown-step",
            f"no such step: {', '.join(sorted(unknown))}",
            "--list shows them.",
        )
    if options.list:
        rows = [(step.name, f"{step.minutes:g}", step.proves, step.left_open) for step in steps]
        shows = [Column("proves", folds=True), Column("left open by a CPU", folds=True)]
        reporter.table("Steps", [Column("step"), Column("minutes"), *shows], rows)
        return
    if options.device == "cuda" and not count_gpus():
        raise UsageError(
            "hour.no-gpu",
            "torch sees no GPU here, so nothing of the hour is covered",
            "--device cpu takes tiny shapes; --list shows what that leaves open.",
        )
    folder = options.output_dir / options.device  # a CPU's records say nothing of a GPU
    folder.mkdir(parents=True, exist_ok=True)
    take_steps(steps, options, Records(folder), reporter)


def take_steps(
    steps: tuple[Step, ...], options: HourOptions, records: Records, reporter: Reporter
) -> None:
    """Take those that are left, in turn, as long as there is time for them."""
    ends = time.monotonic() + 60 * options.minutes
    for step in steps:
        named, status = step.name in options.steps, records.status(step.name)
        if status == DONE or (options.steps and not named) or (status == FAILED and not named):
            continue
        if time.monotonic() + 60 * step.minutes > ends:
            reporter.say(f"{step.name} may take {step.minutes:g} minutes; start again for it")
            break
        take(step, options, records)
        record = records.rows[step.name]
        reporter.say(f"{step.name}: {record['status']}. {record['says']}".strip())
    if lacking := [step.name for step in steps if records.status(step.name) != DONE]:
        reporter.say(f"not covered: {', '.join(lacking)}")
    if options.device == "cpu":
        reporter.say(f"a CPU leaves open what {records.folder / 'hour.md'} says of each step")
    failed = [name for name in records.rows if records.status(name) == FAILED]
    if failed:
        raise EquipoiseError(
            "hour.failed-steps",
            f"failed: {', '.join(failed)}",
            f"Read {records.folder / 'logs'}.",
        )


if __name__ == "__main__":
    words = read_options(HourOptions, sys.argv[1:], "python -m tests.gpu.hour")
    sys.exit(guarded(lambda reporter: run(words, reporter)))
