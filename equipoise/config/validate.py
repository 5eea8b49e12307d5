"""From plain values to a pydantic model, or to problems that a user understands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from equipoise.config.keys import suggest
from equipoise.config.problems import SEPARATOR, Problem, within
from equipoise.config.secrets import masked

M = TypeVar("M", bound=BaseModel)

#: How much of a wrong value a message shows.
_SHOWN_CHARACTERS = 60
_SECTION_EXPECTED = {"model_type", "dict_type", "typed_dict_type", "model_attributes_type"}


def validate(
    values: Mapping[str, Any], model: type[M], prefix: str = ""
) -> tuple[M | None, list[Problem]]:
    """The model of `values`, which lie at the key `prefix`, or None and what is wrong.

    Types are those of JSON and nothing is converted, so that `"8"` and `8.5` are no integers.
    """
    try:
        text = json.dumps(values, default=str)
        return model.model_validate_json(text, strict=True), []
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [_problem(detail, values, model, prefix) for detail in details]
        return None, list(_one_per_key(problems))


def _problem(
    detail: ErrorDetails, values: Mapping[str, Any], model: type[BaseModel], prefix: str
) -> Problem:
    path = _path(detail["loc"], values, missing=detail["type"] == "missing")
    key = SEPARATOR.join([*([prefix] if prefix else []), *(str(part) for part in path)])
    if detail["type"] == "extra_forbidden":
        return Problem((key,), f"unknown key, {suggest(model, path, prefix)}")
    return Problem((key,), _message(detail))


def _one_per_key(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Of a union every type complains: what got deepest tells, else all of them in one line."""
    by_key: dict[str, list[str]] = {}
    for problem in problems:
        by_key.setdefault(problem.keys[0], []).append(problem.message)
    for key, messages in by_key.items():
        if not any(within(deeper, key) for deeper in by_key if deeper != key):
            yield Problem((key,), ", or ".join(dict.fromkeys(messages)))


def _path(loc: Sequence[str | int], values: Any, *, missing: bool) -> list[str | int]:
    """The parts of `loc` that are keys; pydantic adds the names of the types of a union."""
    path: list[str | int] = []
    for position, part in enumerate(loc):
        absent = missing and position == len(loc) - 1
        if isinstance(values, dict) and (part in values or absent):
            path.append(part)
            values = values.get(str(part))
        elif isinstance(values, list) and isinstance(part, int):
            path.append(part)
            values = values[part] if part < len(values) else None
    return path


def _message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "missing":
        return "is missing"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    excerpt = masked(repr(detail["input"]))
    if len(excerpt) > _SHOWN_CHARACTERS:
        excerpt = excerpt[:_SHOWN_CHARACTERS] + "..."
    if kind in _SECTION_EXPECTED:
        return f"should be a section with keys below it, not {excerpt}"
    message = detail["msg"].replace("valid array", "list")
    for subject in ("Input ", "String ", "List ", "Tuple "):
        message = message.removeprefix(subject)
    return f"{message[0].lower()}{message[1:]}, not {excerpt}"
