"""Which checkpoint of a stopped run can be trusted: the newest one that is what was written."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.errors import EquipoiseError
from equipoise.run.seals import folder_damage, set_aside


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder with a checkpoint's name."""

    path: Path
    step: int


def find_checkpoints(folder: Path, prefix: str) -> list[CheckpointFolder]:
    """The folders `<prefix>N`, newest first; what else lies there is not ours."""
    folders = []
    for path in folder.glob(f"{prefix}*"):
        number = re.fullmatch(r"[0-9]{1,18}", path.name.removeprefix(prefix))
        if number and path.is_dir():
            folders.append(CheckpointFolder(path, int(number[0])))
    return sorted(folders, key=lambda checkpoint: checkpoint.step, reverse=True)


def newest_whole(
    checkpoints: Sequence[CheckpointFolder],
    warn: Callable[[str], None],
    held_step: Callable[[Path], object] | None = None,
) -> CheckpointFolder | None:
    """The newest sealed checkpoint without damage; those before it are named and set aside.

    `held_step` reads the step that a checkpoint was written at, which must be that of its name.

    Raises `EquipoiseError` when there are some and none is whole: what training again would cost
    is for the user to decide. Nothing is moved then.
    """
    damaged: list[tuple[CheckpointFolder, list[str]]] = []
    for checkpoint in checkpoints:
        damage = folder_damage(checkpoint.path)
        if not damage and held_step and (held := held_step(checkpoint.path)) != checkpoint.step:
            damage = [f"it was written at step {held}, which is not that of its name"]
        if not damage:
            for newer, reasons in damaged:
                warn(f"{_described(newer, reasons)}; step {checkpoint.step} is taken instead")
                set_aside(newer.path)
            return checkpoint
        damaged.append((checkpoint, damage))
    if damaged:
        folder = damaged[0][0].path.parent
        raise EquipoiseError(
            "resume.no-whole-checkpoint",
            "\n".join(["no checkpoint is whole:", *(_described(*pair) for pair in damaged)]),
            f"Put back what they lack. Or remove {folder}, and --resume trains again from step 1, "
            "on the same prompts.",
        )
    return None


def _described(checkpoint: CheckpointFolder, reasons: list[str]) -> str:
    return f"{checkpoint.path} is damaged: {', '.join(reasons)}"
