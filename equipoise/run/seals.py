"""manifest.json: sizes and hashes of a folder's finished files, by which damage is noticed.

A checkpoint's is its last file: a folder without it was cut off. A run's grows as its stages
finish. What reads a run opens it with `open_run`; what reads one part, such as the weights, asks
`check_part`.
"""

import os
import re
import shutil
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from data_prep.records import manifest_path
from equipoise.files.disk import below, flush, hash_file, write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.run.directory import RunDirectory

MANIFEST = "manifest.json"
#: Before the name of what is damaged.
_SET_ASIDE = "damaged-"
#: Hashing lets other threads run; more readers than this gain nothing on one disk.
_READERS = 8
_ANY = RunDirectory(Path())
#: The parts of a run that its manifest lists.
PARTS = frozenset(
    path.name
    for path in (
        *(_ANY.config, _ANY.prompts, manifest_path(_ANY.prompts), _ANY.reference),
        *(_ANY.evaluation("baseline").parent, _ANY.evaluation("final").parent, _ANY.comparison),
        *(_ANY.probe, _ANY.modes, _ANY.history, _ANY.training.parent),
        _ANY.final_checkpoint,
    )
)
_FROM_COPY = "Put it back from a copy, or let --resume of the run make it again where it can."


class FileState(BaseModel, frozen=True, strict=True):
    """A file as it was finished."""

    bytes: int = Field(ge=0)
    hash: str


class Manifest(BaseModel, frozen=True, strict=True):
    """The finished files of a folder, by their paths below it, with `/`."""

    files: Mapping[str, FileState]

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read a folder's manifest; without one nothing is listed. Raises `EquipoiseError`."""
        path = folder / MANIFEST
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return cls(files={})
        except (OSError, ValidationError) as error:
            raise EquipoiseError(
                "run.unreadable-manifest",
                f"{path} cannot be read: {str(error).splitlines()[0]}",
                "Put it back from a copy.",
            ) from None

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, self.model_dump())

    def damage(self, root: Path) -> list[str]:
        """List what is wrong with the files, one line each; none when all are whole."""
        names = sorted(self.files)
        with ThreadPoolExecutor(_READERS) as pool:
            faults = pool.map(lambda name: _file_damage(root, name, self.files[name]), names)
            return [f"{name} {fault}" for name, fault in zip(names, faults, strict=True) if fault]

    def without(self, parts: Iterable[str]) -> dict[str, FileState]:
        """Copy the entries but those of these files and folders."""
        gone = set(parts)
        return {
            name: state
            for name, state in self.files.items()
            if name not in gone and _part(name) not in gone
        }

    def of(self, part: str) -> "Manifest":
        return Manifest(files={n: state for n, state in self.files.items() if _part(n) == part})


def _part(name: str) -> str:
    return name.partition("/")[0]


def _states(root: Path, files: Iterable[Path]) -> dict[str, FileState]:
    """Describe these files below `root`; they are on the disk then."""
    paths = sorted(files)
    with ThreadPoolExecutor(_READERS) as pool:
        states = list(pool.map(_state, paths))
    names = [path.relative_to(root).as_posix() for path in paths]
    return dict(zip(names, states, strict=True))


def _state(path: Path) -> FileState:
    flush(path)
    return FileState(bytes=path.stat().st_size, hash=hash_file(path))


def _file_damage(root: Path, name: str, expected: FileState) -> str | None:
    try:
        first, _, remainder = name.partition("/")
        if first == _ANY.final_checkpoint.name and remainder:
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


def set_aside(path: Path) -> None:
    """Give what is damaged another name, under which nothing reads it; an older one makes room."""
    aside = path.with_name(f"{_SET_ASIDE}{path.name}")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside)
    if path.exists():
        path.rename(aside)


# --- a run ----------------------------------------------------------------------------------------


def open_run(root: Path) -> RunDirectory:
    """Compare a run with its manifest, but for its weights, before anything is read of it.

    Raises `EquipoiseError` for a file that is missing, not as it was written, or not listed.
    """
    run = RunDirectory(root)
    if not (run.provenance.is_file() or run.config.is_file()):
        fault = "is not a run" if root.exists() else "does not exist"
        raise UsageError(
            "run.no-run", f"{root} {fault}", "Name the folder of a run, results/<task>/<run name>."
        )
    run.ledger.read()
    listed = _read_run(run)
    _refuse_damage(run, listed, _parts(listed) - {run.final_checkpoint.name})
    _refuse_unlisted(run, listed, _finished_parts(run))
    return run


def check_part(part: Path) -> None:
    """Compare a run's model, reference or checkpoint with its manifest.

    Of a checkpoint that has none yet, and of what lies in no run, there is nothing to compare.
    Raises `EquipoiseError` like `open_run`.
    """
    path = Path(os.path.abspath(part))  # noqa: PTH100  a link in a run is still the run's
    run = RunDirectory(path.parent)
    if path in (run.final_checkpoint, run.reference) and run.provenance.is_file():
        listed = _read_run(run)
        _refuse_damage(run, listed, _parts(listed) & {path.name})
        _refuse_unlisted(run, listed, filter(Path.exists, [path]))
    elif path.parent.name == run.checkpoints.name and is_sealed(path):
        _refuse(part, folder_damage(path))


