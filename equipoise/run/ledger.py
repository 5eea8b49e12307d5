"""The ledger of a run, provenance.json: its origins, its seals, what it has taken so far.

Only the owner of the run changes it. The file is replaced whole and carries its own seal.
"""

import hashlib
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from data_prep.files import finite, read_json, remove_abandoned, write_json, write_text
from equipoise.config import LoadedConfig
from equipoise.config.secrets import masked, masked_diff
from equipoise.errors import EquipoiseError, UsageError

# --- ownership ------------------------------------------------------------------------------------
# One process at a time writes into a run directory.
#
# On one machine the operating system's lock decides: it is free when its process has ended, however
# that was, and a suspended process keeps it. Where locks do not reach, on some network file systems
# and between machines, the owner's name in the directory does: a process that resumes a run puts
# its own there, and one that finds another's stops before it writes.


_LOCK, _OWNER = ".lock", "owner.json"
#: What tells this process from every other one, on all machines.
_THIS_PROCESS = uuid.uuid4().hex


class LostRunError(EquipoiseError):
    """Another process owns the run now: nothing more may be written into it."""


class Owner(BaseModel, frozen=True):
    """The process that a run belongs to."""

    token: str
    pid: int
    host: str
    since: str
    command: str

    def __str__(self) -> str:
        """Say where to find it."""
        return f"process {self.pid} on {self.host} since {self.since}"


@contextmanager
def owning(root: Path, warn: Callable[[str], None]) -> Iterator[None]:
    """Inside, the run is this process's. Raises `UsageError` where another one has it.

    What killed processes were writing into it is removed.
    """
    with _locked(root, warn):
        if (owner := read_owner(root)) and owner.host != socket.gethostname():
            warn(f"the run's last owner, {owner}, did not end it; if it still runs, it will stop")
        this_process = Owner(
            token=_THIS_PROCESS,
            pid=os.getpid(),
            host=socket.gethostname(),
            since=now(),
            command=shlex.join(map(masked, sys.argv)),
        )
        write_text(root / _OWNER, this_process.model_dump_json(indent=2) + "\n")
        for folder in (root, *filter(Path.is_dir, root.iterdir())):
            remove_abandoned(folder)
        try:
            yield
        finally:
            if (owner := read_owner(root)) and owner.token == _THIS_PROCESS:
                (root / _OWNER).unlink(missing_ok=True)


def confirm_owner(root: Path) -> None:
    """Raise `LostRunError` when the run has become another process's."""
    owner = read_owner(root)
    if owner and owner.token != _THIS_PROCESS:
        raise LostRunError(
            "run.lost",
            f"the run {root} was taken over by {owner}",
            "This process has written nothing since. Let the other one finish.",
        )


def read_owner(root: Path) -> Owner | None:
    """The owner named there; None where none is, or it cannot be read."""
    try:
        return Owner.model_validate_json((root / _OWNER).read_bytes())
    except (OSError, ValidationError):
        return None


@contextmanager
def _locked(root: Path, warn: Callable[[str], None]) -> Iterator[None]:
    lock = FileLock(root / _LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        owner = read_owner(root)
        if owner is None:
            raise UsageError(
                "run.in-use", f"the run {root} is in use by another process", "Wait for it to end."
            ) from None
        raise UsageError(
            "run.in-use-by-owner",
            f"the run {root} is in use by {owner}: {owner.command}",
            f"Wait for it, or end it on {owner.host} with `kill {owner.pid}; kill -CONT "
            f"{owner.pid}` (a suspended process keeps its run, and the second word wakes it); "
            "--resume then goes on.",
        ) from None
    except NotImplementedError:
        warn(f"{root} lies on a file system without locks: do not resume a run that still runs")
    try:
        yield
    finally:
        lock.release()


# --- ledger ---------------------------------------------------------------------------------------


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
        try:
            status = self._path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
        except OSError:
            version = None
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


# --- provenance -----------------------------------------------------------------------------------
# Origins of a run: command, code, versions, seeds, hashes. No secret ever enters.


PACKAGES = (
    "bm25s",
    "datasets",
    "numpy",
    "peft",
    "regopy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "wandb",
)
_ROOT = Path(__file__).resolve().parents[2]


def describe_run(
    *, task: str, run_name: str, engine: str, model: str, local_model: bool, seed: int
) -> dict[str, Any]:
    """The provenance of a run that starts now."""
    return {
        "task": task,
        "run_name": run_name,
        "run_id": uuid.uuid4().hex,
        "engine": engine,
        "model": model,
        "local_model": local_model,
        "command": command_line(),
        "started": now(),
        "git": git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "seed": seed,
        "hashes": {},
        "seconds": {},
    }


def code_hash(loaded: LoadedConfig) -> str:
    """SHA-256 of the environment's code."""
    digest = hashlib.sha256()
    module = sys.modules[loaded.environment_class.__module__]
    file = Path(str(module.__file__))
    # The modules of the class's package, or its file where it has none.
    for path in sorted(file.parent.rglob("*.py")) if module.__package__ else [file]:
        digest.update(path.relative_to(file.parent).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def command_line() -> list[str]:
    """How this process was started, keys masked."""
    return ["python", *map(masked, sys.argv)]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what a run computes."""
    return {name: _version(name) for name in PACKAGES}


def git_state() -> dict[str, Any]:
    """Commit of this checkout and whether files differ from it; empty outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit.decode().strip(), "dirty": bool(_git("status", "--porcelain"))}


def code_diff() -> tuple[bytes, int]:
    """Diff against the commit, as `git apply` takes it, under any settings of git's own.

    What looks like a key is masked; the number of masks comes second.
    """
    diff = _git("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") or b""
    text, masks = masked_diff(diff.decode(errors="surrogateescape"))
    return text.encode(errors="surrogateescape"), masks


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> bytes | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments],
            capture_output=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
