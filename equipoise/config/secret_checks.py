"""No key or password is in a configuration, which is written down and shared with the run."""

from collections.abc import Iterator, Mapping
from typing import Any

from equipoise.config.problems import SEPARATOR, Problem
from equipoise.config.secrets import has_secret, is_secret_name

_REASON = (
    "holds what looks like a key or a password, and it would be written into the run's "
    "config.yaml; put it into .env, and for a model behind an endpoint name its variable in "
    "api_key_env"
)


def secret_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Every value that must not be written down, by its name or by its form."""
    yield from (Problem((key,), _REASON) for key, name, value in _texts(values) if _is(name, value))


def _is(name: str, value: str) -> bool:
    return bool(value) and (is_secret_name(name) or has_secret(value))


def _texts(value: Any, key: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, last name and text of every text and number; those of a list have the list's name."""
    if isinstance(value, Mapping):
        for child, below in value.items():
            yield from _texts(below, f"{key}{SEPARATOR}{child}" if key else child, child)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _texts(below, f"{key}{SEPARATOR}{index}", name)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield key, name, str(value)
