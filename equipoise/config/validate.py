"""The schema of all keys, from plain values to its model, and problems that a user understands.

NeMo-RL keeps a key that it does not know without a word, so the whole schema has the names of all
its keys: a typo is refused before anything starts. Types are checked by NeMo-RL itself, and so is
which version has which key. nemo_rl_keys.yaml lists the names; tests/contract/test_nemo_rl_keys.py
says which a new version adds.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic_core import ErrorDetails

from environments.base import code_of
from environments.yaml_file import fields_at, fields_of, key_path, structure_of
from equipoise.config.gone import FOREIGN_OPTIONS, normalized, replacement
from equipoise.config.schema import HONOURED, Config, Section
from equipoise.config.secrets import has_secret, is_secret_name, masked
from equipoise.files.errors import UsageError

M = TypeVar("M", bound=BaseModel)

SEPARATOR = "."
NOTHING_STARTED = "Nothing was started. Correct this and run the command again."
_LISTED = Path(__file__).with_name("nemo_rl_keys.yaml")
#: Its sections that are not below another.
_TOP = "top"
#: How much of a wrong value a message shows.
_SHOWN_CHARACTERS = 60
#: How many valid keys a message lists when none is near to what was written.
_LISTED_KEYS = 12
_SECTION_EXPECTED = {"model_type", "dict_type", "typed_dict_type", "model_attributes_type"}
_UNSHAREABLE = (
    "holds what looks like a key or a password, and it would be written into the run's "
    "config.yaml; put it into .env, and for a model behind an endpoint name its variable in "
    "api_key_env"
)


# --- Problems -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """A file or flag that sets keys; `by_user` is false for what Equipoise sets by itself.

    A `shipped` file holds our own values, also where the user has chosen it with --config.
    """

    label: str
    by_user: bool
    shipped: bool = False


#: The keys that hold values and who set each of them last, in the order in which they were set.
Origins = Mapping[str, Origin]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the keys it is about; it lies with the one that was set last."""

    code: str
    keys: tuple[str, ...]
    message: str


def within(key: str, ancestor: str) -> bool:
    return key == ancestor or key.startswith(ancestor + SEPARATOR)


def related(first: str, second: str) -> bool:
    return within(first, second) or within(second, first)


def usage_error(problems: Iterable[Problem], origins: Origins) -> UsageError:
    """Join problems into one error, a line for each."""
    located = [(problem, *_locate(problem, origins)) for problem in problems]
    # Our files are valid by themselves: what is wrong in them is made of what a user set.
    of_user = [row for row in located if row[1].by_user and not row[1].shipped]
    lines = dict.fromkeys(
        f"  {origin.label}: {key}: {problem.message} [{problem.code}]"
        for problem, origin, key in of_user or located
    )
    noun = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return UsageError(
        "config.problems", "\n".join([f"the configuration has {noun}:", *lines]), NOTHING_STARTED
    )


def _locate(problem: Problem, origins: Origins) -> tuple[Origin, str]:
    """Find who is to blame, and for which of the keys."""
    order = list(origins)
    leaves: list[tuple[str, str]] = []
    for key in problem.keys:  # itself or the one that it lies in, else the last that lies in it
        above = [leaf for leaf in order if within(key, leaf)]
        below = [leaf for leaf in order if within(leaf, key)]
        leaves += [(key, leaf) for leaf in above[:1] or below[-1:]]
    if not leaves:
        return Origin("configuration", by_user=False), problem.keys[0]
    origin = origins[max((leaf for _, leaf in leaves), key=order.index)]
    return origin, next(key for key, leaf in leaves if origins[leaf] == origin)


# --- The schema -----------------------------------------------------------------------------------


@cache
def whole_schema() -> type[Config]:
    """`Config` with every key of NeMo-RL; of those that Equipoise does not read any value is valid.

    These have no default: unset ones stay unset, and NeMo-RL's own file decides.
    """
    schema: type[Config] = _complete(Config, _TOP, yaml.safe_load(_LISTED.read_text("utf-8")))
    return schema


def _complete(model: type[Section], section: str, names: Mapping[str, Sequence[str]]) -> Any:
    """Return the model with every key of a section, and of the sections below it."""
    declared = {info.alias or field: field for field, info in model.model_fields.items()}
    fields: dict[str, Any] = {}
    for name in names[section]:
        key = name if section == _TOP else f"{section}{SEPARATOR}{name}"
        if name not in declared:
            kind = _complete(Section, key, names) | None if key in names else Any
            fields[f"nemo_rl_{name}"] = (kind, Field(default=None, alias=name))
        elif key in names:
            info = copy(model.model_fields[declared[name]])
            below = _complete(structure_of(info.annotation), key, names)
            optional = type(None) in getattr(info.annotation, "__args__", ())
            info.annotation = below | None if optional else below
            # A section by default is one of the completed model.
            info.default = below() if isinstance(info.default, Section) else info.default
            fields[declared[name]] = (info.annotation, info)
    return create_model(model.__name__, __base__=model, **fields)


def known_keys(model: Any, prefix: str = "") -> Iterator[str]:
    """Yield the full name of every key and section of a model."""
    for name, annotation in fields_of(model).items():
        yield prefix + name
        yield from known_keys(structure_of(annotation), prefix + name + SEPARATOR)


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


# --- Values ---------------------------------------------------------------------------------------


def validate(
    values: Mapping[str, Any], model: type[M], prefix: str = ""
) -> tuple[M | None, list[Problem]]:
    """The model of `values`, which lie at the key `prefix`, or None and what is wrong.

    Types are those of JSON and nothing is converted, so that `"8"` and `8.5` are not integers.
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
        Problem(
            complaints[0].code, (key,), ", or ".join(dict.fromkeys(c.message for c in complaints))
        )
        for key, complaints in by_key.items()
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


def suggest(model: type[BaseModel], path: Sequence[str | int], prefix: str) -> str:
    """Guess the key meant by the unknown one at `path` of `model`, as the end of a message.

    It is what replaces a key that is gone or another program's, the nearest key beside it, the same
    name in another section, or else what there is. `prefix` is the key of the model itself.
    """
    *parents, name = [str(part) for part in path]
    above = [prefix] if prefix else []
    if gone := replacement(SEPARATOR.join([*above, *parents, name])):
        return gone
    if text := FOREIGN_OPTIONS.get(normalized(name)):
        return text
    siblings = list(fields_at(model, parents))
    if near := difflib.get_close_matches(name, siblings, n=1):
        return f"did you mean {SEPARATOR.join([*above, *parents, near[0]])}?"
    elsewhere = [key for key in known_keys(model) if key.split(SEPARATOR)[-1] == name]
    if elsewhere:
        return f"did you mean {SEPARATOR.join([*above, elsewhere[0]])}?"
    listed = ", ".join(siblings) if len(siblings) <= _LISTED_KEYS else ""
    return f"there are {listed}" if listed else "no key is near to it"


def secret_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Report values whose name or form is that of a secret, which must not be written down."""
    yield from (
        Problem("secret.in-config", (key,), _UNSHAREABLE)
        for key, name, value in _texts(values)
        if value and (is_secret_name(name) or has_secret(value))
    )


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
