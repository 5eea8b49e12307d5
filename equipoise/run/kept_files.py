"""Finished files of a run, sealed in its provenance: a damaged one is not read as good.

A command that reads a run opens it with `open_run`; one that reads a single part, such as the
weights, asks `check_part`.
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.records import manifest_path
from equipoise.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import has_seal
from equipoise.run.provenance import REPLACES
from equipoise.run.seals import damage, folder_damage, is_sealed, seals_of, set_aside

_KEY = "files"
#: The flag by which a user accepts files that nothing vouches for.
UNSEALED = "--unsealed"
#: The way to accept one file where there is no flag.
COPY = "name a copy of the file outside the run"
_WITH_FLAG = f"take the files as they are with {UNSEALED}"


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run whose sealed files are as they were written.

    `unsealed` are its files and folders without a seal, which the user has accepted.
    """

    run: RunDirectory
    provenance: Mapping[str, Any]
    unsealed: tuple[str, ...]


def open_run(root: Path, *, unsealed: bool = False) -> OpenedRun:
    """Compare a run with its seals, but for its weights, before anything is read of it.

    Raises `EquipoiseError` for a file that is missing or not as it was written, and for a run with
    parts that have no seal, unless `unsealed` accepts them.
    """
    run = RunDirectory(root)
    if not (run.provenance.is_file() or run.config.is_file()):
        fault = "is no run" if root.exists() else "does not exist"
        raise UsageError(
            "run.no-run", f"{root} {fault}", "Name the folder of a run, results/<task>/<run name>."
        )
    provenance = run.ledger.read(unsealed=True)
    seals = _seals_in(provenance)
    _refuse_damage(run, [part for part in seals if part != run.final_checkpoint.name], seals)
    names = [part.name for part in _finished_parts(run, provenance)]
    without = _without_seal(names, provenance)
    if without and not unsealed:
        raise _unsealed(run, without, _WITH_FLAG)
    return OpenedRun(run, provenance, without)


def check_part(part: Path, *, unsealed: bool = False, otherwise: str = "") -> tuple[str, ...]:
    """Compare a run's model, reference or checkpoint with its seals; return what has none.

    Of a checkpoint that its run had not sealed yet, and of what lies in no run, there is nothing to
    compare. Raises `EquipoiseError` like `open_run`; `otherwise` is what to do where the command
    has no flag.
    """
    path = Path(os.path.abspath(part))  # noqa: PTH100  a link in a run is still the run's
    run, name = RunDirectory(path.parent), path.name
    if path not in (run.final_checkpoint, run.reference) or not run.provenance.is_file():
        if is_sealed(path) and (lines := folder_damage(path)):
            raise _damaged(part, lines)
        return ()
    provenance = run.ledger.read(unsealed=True)
    seals = _seals_in(provenance)
    _refuse_damage(run, [name] if name in seals else [], seals)
    without = _without_seal([name] if path.exists() else [], provenance)
    if without and not unsealed:
        raise _unsealed(run, without, otherwise or _WITH_FLAG)
    return without


