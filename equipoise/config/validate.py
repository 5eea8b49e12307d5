"""From plain values to a pydantic model, or to problems that a user understands.

With it come questions about a model: which keys it has, and which of them the local engine honours.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from environments.errors import code_of
from environments.yaml_file import fields_at, fields_of, key_path, structure_of
from equipoise.config.gone import replacement
from equipoise.config.problems import SEPARATOR, Problem, within
from equipoise.config.schema import HONOURED, Config
from equipoise.config.secrets import masked

M = TypeVar("M", bound=BaseModel)

#: How much of a wrong value a message shows.
_SHOWN_CHARACTERS = 60
#: How many valid keys a message lists when none is near to what was written.
_LISTED_KEYS = 12
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
        by_key: dict[str, list[Problem]] = {}
        for detail in error.errors(include_url=False):
            problem = _problem(detail, values, model, prefix)
            by_key.setdefault(problem.keys[0], []).append(problem)
    # Of a union every type complains: what got deepest tells, else all of them in one line.
    return None, [
        Problem(same[0].code, (key,), ", or ".join(dict.fromkeys(one.message for one in same)))
        for key, same in by_key.items()
        if not any(within(deeper, key) for deeper in by_key if deeper != key)
    ]


def _problem(
    detail: ErrorDetails, values: Mapping[str, Any], model: type[BaseModel], prefix: str
) -> Problem:
    path = key_path(detail, values)
    key = SEPARATOR.join([*([prefix] if prefix else []), *(str(part) for part in path)])
    if detail["type"] == "extra_forbidden":
        return Problem("config.unknown-key", (key,), f"unknown key, {suggest(model, path, prefix)}")
    error = detail.get("ctx", {}).get("error")  # of a validator, which may have a code
    return Problem(code_of(error, "config.invalid-value"), (key,), _message(detail))


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


def honoured_by_local(key: str) -> bool:
    """Whether the local engine honours the key, which must be one of the schema's."""
    model: Any = Config
    for name in key.split(SEPARATOR):
        if model is None or not issubclass(model, BaseModel):
            return False
        info = next((f for n, f in model.model_fields.items() if name in (n, f.alias)), None)
        if info is None:
            return False
        if HONOURED in info.metadata:
            return True
        model = structure_of(info.annotation)
    return False


def suggest(model: type[BaseModel], path: Sequence[str | int], prefix: str) -> str:
    """Guess the key meant by the unknown one at `path` of `model`, as the end of a message.

    It is the nearest key beside it, the same name in another section, or else what there is.
    `prefix` is the key of the model itself.
    """
    *parents, name = [str(part) for part in path]
    above = [prefix] if prefix else []
    if gone := replacement(SEPARATOR.join([*above, *parents, name])):
        return gone
    siblings = list(fields_at(model, parents))
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"did you mean {SEPARATOR.join([*above, *parents, near[0]])}?"
    elsewhere = [key for key in known_keys(model) if key.split(SEPARATOR)[-1] == name]
    if elsewhere:
        return f"did you mean {SEPARATOR.join([*above, elsewhere[0]])}?"
    listed = ", ".join(siblings) if len(siblings) <= _LISTED_KEYS else ""
    return f"there are {listed}" if listed else "no key is near to it"


def known_keys(model: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a model with the sections that it lies in, sections included."""
    for name, annotation in fields_of(model).items():
        yield prefix + name
        yield from known_keys(structure_of(annotation), prefix + name + SEPARATOR)
