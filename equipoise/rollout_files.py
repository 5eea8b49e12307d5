"""rollouts.jsonl: one object per generation, from which every metric can be recomputed."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_prep.files import read_jsonl, write_jsonl
from environments.base import Rollout, Score
from equipoise.errors import EquipoiseError

_ROLLOUT_FIELDS = ("prompt_id", "set_id", "split", "prompt", "completion", "metadata")
_SCORE_FIELDS = ("value", "components", "error", "evidence")


def write_rollouts(
    path: Path, rollouts: Sequence[Rollout], scores: Sequence[Score] | None = None
) -> None:
    """Write rollouts, and their scores where there are any, atomically."""
    if scores is None:
        write_jsonl(path, (asdict(rollout) for rollout in rollouts))
        return
    pairs = zip(rollouts, scores, strict=True)
    write_jsonl(path, (asdict(rollout) | asdict(score) for rollout, score in pairs))


def read_rollouts(path: Path) -> list[Rollout]:
    """The rollouts of a file, without their scores."""
    return [Rollout(**_pick(row, _ROLLOUT_FIELDS, path)) for row in _rows(path)]


def read_scored_rollouts(path: Path) -> tuple[list[Rollout], list[Score]]:
    """The rollouts of a file and their scores."""
    rows = _rows(path)
    rollouts = [Rollout(**_pick(row, _ROLLOUT_FIELDS, path)) for row in rows]
    return rollouts, [Score(**_pick(row, _SCORE_FIELDS, path)) for row in rows]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return list(read_jsonl(path))
    except FileNotFoundError:
        raise EquipoiseError(f"{path} does not exist", "Check the path.") from None
    except ValueError as error:
        raise EquipoiseError(str(error), "The file is damaged; make it again.") from None


def _pick(row: dict[str, Any], fields: tuple[str, ...], path: Path) -> dict[str, Any]:
    missing = [name for name in fields if name not in row]
    if missing:
        raise EquipoiseError(
            f"{path}: a line lacks {', '.join(missing)}", "Is it a rollouts.jsonl of a run?"
        )
    return {name: row[name] for name in fields}
