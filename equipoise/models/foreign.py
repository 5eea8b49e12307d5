"""Model folders of others: bounded, without links that lead out of them, and without code.

A folder is looked through once, before transformers or anything else opens a file of it.
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments.errors import code_of
from equipoise.files.disk import DamagedFileError, parse_json
from equipoise.files.errors import EquipoiseError

_ANOTHER = "Copy the folder again with all its files, or take another one."
#: Far more than any checkpoint has: one of 70 B parameters on 64 ranks has some hundred files.
_MOST_FILES = 100_000
#: Of a file that is read whole; the largest tokenizers have 40 MB, the largest indexes 20 MB.
_MOST_BYTES = 2**26
_READ_WHOLE = frozenset({".json", ".jinja", ".txt", ".yaml", ".model", ".tiktoken"})
#: Layers, experts and labels, of which transformers makes as many.
_MOST_PARTS = 1_000
_PARTS = re.compile(r"(num|n)_.*(layer|expert|label|block)|.*(layers|experts|labels|blocks)")
#: Experts of all layers; the largest models have some 25,000.
_MOST_MODULES = 100_000
#: What attends and what the experts do; a name with a slash is code, which would be downloaded.
_IMPLEMENTATIONS = (
    *("attn_implementation", "_attn_implementation"),
    *("experts_implementation", "_experts_implementation"),
)
#: What of a config.json names code of others.
NAMES_OF_CODE = ("auto_map", *_IMPLEMENTATIONS)


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
                "model.too-many-files", f"{folder} holds more than {_MOST_FILES:,} files", _ANOTHER
            )
        _check_entry(path, roots)


def _check_entry(path: Path, roots: tuple[Path, ...]) -> None:
    try:
        target, about = path.resolve(strict=True), path.stat()
    except (OSError, RuntimeError) as error:  # a link to nothing, or to itself
        raise EquipoiseError(
            "model.unreadable-entry", f"{path} cannot be read: {error}", _ANOTHER
        ) from error
    if path.is_symlink() and not any(target.is_relative_to(root) for root in roots):
        raise EquipoiseError(
            "model.link-outside",
            f"{path} is a link that leads out of its folder",
            "If you trust it, put a copy of the file in its place.",
        )
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
        raise EquipoiseError(
            "model.special-file", f"{path} is neither a file nor a folder", _ANOTHER
        )
    if path.suffix in _READ_WHOLE and path.is_file():
        _check_size(path, about.st_size)


def _check_size(path: Path, size: int) -> None:
    if size > _MOST_BYTES:
        raise EquipoiseError(
            "model.oversize-file",
            f"{path} has {size:,} bytes, and {_MOST_BYTES:,} are the most that is read",
            _ANOTHER,
        )


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `EquipoiseError` for anything else."""
    try:
        _check_size(path, path.stat().st_size)
        value = parse_json(path, path.read_bytes())
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not a name
    except (DamagedFileError, OSError, UnicodeEncodeError) as error:
        raise EquipoiseError(
            code_of(error, "model.unreadable-file"), str(error), _ANOTHER
        ) from error
    if not isinstance(value, dict):
        raise EquipoiseError("model.no-json-object", f"{path} is not a JSON object", _ANOTHER)
    return value


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse a config.json that has too many parts, or names code. Raises `EquipoiseError`.

    `auto_map` alone is harmless: transformers' own class is taken, or there is none.
    """
    for key in _IMPLEMENTATIONS:
        if "/" in str(settings.get(key)):
            raise EquipoiseError(
                "model.foreign-code",
                f"{name}: config.json has {key} {settings[key]!r}, which is code of the hub's",
                "No code of others is run: take the key out of a copy of the model.",
            )
    counts = list(_counts(settings))
    for key, value in counts:
        if value > _MOST_PARTS:
            raise EquipoiseError(
                "model.implausible-size",
                f"{name}: config.json has {key} {value:,}; no model has more than {_MOST_PARTS:,}",
                _ANOTHER,
            )
    layers, experts = (
        max((value for key, value in counts if part in key), default=0)
        for part in ("layer", "expert")
    )
    if layers * experts > _MOST_MODULES:
        raise EquipoiseError(
            "model.implausible-size",
            f"{name}: config.json has {layers:,} layers of {experts:,} experts; no model has more "
            f"than {_MOST_MODULES:,} in all",
            _ANOTHER,
        )


def _counts(settings: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The keys that say how many layers, experts or labels there are, at any depth."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _counts(value)
        elif type(value) is int and _PARTS.match(key):
            yield key, value
