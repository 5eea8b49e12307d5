"""The ledger of a run, provenance.json: its origins, and what it has taken so far.

Only the process that holds the run's lock changes it.
"""

import hashlib
import json
import platform
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from equipoise.config import LoadedConfig
from equipoise.config.secrets import masked
from equipoise.files.disk import finite, read_json, remove_abandoned, write_json
from equipoise.files.errors import EquipoiseError, UsageError


@contextmanager
def owning(root: Path) -> Iterator[None]:
    """Hold the run's lock for the block. Raises `UsageError` where another process has it.

    The lock goes with its process, however that ends; a suspended one keeps it. What killed
    processes were writing into the run is removed.
    """
    lock = FileLock(root / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(
            "run.in-use",
            f"the run {root} is in use by another process",
            f"Wait for it, or end it (`fuser {lock.lock_file}` names it); --resume then goes on.",
        ) from None
    try:
        for folder in (root, *filter(Path.is_dir, root.iterdir())):
            remove_abandoned(folder)
        yield
    finally:
        lock.release()


# --- ledger ---------------------------------------------------------------------------------------


_HASH = "sha256"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The content of a run's provenance.json, which has a hash of itself."""

    path: Path

    def create(self, content: Mapping[str, Any]) -> None:
        write_json(self.path, {**content, _HASH: _hash_of(content)})

    def read(self) -> dict[str, Any]:
        """Return the content. Raises `EquipoiseError` where it is damaged, changed or missing."""
        try:
            content = read_json(self.path)
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
            if content.get(_HASH) != _hash_of(content):
                raise ValueError("it was changed since it was written")
            return content
        except (OSError, ValueError) as error:
            raise EquipoiseError(
                "run.unreadable-ledger",
                f"{self.path} cannot be read: {error}",
                "Put it back from a copy. Nothing else says what the run was made from.",
            ) from None

    def update(self, changes: Mapping[str, Any]) -> None:
        """Merge `changes` into the content, one level deep."""
        content = self.read()
        for key, value in changes.items():
            previous = content.get(key)
            if isinstance(value, Mapping) and isinstance(previous, dict):
                value = {**previous, **value}
            content[key] = value
        self.create(content)

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


def _hash_of(content: Mapping[str, Any]) -> str:
    """Hash everything else in it."""
    payload = {key: value for key, value in content.items() if key != _HASH}
    return hashlib.sha256(json.dumps(finite(payload), sort_keys=True).encode()).hexdigest()


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


def code_diff() -> bytes:
    """Diff against the commit, as `git apply` takes it, under any settings of git's own."""
    return _git("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") or b""


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
