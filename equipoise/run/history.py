"""training_history.jsonl: one row per step, the same from both engines, cut back on resume."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from environments.base import FAILURE_KINDS, Rollout, Score
from environments.contract import Environment
from equipoise.files.disk import write_text
from equipoise.files.errors import EquipoiseError

#: The columns that come first in a row; those of the reward's components and the metrics follow.
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
    *(f"failures/{kind}" for kind in FAILURE_KINDS),
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
    """Append a row in one write; a figure that is not known or not finite is left out."""
    ordered = dict.fromkeys(COLUMNS) | dict(row)
    figures = {name: v for name, v in ordered.items() if v is not None and math.isfinite(v)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")


def read_history(path: Path) -> Mapping[str, Series]:
    """Return one series per column, NaN where a step has no such figure.

    A line that a kill cut off is not a row yet. Raises `EquipoiseError` like `keep_steps`.
    """
    rows = [row for row, _ in _rows(path)]
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name, math.nan) for row in rows) for name in columns}


def restore(path: Path, copy: Path | None) -> None:
    """Put the history back that a checkpoint has kept; without a checkpoint there is none."""
    if copy is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, copy.read_text(encoding="utf-8"))


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the rows after `last_step`, and a row that a kill cut off in the middle.

    Raises `EquipoiseError` where another line is not the row of a later step.
    """
    if last_step == 0:
        path.unlink(missing_ok=True)
    elif path.exists():
        write_text(path, "".join(line for row, line in _rows(path) if row["step"] <= last_step))


def _rows(path: Path) -> list[tuple[dict[str, float], str]]:
    """Return each row with its line."""
    rows: list[tuple[dict[str, float], str]] = []
    text = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            row = {name: float(value) for name, value in json.loads(line).items()}
            damaged = row["step"] <= (rows[-1][0]["step"] if rows else 0)
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged = True
        if damaged:
            raise EquipoiseError(
                "history.damaged-row",
                f"{path}, line {number} is not the row of a later step",
                "Put back the file, or remove it: the history then begins where the run goes on.",
            )
        rows.append((row, line.decode()))
    return rows
