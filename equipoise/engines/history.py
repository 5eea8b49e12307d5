"""training_history.csv: one row per step, the same from both engines, cut back on resume."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from data_prep.files import write_text
from environments.base import Environment, Rollout, Score

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


def step_row(
    environment: Environment, rollouts: Sequence[Rollout], scores: Sequence[Score]
) -> dict[str, float]:
    """A step's rewards and metrics: `reward`, `reward/<component>`, `env/<metric>`, `failures`."""
    values = [score.value for score in scores if score.value is not None]
    row = {"failures": float(len(scores) - len(values))}
    if values:
        row |= {"reward": fmean(values), "reward_std": pstdev(values)}
    row |= _component_means(scores)
    metrics = environment.measure(rollouts, scores).point_estimates()
    return row | {f"env/{name}": value for name, value in metrics.items()}


def _component_means(scores: Sequence[Score]) -> dict[str, float]:
    collected: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.components.items():
            collected.setdefault(name, []).append(value)
    return {f"reward/{name}": fmean(collected[name]) for name in sorted(collected)}


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
