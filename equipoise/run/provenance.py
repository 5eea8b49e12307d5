"""Origins of a run: command, code, versions, seeds, hashes. No secret ever enters."""

import hashlib
import json
import platform
import subprocess
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from data_prep.files import finite, read_json, write_json
from equipoise.config.secrets import masked, masked_diff
from equipoise.errors import EquipoiseError
from equipoise.run.ownership import confirm_owner

PACKAGES = (
    "accelerate",
    "bm25s",
    "datasets",
    "faiss-cpu",
    "numpy",
    "peft",
    "regopy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "wandb",
)
#: The key of the folder to which the result moves when a longer run has made its own.
REPLACES = "replaces"
_SEAL = "sha256"
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


def write_provenance(path: Path, content: Mapping[str, Any]) -> None:
    """Write provenance.json with its seal, atomically."""
    write_json(path, dict(content) | {_SEAL: _seal_of(content)})


def update_provenance(path: Path, changes: Mapping[str, Any]) -> None:
    """Merge `changes` into a sealed provenance.json, one level deep, atomically.

    Raises `EquipoiseError` for a file without its seal: a new one would vouch for what nobody
    knows.
    """
    confirm_owner(path.parent)
    current = read_provenance(path)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(current.get(key), dict):
            current[key] |= value
        else:
            current[key] = value
    write_provenance(path, current)


def read_provenance(path: Path, *, unsealed: bool = False) -> dict[str, Any]:
    """Read provenance.json. Raises `EquipoiseError` where it is damaged, missing or has no seal.

    With `unsealed` it may lack its seal; one that is wrong is refused all the same.
    """
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise _no_provenance(path, "it is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _no_provenance(path, str(error)) from None
    if not isinstance(content, dict):
        raise _no_provenance(path, "is no JSON object")
    if _SEAL not in content and not unsealed:
        raise _no_provenance(path, f"it has no seal (its key {_SEAL})")
    if content.get(_SEAL, _seal_of(content)) != _seal_of(content):
        raise _no_provenance(path, "it was changed since it was written")
    return content


def has_seal(provenance: Mapping[str, Any]) -> bool:
    """Whether the content of a provenance.json vouches for itself."""
    return _SEAL in provenance


def _seal_of(content: Mapping[str, Any]) -> str:
    """The hash of everything else in it; nothing else could say that it is whole."""
    payload = {key: value for key, value in content.items() if key != _SEAL}
    return hashlib.sha256(json.dumps(finite(payload), sort_keys=True).encode()).hexdigest()


def _no_provenance(path: Path, reason: str) -> EquipoiseError:
    return EquipoiseError(
        f"{path} cannot be read: {reason}",
        "Put it back from a copy. Without it nothing says what the run was made from: start a new "
        "run.",
    )


def record_hash(path: Path, name: str, value: str) -> None:
    """Note the hash of what the run is made from.

    Raises `EquipoiseError` where it was another one when the run began.
    """
    before = read_provenance(path)["hashes"].get(name, value)
    if before != value:
        raise EquipoiseError(
            f"since this run began, its {name} changed: it was {before} and is {value}",
            "Put back what it was, or start a new run.",
        )
    update_provenance(path, {"hashes": {name: value}})


def code_hash(kind: type) -> str:
    """SHA-256 of the modules of the package in which a class is: of its file, where it has none."""
    module = sys.modules[kind.__module__]
    file = Path(str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if module.__package__ else [file]
    digest = hashlib.sha256()
    for path in files:
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
