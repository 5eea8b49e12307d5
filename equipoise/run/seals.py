"""manifest.json: hashes of a run's finished files, by which a change is noticed.

`seal` lists what is finished. What reads a run opens it with `open_run`; what reads one part, such
as the weights, asks `check_part`.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from equipoise.files.disk import flush, hash_file, read_model, write_json
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.records import manifest_path
from equipoise.run.directory import RunDirectory

MANIFEST = "manifest.json"
#: Hashing lets other threads run; more readers than this gain nothing on one disk.
_READERS = 8


class FileState(BaseModel, frozen=True, strict=True):
    """A file as it was finished."""

    bytes: int
    hash: str

    @classmethod
    def of(cls, path: Path) -> "FileState":
        flush(path)
        return cls(bytes=path.stat().st_size, hash=hash_file(path))


class Manifest(BaseModel, frozen=True, strict=True):
    """A run's finished files, by their paths below it, with `/`."""

    files: Mapping[str, FileState] = {}

    @classmethod
    def read(cls, root: Path) -> "Manifest":
        """Read a run's manifest; without one nothing is listed. Raises `EquipoiseError`."""
        path = root / MANIFEST
        if not path.exists():
            return cls()
        return read_model(path, cls, "run.unreadable-manifest", "Put it back from a copy.")

    def parts(self) -> frozenset[str]:
        return frozenset(map(_part, self.files))


def _part(name: str) -> str:
    return name.partition("/")[0]


def _finished_parts(run: RunDirectory) -> dict[str, Path]:
    """The files and folders that no stage writes to any longer, by name."""
    parts = [run.config, run.prompts, manifest_path(run.prompts), run.reference]
    parts += [run.probe, run.comparison, run.modes, run.final_checkpoint]
    parts += [run.rollouts(s).parent for s in ("baseline", "final") if run.evaluation(s).exists()]
    if run.evaluation("final").exists() or run.final_checkpoint.exists():  # else it is training
        parts += [run.history, run.training.parent]
    return {path.name: path for path in parts if path.exists()}


def seal(run: RunDirectory, *renewed: Path) -> None:
    """List the finished parts: `renewed` ones anew, others that are not listed yet.

    Hidden files are not results; neither are generations, which are removed next, and the model's
    card, which may be edited.
    """
    finished, listed = _finished_parts(run), Manifest.read(run.root)
    unlisted = finished.keys() - (listed.parts() - {path.name for path in renewed})
    left_out = {run.generations(stage) for stage in ("baseline", "final")}
    left_out |= {run.final_checkpoint / "README.md"}
    paths = [
        path
        for part in sorted(unlisted)
        for path in (finished[part], *finished[part].rglob("*"))
        if path.is_file() and path not in left_out and not path.name.startswith(".")
    ]
    with ThreadPoolExecutor(_READERS) as pool:
        states = list(pool.map(FileState.of, paths))
    names = [path.relative_to(run.root).as_posix() for path in paths]
    remaining = finished.keys() - unlisted
    files = {name: state for name, state in listed.files.items() if _part(name) in remaining}
    files |= dict(zip(names, states, strict=True))
    write_json(run.root / MANIFEST, Manifest(files=files).model_dump())


def damage_of(run: RunDirectory, *parts: str) -> list[str]:
    """List what is wrong with the listed files of these parts, one line for each."""
    listed = Manifest.read(run.root).files
    gone = {part for part in parts if not (run.root / part).exists()}
    names = sorted(name for name in listed if _part(name) in parts and _part(name) not in gone)
    with ThreadPoolExecutor(_READERS) as pool:
        faults = pool.map(lambda name: _fault(run.root, name, listed[name]), names)
        damage = [f"{name} {fault}" for name, fault in zip(names, faults, strict=True) if fault]
    return [f"{part} is missing" for part in sorted(gone)] + damage


