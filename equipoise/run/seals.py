"""Sizes and hashes of finished files: whether they still are what was written.

`seal` lists a folder's files in one that is written last, after everything is on the disk. A folder
without it was cut off; one that differs from it was damaged since.
"""

import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from data_prep.files import flush, hash_file, write_json

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
        damages = pool.map(lambda name: _damage_of(root / name, seals[name]), names)
        return [f"{name} {reason}" for name, reason in zip(names, damages, strict=True) if reason]


def _damage_of(path: Path, expected: Seal) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return f"has {size:,} bytes of {expected.bytes:,}"
        return None if hash_file(path) == expected.hash else "was changed since it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
