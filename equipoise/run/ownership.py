"""One process at a time writes into a run directory.

On one machine the operating system's lock decides: it is free when its process has ended, however
that was, and a suspended process keeps it. Where locks do not reach, on some network file systems
and between machines, the owner's name in the directory does: a process that resumes a run puts its
own there, and one that finds another's stops before it writes.
"""

import os
import shlex
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from data_prep.files import remove_abandoned, write_text
from equipoise.config.secrets import masked
from equipoise.errors import EquipoiseError, UsageError

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
        _put_name(root)
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
        raise _in_use(root, read_owner(root)) from None
    except NotImplementedError:
        warn(f"{root} lies on a file system without locks: do not resume a run that still runs")
    try:
        yield
    finally:
        lock.release()


def _in_use(root: Path, owner: Owner | None) -> UsageError:
    if owner is None:
        return UsageError(
            "run.in-use", f"the run {root} is in use by another process", "Wait for it to end."
        )
    return UsageError(
        "run.in-use-by-owner",
        f"the run {root} is in use by {owner}: {owner.command}",
        f"Wait for it, or end it on {owner.host} with `kill {owner.pid}; kill -CONT {owner.pid}` "
        "(a suspended process keeps its run, and the second word wakes it); --resume then goes on.",
    )


def _put_name(root: Path) -> None:
    owner = Owner(
        token=_THIS_PROCESS,
        pid=os.getpid(),
        host=socket.gethostname(),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(map(masked, sys.argv)),
    )
    write_text(root / _OWNER, owner.model_dump_json(indent=2) + "\n")
