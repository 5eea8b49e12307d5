"""training_history.jsonl: one row per step, the same from both engines, cut back on resume."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from environments.base import FAILURE_KINDS, Rollout, Score
from environments.contract import Environment
from equipoise.files.disk import DamagedFileError, parse_json, write_lines, write_text
from equipoise.files.errors import EquipoiseError

#: The columns that come first in a row; those of the reward's components and the metrics follow.
COLUMNS = (
    *("step", "reward", "reward_std", "loss", "grad_norm", "learning_rate", "entropy", "kl"),
    *("completion_length", "truncated", "failures"),
    *(f"failures/{kind}" for kind in FAILURE_KINDS),
    "seconds",
)
Row = Mapping[str, float | None]
Series = tuple[float, ...]
_REMEDY = "Put back the file, or remove it: it then begins where the run goes on."


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
    """Append a row in one write, without figures that are unknown or not finite."""
    ordered = dict.fromkeys(COLUMNS) | dict(row)
    figures = {name: v for name, v in ordered.items() if v is not None and math.isfinite(v)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(figures) + "\n")


def read_history(path: Path) -> Mapping[str, Series]:
    """Return one series per column, NaN where a step has no such figure.

    Raises `EquipoiseError` like `step_lines`.
    """
    rows = [row for row, _ in step_lines(path)]
    columns = dict.fromkeys(name for row in rows for name in row)
    try:
        return {n: tuple(float(row.get(n, math.nan)) for row in rows) for n in columns}
    except (TypeError, ValueError) as error:
        raise EquipoiseError("history.no-figure", f"{path}: {error}", _REMEDY) from None


# --- files that have lines of each step: this one, and the rollouts of training ------------------


def step_lines(path: Path) -> Iterator[tuple[Mapping[str, Any], bytes]]:
    """Yield each complete line with its object, which names its step.

    Raises `EquipoiseError` for any other line.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # a kill cut it off
            return
        try:
            row = parse_json(path, line, number)
            if not isinstance(row, dict) or type(row.get("step")) not in (int, float):
                raise DamagedFileError("file.no-step", path, "is not a line of a step", number)
        except DamagedFileError as error:
            raise EquipoiseError(error.code, str(error), _REMEDY) from None
        yield row, line


def restore(path: Path, copy: Path | None) -> None:
    """Restore a checkpoint's copy of the file, or delete the file if there is no copy."""
    if copy is None or not copy.exists():
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(exist_ok=True)
        write_text(path, copy.read_text(encoding="utf-8"))


def keep_steps(path: Path, last_step: int) -> int:
    """Drop the lines after `last_step`, and an incomplete one; return the last step that is left.

    That is 0 where no line is left. Raises like `step_lines`.
    """
    kept = [(row, line) for row, line in step_lines(path) if row["step"] <= last_step]
    if kept:
        write_lines(path, [line.decode() for _, line in kept])
    else:
        path.unlink(missing_ok=True)
    return max((int(row["step"]) for row, _ in kept), default=0)
