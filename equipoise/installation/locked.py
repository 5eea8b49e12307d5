"""Comparison of NeMo-RL's environments, read from their folders, with its uv.lock.

An installation there, by `uv run` of another project for instance, changes what NeMo-RL was tested
with, and CUDA's libraries with it.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)\.dist-info")
#: A build of a version, such as +cu129: the lock and an index may name it differently.
_BUILD = re.compile(r"\+.*")
#: What processes of one run share, or what is loaded with CUDA: another version of it breaks them.
_VITAL = re.compile(r"ray|torch|triton|transformers|vllm|numpy|nvidia-.*|transformer-engine.*")


@dataclass(frozen=True, slots=True)
class Change:
    """A package whose version is none that the lock has."""

    name: str
    version: str
    locked: tuple[str, ...]

    @property
    def vital(self) -> bool:
        """Whether a run would hardly survive it."""
        return bool(_VITAL.fullmatch(self.name))

    def __str__(self) -> str:
        """As in a sentence."""
        return f"{self.name} {self.version} (locked: {' or '.join(self.locked)})"


def changes(installed: Mapping[str, str], locked: Mapping[str, set[str]]) -> Iterator[Change]:
    """Yield what has another version than the lock; what it does not name is not NeMo-RL's."""
    for name, version in sorted(installed.items()):
        versions = locked.get(name, set())
        if versions and _plain(version) not in set(map(_plain, versions)):
            yield Change(name, version, tuple(sorted(versions)))


def installed_in(environment: Path) -> dict[str, str]:
    """The distributions of an environment, by their normalised names."""
    folders = environment.glob("lib/python3*/site-packages/*.dist-info")
    parsed = (_DISTRIBUTION.fullmatch(folder.name) for folder in folders)
    return {_normalised(match["name"]): match["version"] for match in parsed if match}


def locked_in(root: Path) -> dict[str, set[str]]:
    """The versions that NeMo-RL's uv.lock names of each package; empty without a lock.

    A package has several where extras differ.
    """
    path = root / "uv.lock"
    if not path.is_file():
        return {}
    versions: dict[str, set[str]] = {}
    for package in tomllib.loads(path.read_text(encoding="utf-8"))["package"]:
        if version := package.get("version"):
            versions.setdefault(_normalised(package["name"]), set()).add(version)
    return versions


def _plain(version: str) -> str:
    return _BUILD.sub("", version)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
