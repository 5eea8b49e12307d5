"""Origins of a run: command, code, versions, seeds, hashes. No secret ever enters."""

import hashlib
import platform
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from equipoise.config import LoadedConfig
from equipoise.config.secrets import masked, masked_diff

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
    """SHA-256 of the code that scores: of the environment, and of those that it has inside."""
    digest = hashlib.sha256()
    for kind in (loaded.environment_class, *loaded.env_settings.scoring_classes):
        module = sys.modules[kind.__module__]
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
