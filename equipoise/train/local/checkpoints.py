"""The local engine's checkpoints: TRL's folders, each with the run's files so far, sealed."""

import shutil
from collections.abc import Callable
from pathlib import Path

from data_prep.files import DamagedFileError, read_json
from equipoise.run.seals import CheckpointFolder, find_checkpoints, is_sealed, newest_whole, seal

_PREFIX = "checkpoint-"
#: What the trainer writes of itself.
_STATE = "trainer_state.json"


def finish_checkpoint(folder: Path, *files: Path) -> None:
    """Add the run's files up to this step and say that everything has been written."""
    for file in files:
        if file.exists():
            shutil.copyfile(file, folder / file.name)
    seal(folder)


def latest_checkpoint(folder: Path, warn: Callable[[str], None]) -> CheckpointFolder | None:
    """The newest whole checkpoint; see `newest_whole`.

    The last one may be half-written and is removed then. That another one is not sealed is damage.
    """
    checkpoints = find_checkpoints(folder, _PREFIX)
    if checkpoints and not is_sealed(checkpoints[0].path):
        half = checkpoints.pop(0).path
        if not half.is_symlink():
            warn(f"{half} was not written to its end, and is removed")
            shutil.rmtree(half)
    return newest_whole(checkpoints, warn, _global_step)


def _global_step(folder: Path) -> object:
    try:
        state = read_json(folder / _STATE)
    except (OSError, DamagedFileError):
        return None
    return state.get("global_step") if isinstance(state, dict) else None


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder where the trainer writes the checkpoint of a step."""
    return folder / f"{_PREFIX}{step}"
