"""What a run has finished, sealed in its provenance: nothing that was damaged is read as good."""

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.provenance import read_provenance, update_provenance
from equipoise.run.seals import damage, seals_of, set_aside

_KEY = "files"


def record_files(run: RunDirectory, *parts: Path) -> None:
    """Seal files and folders of the run directory that are finished, where they are there."""
    there = [part for part in parts if part.exists()]
    files = {part: part.rglob("*") if part.is_dir() else [part] for part in there}
    seals = {
        part.name: seals_of(run.root, [path for path in paths if path.is_file()])
        for part, paths in files.items()
    }
    update_provenance(run.provenance, {_KEY: seals})


def forget_files(run: RunDirectory, parts: Iterable[str]) -> None:
    """These are not finished any longer."""
    update_provenance(run.provenance, {_KEY: dict.fromkeys(parts)})


def leave_out(run: RunDirectory, file: Path) -> None:
    """Take a file out of a part that was sealed, before it is written anew."""
    part = file.relative_to(run.root).parts[0]
    seals = _kept(run).get(part)
    if isinstance(seals, dict) and seals.pop(file.relative_to(run.root).as_posix(), None):
        update_provenance(run.provenance, {_KEY: {part: seals}})


def check_files(run: RunDirectory, *, lasting: Container[str], warn: Callable[[str], None]) -> None:
    """Look at everything that was sealed. What is damaged is set aside, so that it is made again.

    Raises `EquipoiseError` for what is `lasting`: its engine cannot make it again.
    """
    damaged = {part: wrong for part in _kept(run) if (wrong := damage_of(run, part))}
    if not damaged:
        return
    problems = [f"{run.root}: {what}" for wrong in damaged.values() for what in wrong]
    if any(part in lasting for part in damaged):
        raise EquipoiseError(
            "\n".join(["what this run has made is damaged:", *problems]),
            "Put it back from a copy, or start a new run: NeMo-RL samples before its first step "
            "and after its last one alone.",
        )
    for problem in problems:
        warn(f"{problem}; it is made again")
    parts = set(_made_with(run, damaged))
    for part in parts:
        set_aside(run.root / part)
    forget_files(run, parts)


def damage_of(run: RunDirectory, part: str) -> list[str]:
    """What is wrong with a file or folder that was sealed: one line for each file, or for all."""
    seals = _kept(run).get(part)
    if seals is None:
        return []
    return damage(run.root, seals) if (run.root / part).exists() else [f"{part} is missing"]


def _kept(run: RunDirectory) -> dict[str, Any]:
    kept: dict[str, Any] = read_provenance(run.provenance).get(_KEY, {})
    return kept


def _made_with(run: RunDirectory, parts: Iterable[str]) -> Iterator[str]:
    """The parts and what is made together with them: training writes the history and the model."""
    for part in parts:
        yield part
        if part in (run.history.name, run.training.parent.name):
            yield run.final_checkpoint.name
