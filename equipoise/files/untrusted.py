"""Folders of others: bounded, and without links that lead out of them.

A folder is looked through once, before transformers or anything else opens a file of it.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from environments.base import code_of
from equipoise.files.disk import DamagedFileError, parse_json
from equipoise.files.errors import EquipoiseError

COPY_AGAIN = "Copy the folder again with all its files, or take another one."
#: Far more than any checkpoint has: one of 70 B parameters on 64 ranks has some hundred files.
_MOST_FILES = 100_000
#: Of a file that is read whole; the largest tokenizers have 40 MB, the largest indexes 20 MB.
_MOST_BYTES = 2**26
_READ_WHOLE = frozenset({".json", ".jinja", ".txt", ".yaml", ".model", ".tiktoken"})


def check_folder(folder: Path) -> None:
    """Refuse a folder that leads elsewhere or has no end. Raises `EquipoiseError`.

    A link may name a file of the same folder, or one of the Hugging Face hub's cache that the
    folder is a part of. What is neither file nor folder, such as a pipe, is refused.
    """
    resolved = folder.resolve()
    # The hub's cache keeps the files of a snapshot beside it, in blobs.
    snapshots = (parent for parent in resolved.parents if parent.name == "snapshots")
    roots = (resolved, *(parent.parent / "blobs" for parent in snapshots))
    entries = (
        Path(root, name) for root, folders, files in os.walk(folder) for name in (*folders, *files)
    )
    for number, path in enumerate(entries):
        if number >= _MOST_FILES:
            raise EquipoiseError(
                "model.too-many-files",
                f"{folder} holds more than {_MOST_FILES:,} files",
                COPY_AGAIN,
            )
        _check_entry(path, roots)


def _check_entry(path: Path, roots: tuple[Path, ...]) -> None:
    try:
        target, about = path.resolve(strict=True), path.stat()
    except (OSError, RuntimeError) as error:  # a link to nothing, or to itself
        raise EquipoiseError(
            "model.unreadable-entry", f"{path} cannot be read: {error}", COPY_AGAIN
        ) from error
    if path.is_symlink() and not any(target.is_relative_to(root) for root in roots):
        raise EquipoiseError(
            "model.link-outside",
            f"{path} is a link that leads out of its folder",
            "If you trust it, put a copy of the file in its place.",
        )
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise EquipoiseError(
            "model.special-file", f"{path} is neither a file nor a folder", COPY_AGAIN
        )
    if path.suffix in _READ_WHOLE and path.is_file():
        _check_size(path, about.st_size)


def _check_size(path: Path, size: int) -> None:
    if size > _MOST_BYTES:
        raise EquipoiseError(
            "model.oversize-file",
            f"{path} has {size:,} bytes, and {_MOST_BYTES:,} are the most that is read",
            COPY_AGAIN,
        )


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `EquipoiseError` for anything else."""
    try:
        _check_size(path, path.stat().st_size)
        value = parse_json(path, path.read_bytes())
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not a name
    except (DamagedFileError, OSError, UnicodeEncodeError) as error:
        raise EquipoiseError(
            code_of(error, "model.unreadable-file"), str(error), COPY_AGAIN
        ) from error
    if not isinstance(value, dict):
        raise EquipoiseError("model.no-json-object", f"{path} is not a JSON object", COPY_AGAIN)
    return value
