"""training_history.csv: one row per step, the same from both engines, cut back on resume."""

import csv
import io
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from environments.base import FAILURE_KINDS, Rollout, Score
from environments.contract import Environment
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError

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
    *(f"failures/{kind}" for kind in FAILURE_KINDS),  # empty where there was none of the kind
    "seconds",
)
Row = Mapping[str, float | None]
Series = tuple[float, ...]


def step_row(
    environment: Environment, rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> dict[str, float]:
    """A step's rewards, metrics and failures.

    `reward`, `reward/<component>`, `env/<metric>`, `failures`, and `failures/<kind>` for the kinds
    that occurred.
    """
    values = [score.value for score in scores if score.value is not None]
    row = {"failures": float(len(scores) - len(values))}
    kinds = Counter(score.error.kind for score in scores if score.error)
    row |= {f"failures/{kind}": float(count) for kind, count in kinds.items()}
    if values:
        row |= {"reward": fmean(values), "reward_std": pstdev(values)}
    components: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.components.items():
            components.setdefault(name, []).append(value)
    row |= {f"reward/{name}": fmean(components[name]) for name in sorted(components)}
    metrics = environment.measure(rollouts, scores).point_estimates()
    return row | {f"env/{name}": value for name, value in metrics.items()}


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


def read_history(path: Path) -> Mapping[str, Series]:
    """One series per column, NaN for an empty cell and for a row that is cut off."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    columns = itertools.zip_longest(*rows, fillvalue="")
    return {name: tuple(_number(cell) for cell in cells) for name, *cells in columns if name}


def _number(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def restore(path: Path, copy: Path | None) -> None:
    """Put the history back that a checkpoint has kept; without a checkpoint there is none."""
    if copy is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, copy.read_text(encoding="utf-8"))


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the rows after `last_step`, and a row that a kill cut off in the middle.

    Raises `EquipoiseError` where another row is no row of a history.
    """
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    if last_step == 0 or not lines or not lines[0].endswith(b"\n"):
        path.unlink()
        return
    complete = lines if lines[-1].endswith(b"\n") else lines[:-1]
    steps = _steps_of(path, complete)
    rows = [line for line, step in zip(complete[1:], steps, strict=True) if step <= last_step]
    write_text(path, b"".join([complete[0], *rows]).decode())


def _steps_of(path: Path, lines: Sequence[bytes]) -> list[int]:
    """The steps of the rows below the header: one more each time, with a number or nothing."""
    columns, steps = lines[0].count(b","), [0]
    for number, line in enumerate(lines[1:], start=2):
        cells = line.rstrip(b"\r\n").split(b",")
        try:
            step, _ = int(cells[0]), [float(cell) for cell in cells if cell]
        except ValueError:
            step = 0
        if step <= steps[-1] or len(cells) != columns + 1:
            raise EquipoiseError(
                "history.damaged-row",
                f"{path}, line {number}: is no row of step {steps[-1] + 1}",
                "Put back the file, or remove it: the history then begins where the run goes on.",
            )
        steps.append(step)
    return steps[1:]


def _cell(value: float | None) -> str:
    """The shortest text that reads back as the same number; empty for what is not known."""
    if value is None or value != value:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
