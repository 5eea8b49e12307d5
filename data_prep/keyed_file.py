"""Results that are costly to make, each on a line of its own under a hash of what it came from.

    {"key": "<sha256>", "value": ..., "hash": "<sha256 of both>"}

Lines are appended as results come, so a killed process has lost what was in flight and nothing
else. A line that was cut off or damaged is no result: it is made again.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock


def content_key(*parts: Any) -> str:
    """The key of a result: a hash of everything that it depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class KeyedFile:
    """An append-only file of results by key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from completing the same file at the same time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            yield

    def read(self) -> dict[str, Any]:
        """Every whole line; the later one of two with one key."""
        if not self.path.exists():
            return {}
        return dict(pair for line in self.path.open("rb") if (pair := _read_line(line)))

    def append(self, values: Mapping[str, Any]) -> None:
        """Add results and wait until they are on the disk."""
        lines = [_line(key, value) + "\n" for key, value in values.items()]
        with self.path.open("ab") as file:
            if not self._ends_with_newline():
                file.write(b"\n")
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _ends_with_newline(self) -> bool:
        """Whether the last line is whole: a kill may have cut it off."""
        with self.path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _line(key: str, value: Any) -> str:
    return json.dumps({"key": key, "value": value, "hash": content_key(key, value)})


def _read_line(line: bytes) -> tuple[str, Any] | None:
    try:
        row = json.loads(line)
        key, value = row["key"], row["value"]
        return (key, value) if row["hash"] == content_key(key, value) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
