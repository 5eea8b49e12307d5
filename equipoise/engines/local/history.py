"""training_history.csv: one row per step, appended as training goes, cut back on resume."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from data_prep.files import write_text

#: Columns of every task; those of the reward's components and the metrics follow them.
COLUMNS = (
    "step",
    "reward",
    "reward_std",
    "loss",
    "grad_norm",
    "learning_rate",
    "entropy",
    "kl",
    "completion_length",
    "truncated",
    "failures",
    "seconds",
)
Row = Mapping[str, float | None]


def append_row(path: Path, row: Row) -> None:
    """Append a row in one write; the first one decides the columns."""
    columns = read_columns(path) or [*COLUMNS, *(name for name in row if name not in COLUMNS)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if not path.exists():
        writer.writeheader()
    writer.writerow({name: _cell(row.get(name)) for name in columns})
    with path.open("a", encoding="utf-8") as file:
        file.write(text.getvalue())


def read_columns(path: Path) -> list[str]:
    """The header of the file, empty when there is none yet."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the rows after `last_step`, and a row that a kill cut off in the middle."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    if last_step == 0 or not whole:
        path.unlink()
        return
    write_text(path, whole[0] + "".join(r for r in whole[1:] if _step_of(r) <= last_step))


def _step_of(line: str) -> int:
    return int(line.split(",", 1)[0])


def _cell(value: float | None) -> str:
    """The shortest text that reads back as the same number; empty for what is not known."""
    if value is None or value != value:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
