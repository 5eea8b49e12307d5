"""The ledger of a run, provenance.json: its origins, its seals, what it has taken so far.

Only the owner of the run changes it. The file is replaced whole and carries its own seal.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_prep.files import finite, read_json, write_json
from equipoise.errors import EquipoiseError
from equipoise.run.ownership import confirm_owner

_SEAL = "sha256"


class Ledger:
    """The content of a run's provenance.json, held until the file changes.

    A change is checked, merged and written by one call, and read again from the disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: dict[str, Any] = {}
        #: Inode, time of change in ns and bytes of the file that the content is of.
        self._version: tuple[int, int, int] | None = None

    def create(self, content: Mapping[str, Any]) -> None:
        """Write the first content, or another one in its place."""
        self._write(dict(content))

    def read(self, *, unsealed: bool = False) -> Mapping[str, Any]:
        """Return the content. Raises `EquipoiseError` where it is damaged, missing or has no seal.

        With `unsealed` it may lack its seal; one that is wrong is refused all the same.
        """
        version = self._version_on_disk()
        if version is None or version != self._version:
            self._content, self._version = _read(self._path), version
        if not unsealed and not has_seal(self._content):
            raise _unreadable(self._path, f"it has no seal (its key {_SEAL})")
        return self._content

    def update(self, changes: Mapping[str, Any]) -> None:
        """Merge `changes` into the content, one level deep.

        Raises `EquipoiseError` where there is no seal: a new one would vouch for what nobody knows.
        """
        confirm_owner(self._path.parent)
        content = dict(self.read())
        for key, value in changes.items():
            previous = content.get(key)
            if isinstance(value, Mapping) and isinstance(previous, dict):
                value = {**previous, **value}
            content[key] = value
        self._write(content)

    def record_hash(self, name: str, value: str) -> None:
        """Note the hash of what the run is made from.

        Raises `EquipoiseError` where it was another one when the run began.
        """
        before = self.read()["hashes"].get(name, value)
        if before != value:
            raise EquipoiseError(
                "run.changed-source",
                f"since this run began, its {name} changed: it was {before} and is {value}",
                "Put back what it was, or start a new run.",
            )
        self.update({"hashes": {name: value}})

    def _write(self, content: Mapping[str, Any]) -> None:
        write_json(self._path, {**content, _SEAL: _seal_of(content)})
        self._version = None

    def _version_on_disk(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def has_seal(content: Mapping[str, Any]) -> bool:
    """Whether the content of a provenance.json vouches for itself."""
    return _SEAL in content


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise _unreadable(path, "it is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(content, dict):
        raise _unreadable(path, "is no JSON object")
    if content.get(_SEAL, _seal_of(content)) != _seal_of(content):
        raise _unreadable(path, "it was changed since it was written")
    return content


def _seal_of(content: Mapping[str, Any]) -> str:
    """Hash everything else in it; nothing else could say that it is whole."""
    payload = {key: value for key, value in content.items() if key != _SEAL}
    return hashlib.sha256(json.dumps(finite(payload), sort_keys=True).encode()).hexdigest()


def _unreadable(path: Path, reason: str) -> EquipoiseError:
    return EquipoiseError(
        "run.unreadable-ledger",
        f"{path} cannot be read: {reason}",
        "Put it back from a copy. Without it nothing says what the run was made from: start a new "
        "run.",
    )