def _fault(root: Path, name: str, expected: FileState) -> str:
    """Say what is wrong with a listed file. The list may be a stranger's, and name any path."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            return "leads out of the run"
        if not path.is_file():
            return "is not a file" if path.exists() else "is missing"
        unchanged = path.stat().st_size == expected.bytes and hash_file(path) == expected.hash
        return "" if unchanged else "was changed since it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError:
        return "is not the name of a file"


def open_run(root: Path) -> RunDirectory:
    """Compare a run, except its weights, with its manifest before reading it.

    Raises `EquipoiseError` for a file that is missing, not as it was written, or not listed.
    """
    run = RunDirectory(root)
    if not (run.provenance.is_file() or run.config.is_file()):
        fault = "is not a run" if root.exists() else "does not exist"
        raise UsageError(
            "run.no-run", f"{root} {fault}", "Name the folder of a run, results/<task>/<run name>."
        )
    run.ledger.read()
    weights = {run.final_checkpoint.name}
    listed = Manifest.read(root).parts()
    _check(run, (listed | _finished_parts(run).keys()) - weights)
    return run


def check_part(part: Path) -> None:
    """Compare a run's model or reference with its manifest; there is none outside of a run.

    Raises `EquipoiseError` like `open_run`.
    """
    path = Path(os.path.abspath(part))  # noqa: PTH100  a link in a run is still the run's
    run = RunDirectory(path.parent)
    if path in (run.final_checkpoint, run.reference) and run.provenance.is_file():
        listed = path.name in Manifest.read(run.root).parts()
        _check(run, {path.name} if listed or path.exists() else ())


def _check(run: RunDirectory, parts: Iterable[str]) -> None:
    names = sorted(parts)
    listed = Manifest.read(run.root).parts()
    if unlisted := [name for name in names if name not in listed]:
        raise EquipoiseError(
            "run.unlisted-files",
            f"{run.root}: {MANIFEST} does not list {', '.join(unlisted)}: nothing shows that this "
            "is what the run wrote",
            f"Put {MANIFEST} back from a copy. To use a file of your own, name it outside the run.",
        )
    if damage := damage_of(run, *names):
        raise EquipoiseError(
            "run.damaged-files",
            "\n".join(f"{run.root}: {line}" for line in damage),
            "Put it back from a copy, or remove it and let --resume of the run make it again.",
        )


def remove(path: Path) -> None:
    """Remove a file or folder at once: so that nothing reads half a folder."""
    scratch = path.rename(path.with_name(f".{path.name}.removed.partial"))  # see `owning`
    shutil.rmtree(scratch) if scratch.is_dir() else scratch.unlink()


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder with a checkpoint's name."""

    path: Path
    step: int


def find_checkpoints(folder: Path, prefix: str, last_file: str = "") -> list[CheckpointFolder]:
    """The folders `<prefix>N` that hold the file which is written last, newest first."""
    folders = []
    for path in folder.glob(f"{prefix}*"):
        number = re.fullmatch(r"[0-9]{1,18}", path.name.removeprefix(prefix))
        if number and path.is_dir() and (path / last_file).exists():
            folders.append(CheckpointFolder(path, int(number[0])))
    return sorted(folders, key=lambda checkpoint: checkpoint.step, reverse=True)


def checkpoint_at(path: Path) -> Path:
    """Return a run's final checkpoint, or else its newest one; any other path as it is.

    Raises `EquipoiseError` for damage, and for a run without a checkpoint, or with a link that
    leads out of it.
    """
    run = RunDirectory(path)
    if not run.provenance.is_file():
        check_part(path)
        return path
    folder = run.final_checkpoint
    if not folder.is_dir():
        check_part(folder)  # one that is missing
        checkpoints = find_checkpoints(run.checkpoints, "step_")
        if not checkpoints:
            raise EquipoiseError(
                "convert.run-without-checkpoint", f"{path} has no checkpoint yet", ""
            )
        folder = checkpoints[0].path
    if not folder.resolve().is_relative_to(path.resolve()):
        raise EquipoiseError(
            "convert.link-outside",
            f"{folder} is a link that leads out of its run",
            "Name the folder that it leads to.",
        )
    check_part(folder)
    return folder