def checkpoint_at(path: Path) -> Path:
    """Return a run's final checkpoint, or else its newest one; any other path as it is.

    It is compared with its manifest. Raises `EquipoiseError` for damage, and for a run without a
    checkpoint, or with a link that leads out of it.
    """
    run = RunDirectory(path)
    if not run.provenance.is_file():
        check_part(path)
        return path
    check_part(run.final_checkpoint)  # one that is missing, too
    folder = run.final_checkpoint
    if not folder.is_dir():
        checkpoints = find_checkpoints(run.checkpoints, "step_")
        if not checkpoints:
            raise EquipoiseError(
                "convert.run-without-checkpoint", f"{path} has no checkpoint yet", ""
            )
        folder = checkpoints[0].path
        check_part(folder)
    if not folder.resolve().is_relative_to(path.resolve()):
        raise EquipoiseError(
            "convert.link-outside",
            f"{folder} is a link that leads out of its run",
            "Name the folder that it leads to.",
        )
    return folder


def _finished_parts(run: RunDirectory) -> Iterator[Path]:
    """Yield the parts of a run that are finished and are read of it, but for its weights."""
    yield from (run.rollouts(s).parent for s in ("baseline", "final") if run.evaluation(s).exists())
    parts = [run.config, run.prompts, manifest_path(run.prompts), run.reference, run.comparison]
    parts += [run.probe, run.modes]
    if run.evaluation("final").exists():  # else it is training
        parts += [run.history, run.training.parent]
    yield from filter(Path.exists, parts)


def _refuse_unlisted(run: RunDirectory, listed: Manifest, parts: Iterable[Path]) -> None:
    unlisted = [part.name for part in parts if part.name not in _parts(listed)]
    if unlisted:
        raise EquipoiseError(
            "run.unlisted-files",
            f"{run.root}: {MANIFEST} does not list {', '.join(unlisted)}: nothing shows that this "
            "is what the run wrote",
            f"Put {MANIFEST} back from a copy. To use a file of your own, name it outside the run.",
        )


def _refuse_damage(run: RunDirectory, listed: Manifest, parts: Iterable[str]) -> None:
    _refuse(run.root, [line for part in sorted(parts) for line in _part_damage(run, listed, part)])


def _refuse(root: Path, lines: Sequence[str]) -> None:
    if lines:
        raise EquipoiseError(
            "run.damaged-files", "\n".join(f"{root}: {line}" for line in lines), _FROM_COPY
        )


def record_files(run: RunDirectory, *parts: Path, without: Path | None = None) -> None:
    """List files and folders of the run that are finished, where they are there.

    Hidden files are not results, and neither is `without`.
    """
    present = [part for part in parts if part.exists()]
    files = [
        path
        for part in present
        for path in (part.rglob("*") if part.is_dir() else [part])
        if path.is_file() and path != without and not path.name.startswith(".")
    ]
    remaining = _read_run(run).without(part.name for part in present)
    Manifest(files=remaining | _states(run.root, files)).write(run.root)


def forget_files(run: RunDirectory, parts: Iterable[str]) -> None:
    """Take what is not finished any longer, or is written anew, from the list."""
    listed = _read_run(run)
    if (remaining := listed.without(parts)) != listed.files:
        Manifest(files=remaining).write(run.root)


def check_files(run: RunDirectory, *, lasting: Container[str], warn: Callable[[str], None]) -> None:
    """Look at everything that is listed. What is damaged is set aside, so that it is made again.

    Raises `EquipoiseError` for what is `lasting`: its engine cannot make it again.
    """
    listed = _read_run(run)
    damaged = {part: lines for part in _parts(listed) if (lines := _part_damage(run, listed, part))}
    # A kill may leave what a finished stage was made of.
    for stage in {"baseline", "final"} & (_parts(listed) - damaged.keys()):
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
    """List what is wrong with a listed file or folder: one line for each file, or for all."""
    listed = _read_run(run)
    return _part_damage(run, listed, part) if part in _parts(listed) else []


def _part_damage(run: RunDirectory, listed: Manifest, part: str) -> list[str]:
    if not (run.root / part).exists():
        return [f"{part} is missing"]
    return listed.of(part).damage(run.root)


def _parts(listed: Manifest) -> frozenset[str]:
    return frozenset(map(_part, listed.files))


def _read_run(run: RunDirectory) -> Manifest:
    """Read a run's manifest. Raises `EquipoiseError` for a name that is not a part of a run."""
    listed = Manifest.read(run.root)
    if strange := sorted(_parts(listed) - PARTS):
        raise EquipoiseError(
            "run.strange-part",
            f"{strange[0]!r} is not a part of a run, and its {MANIFEST} lists it",
            "Nothing was read or moved. Take the folder from where it was made.",
        )
    return listed


# --- checkpoints ----------------------------------------------------------------------------------


def seal(folder: Path) -> None:
    """List everything in `folder`. The last act of writing it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST]
    listed = Manifest(files=_states(folder, files))
    for directory in {path.parent for path in files} | {folder}:
        flush(directory)
    listed.write(folder)
    flush(folder)


def is_sealed(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def folder_damage(folder: Path) -> list[str]:
    """List what is wrong with a sealed folder, one line for each file."""
    if not is_sealed(folder):
        return [f"{MANIFEST} is missing"]
    try:
        return Manifest.read(folder).damage(folder)
    except EquipoiseError:
        return [f"{MANIFEST} cannot be read"]


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
