"""Equipoise's requirements against a Python's packages."""

from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

_NAME = "equipoise"


def requirements() -> list[str] | None:
    """Return what the installed package asks for, without extras; None without a package."""
    try:
        specifiers = metadata.requires(_NAME) or []
    except metadata.PackageNotFoundError:
        return None
    return [text for text in specifiers if _counts_here(Requirement(text))]


def _counts_here(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def unmet(requirements: Iterable[str], version_of: Callable[[str], str | None]) -> Iterator[str]:
    """Every requirement that the versions do not meet, in words."""
    for requirement in map(Requirement, requirements):
        version = version_of(requirement.name)
        if version is None:
            yield f"{requirement.name} is missing"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} is {version}, not {requirement.specifier}"


def installed_version(name: str) -> str | None:
    """The version of a distribution of this Python; None where it has none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