def _finished_parts(run: RunDirectory, provenance: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the parts of a run that are finished and are read of it, but for its weights."""
    yield from (run.rollouts(s).parent for s in ("baseline", "final") if run.evaluation(s).exists())
    parts = [run.config, run.prompts, manifest_path(run.prompts), run.reference, run.comparison]
    parts += [run.probe, run.modes, run.added]
    if run.evaluation("final").exists() and not provenance.get(REPLACES):  # else it is training
        parts += [run.history, run.training.parent]
    yield from filter(Path.exists, parts)


def _without_seal(names: Iterable[str], provenance: Mapping[str, Any]) -> tuple[str, ...]:
    seals = _seals_in(provenance) if has_seal(provenance) else {}
    return tuple(name for name in names if name not in seals)


def _unsealed(run: RunDirectory, parts: Iterable[str], remedy: str) -> UsageError:
    return UsageError(
        "run.no-seals",
        f"{run.root} has no seals of {', '.join(parts)}: nothing shows that this is what the run "
        "wrote",
        f"Put {run.provenance.name} back from a copy, or {remedy}.",
    )


def _refuse_damage(run: RunDirectory, parts: Iterable[str], seals: Mapping[str, Any]) -> None:
    if lines := [line for part in parts for line in _damage_of(run, part, seals[part])]:
        raise _damaged(run.root, lines)


def _damaged(root: Path, lines: Iterable[str]) -> EquipoiseError:
    return EquipoiseError(
        "run.damaged-files",
        "\n".join(f"{root}: {line}" for line in lines),
        "Put it back from a copy, or let --resume of the run make it again where it can.",
    )


def unsealed_note(parts: Iterable[str]) -> str:
    """Word a page's note on files without seals."""
    return (
        f"Nothing shows that these files are as the run wrote them, for they have no seals: "
        f"{', '.join(parts)}. They were accepted with {UNSEALED}."
    )


def record_files(run: RunDirectory, *parts: Path, without: Path | None = None) -> None:
    """Seal files and folders of the run directory that are finished, where they are there.

    Hidden files are no results, and nor is `without`.
    """
    present = [part for part in parts if part.exists()]
    files = {part: part.rglob("*") if part.is_dir() else [part] for part in present}
    seals = {
        part.name: seals_of(run.root, [path for path in paths if _is_result(path, without)])
        for part, paths in files.items()
    }
    run.ledger.update({_KEY: seals})


def record_unsealed(run: RunDirectory, *parts: Path) -> None:
    """Seal what is sound by another check and has no seal yet, as in runs of earlier versions."""
    seals = _read_seals(run)
    if missing := [part for part in parts if part.name not in seals]:
        record_files(run, *missing)


def _is_result(path: Path, without: Path | None) -> bool:
    return path.is_file() and path != without and not path.name.startswith(".")


def forget_files(run: RunDirectory, parts: Iterable[str]) -> None:
    """Note that these are not finished any longer."""
    run.ledger.update({_KEY: dict.fromkeys(parts)})


def leave_out(run: RunDirectory, file: Path) -> None:
    """Take a file out of a part that was sealed, before it is written anew."""
    part = file.relative_to(run.root).parts[0]
    seals = _read_seals(run).get(part)
    name = file.relative_to(run.root).as_posix()
    if isinstance(seals, dict) and name in seals:
        run.ledger.update({_KEY: {part: {k: v for k, v in seals.items() if k != name}}})


def check_files(run: RunDirectory, *, lasting: Container[str], warn: Callable[[str], None]) -> None:
    """Look at everything that was sealed. What is damaged is set aside, so that it is made again.

    Raises `EquipoiseError` for what is `lasting`: its engine cannot make it again.
    """
    seals = _read_seals(run)
    damaged = {part: lines for part in seals if (lines := _damage_of(run, part, seals[part]))}
    # A kill may leave what a sealed stage was made of.
    for stage in {"baseline", "final"} & (seals.keys() - damaged.keys()):
        run.generations(stage).unlink(missing_ok=True)
    if not damaged:
        return
    problems = [f"{run.root}: {line}" for lines in damaged.values() for line in lines]
    if any(part in lasting for part in damaged):
        raise EquipoiseError(
            "resume.damaged-files",
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
    """List what is wrong with a sealed file or folder: one line for each file, or for all."""
    seals = _read_seals(run)
    return _damage_of(run, part, seals[part]) if part in seals else []


def _damage_of(run: RunDirectory, part: str, seals: Any) -> list[str]:
    return damage(run.root, seals) if (run.root / part).exists() else [f"{part} is missing"]


def _read_seals(run: RunDirectory) -> dict[str, Any]:
    return _seals_in(run.ledger.read())


def _seals_in(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The seals by part; one that is forgotten is None."""
    seals = provenance.get(_KEY)
    return {k: v for k, v in seals.items() if v is not None} if isinstance(seals, dict) else {}


def _made_with(run: RunDirectory, parts: Iterable[str]) -> Iterator[str]:
    """The parts and what is made together with them: training writes the history and the model."""
    for part in parts:
        yield part
        if part in (run.history.name, run.training.parent.name):
            yield run.final_checkpoint.name
