"""Sizes and hashes of finished files: whether they still are what was written.

`seal` lists a folder's files in one that is written last, after everything is on the disk. A folder
without it was cut off; one that differs from it was damaged since.
"""

import os
import re
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from data_prep.files import below, flush, hash_file, write_json
from data_prep.records import manifest_path
from equipoise.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import has_seal

#: Before the name of what is damaged.
_SET_ASIDE = "damaged-"
#: The list's name in its folder.
LIST = "complete"
#: Hashing lets other threads run; more readers than this gain nothing on one disk.
_READERS = 8


class Seal(BaseModel, frozen=True, strict=True):
    """One file as it was finished."""

    bytes: int = Field(ge=0)
    hash: str


#: Paths below a folder, with `/` -> their seals.
Seals = Mapping[str, Seal]
_SEALS = TypeAdapter(dict[str, Seal])


def seals_of(root: Path, files: Iterable[Path]) -> dict[str, Any]:
    """The seals of these files below `root`, as JSON holds them; they are on the disk then."""
    paths = sorted(files)
    with ThreadPoolExecutor(_READERS) as pool:
        seals = list(pool.map(_seal_file, paths))
    names = [path.relative_to(root).as_posix() for path in paths]
    return {name: seal.model_dump() for name, seal in zip(names, seals, strict=True)}


def damage(root: Path, seals: Any) -> list[str]:
    """List what is wrong with the files of `seals`, one line each; none when all are whole."""
    try:
        return _check(root, _SEALS.validate_python(seals))
    except ValidationError:
        return ["the list of its files is damaged"]


def seal(folder: Path) -> None:
    """List everything in `folder`. The last act of writing it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / LIST]
    listed = seals_of(folder, files)
    for directory in {path.parent for path in files} | {folder}:
        flush(directory)
    write_json(folder / LIST, listed)
    flush(folder)


def is_sealed(folder: Path) -> bool:
    """Whether `folder` was written to its end."""
    return (folder / LIST).is_file()


def folder_damage(folder: Path) -> list[str]:
    """List what is wrong with a sealed folder, one line for each file."""
    try:
        return _check(folder, _SEALS.validate_json((folder / LIST).read_bytes()))
    except (OSError, ValidationError):
        return [f"{LIST}, the list of its files, is damaged"]


def seal_file(path: Path) -> None:
    """List one file of a folder that holds others, in a list beside it."""
    write_json(_list_beside(path), seals_of(path.parent, [path]))


def is_whole(path: Path) -> bool:
    """Whether a file that `seal_file` listed is there and without damage."""
    try:
        return not _check(path.parent, _SEALS.validate_json(_list_beside(path).read_bytes()))
    except (OSError, ValidationError):
        return False


def _list_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{LIST}")


def set_aside(path: Path) -> None:
    """Give what is damaged another name, under which nothing reads it; an older one makes room."""
    aside = path.with_name(f"{_SET_ASIDE}{path.name}")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    if path.exists():
        path.rename(aside)


def _seal_file(path: Path) -> Seal:
    flush(path)
    return Seal(bytes=path.stat().st_size, hash=hash_file(path))


def _check(root: Path, seals: Seals) -> list[str]:
    names = sorted(seals)
    with ThreadPoolExecutor(_READERS) as pool:
        damages = pool.map(lambda name: _file_damage(root, name, seals[name]), names)
        return [f"{name} {reason}" for name, reason in zip(names, damages, strict=True) if reason]


def _file_damage(root: Path, name: str, expected: Seal) -> str | None:
    try:
        first, _, remainder = name.partition("/")
        if first == RunDirectory(root).final_checkpoint.name and remainder:
            root, name = root / first, remainder  # weights may lie on another disk, behind a link
        path = below(root, name)
        size = path.stat().st_size
        if not path.is_file():
            return "is not a file"
        if size != expected.bytes:
            return f"has {size:,} bytes of {expected.bytes:,}"
        return None if hash_file(path) == expected.hash else "was changed since it was written"
    except FileNotFoundError:
        return "is missing"
    except ValueError:
        return "is not a name of a file in this folder"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


# --- kept files -----------------------------------------------------------------------------------
# Finished files of a run, sealed in its provenance: a damaged one is not read as good.
#
# A command that reads a run opens it with `open_run`; one that reads a single part, such as the
# weights, asks `check_part`.


_KEY = "files"
_ANY = RunDirectory(Path())
#: The parts of a run that are sealed.
PARTS = frozenset(
    path.name
    for path in (
        *(_ANY.config, _ANY.prompts, manifest_path(_ANY.prompts), _ANY.reference),
        *(_ANY.evaluation("baseline").parent, _ANY.evaluation("final").parent, _ANY.comparison),
        *(_ANY.probe, _ANY.modes, _ANY.history, _ANY.training.parent),
        _ANY.final_checkpoint,
    )
)
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
    names = [part.name for part in _finished_parts(run)]
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


def _finished_parts(run: RunDirectory) -> Iterator[Path]:
    """Yield the parts of a run that are finished and are read of it, but for its weights."""
    yield from (run.rollouts(s).parent for s in ("baseline", "final") if run.evaluation(s).exists())
    parts = [run.config, run.prompts, manifest_path(run.prompts), run.reference, run.comparison]
    parts += [run.probe, run.modes]
    if run.evaluation("final").exists():  # else it is training
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
    if lines := [line for part in parts for line in _part_damage(run, part, seals[part])]:
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
    results = {
        part.name: [p for p in paths if p.is_file() and p != without and not p.name.startswith(".")]
        for part, paths in files.items()
    }
    run.ledger.update({_KEY: {name: seals_of(run.root, paths) for name, paths in results.items()}})


def record_unsealed(run: RunDirectory, *parts: Path) -> None:
    """Seal what a kill kept from its seal."""
    seals = _read_seals(run)
    if missing := [part for part in parts if part.name not in seals]:
        record_files(run, *missing)


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
    damaged = {part: lines for part in seals if (lines := _part_damage(run, part, seals[part]))}
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
    parts = set(damaged)
    if parts & {run.history.name, run.training.parent.name}:
        parts.add(run.final_checkpoint.name)  # training writes the history and the model together
    for part in parts:
        set_aside(run.root / part)
    forget_files(run, parts)


def damage_of(run: RunDirectory, part: str) -> list[str]:
    """List what is wrong with a sealed file or folder: one line for each file, or for all."""
    seals = _read_seals(run)
    return _part_damage(run, part, seals[part]) if part in seals else []


def _part_damage(run: RunDirectory, part: str, seals: Any) -> list[str]:
    return damage(run.root, seals) if (run.root / part).exists() else [f"{part} is missing"]


def _read_seals(run: RunDirectory) -> dict[str, Any]:
    return _seals_in(run.ledger.read())


def _seals_in(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The seals by part, without those that are forgotten. Raises `EquipoiseError` for others."""
    found = provenance.get(_KEY)
    seals = {k: v for k, v in found.items() if v is not None} if isinstance(found, dict) else {}
    if strange := sorted(seals.keys() - PARTS):
        raise EquipoiseError(
            "run.strange-part",
            f"{strange[0]!r} is not a part of a run, and its provenance.json lists it",
            "Nothing was read or moved. Take the folder from where it was made.",
        )
    return seals


# --- checkpoints ----------------------------------------------------------------------------------
# Which checkpoint of a stopped run can be trusted: the newest one that is what was written.


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
