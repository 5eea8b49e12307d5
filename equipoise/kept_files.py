"""What a run has finished, sealed in its provenance: nothing that was damaged is read as good."""

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from equipoise.errors import EquipoiseError
from equipoise.provenance import read_provenance, update_provenance
from equipoise.run_directory import RunDirectory
from equipoise.seals import damage, seals_of, set_aside

_KEY = "files"


def keep_files(run: RunDirectory, *parts: Path) -> None:
    """Seal files and folders of the run directory that are finished."""
    seals = {part.name: seals_of(run.root, _files_of(part)) for part in parts}
    update_provenance(run.provenance, {_KEY: seals})


def forget_files(run: RunDirectory, parts: Iterable[str]) -> None:
    """These are not finished any longer."""
    update_provenance(run.provenance, {_KEY: dict.fromkeys(parts)})


def check_files(run: RunDirectory, *, lasting: Container[str], warn: Callable[[str], None]) -> None:
    """Look at everything that was sealed. What is damaged is set aside, so that it is made again.

    Raises `EquipoiseError` for what is `lasting`: its engine cannot make it again.
    """
    kept = read_provenance(run.provenance).get(_KEY, {})
    damaged = {
        part: wrong
        for part, seals in kept.items()
        if seals and (wrong := _damage(run, part, seals))
    }
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


def _damage(run: RunDirectory, part: str, seals: Any) -> list[str]:
    """One line where all of it is gone, else one for each file."""
    return damage(run.root, seals) if (run.root / part).exists() else [f"{part} is missing"]


def _made_with(run: RunDirectory, parts: Iterable[str]) -> Iterator[str]:
    """The parts and what is made together with them: training writes the history and the model."""
    for part in parts:
        yield part
        if part == run.history.name:
            yield run.final_checkpoint.name


def _files_of(part: Path) -> list[Path]:
    return [path for path in part.rglob("*") if path.is_file()] if part.is_dir() else [part]
