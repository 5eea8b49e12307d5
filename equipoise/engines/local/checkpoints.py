"""Which checkpoint of a killed run can be trusted."""

import shutil
from dataclasses import dataclass
from pathlib import Path

_MARK = "complete"
_PREFIX = "checkpoint-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written to its end."""

    path: Path
    step: int


def mark_complete(folder: Path) -> None:
    """Say that everything in `folder` has been written. The last act of saving."""
    (folder / _MARK).touch()


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint. A half-written one is removed."""
    complete = []
    for path in folder.glob(f"{_PREFIX}*"):
        if (path / _MARK).exists():
            complete.append(Checkpoint(path, int(path.name.removeprefix(_PREFIX))))
        else:
            shutil.rmtree(path)
    return max(complete, key=lambda checkpoint: checkpoint.step, default=None)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the trainer writes the checkpoint of a step."""
    return folder / f"{_PREFIX}{step}"
