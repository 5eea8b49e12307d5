"""Questions about the schema: which keys there are, which is nearest, which the engine honours."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel
from typing_extensions import is_typeddict

from equipoise.config.problems import SEPARATOR
from equipoise.config.schema import HONOURED, Config

#: How many valid keys a message lists when none is near to what was written.
_LISTED_KEYS = 12


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
    siblings = list(_fields_at(model, parents))
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
    for name, annotation in _fields(model).items():
        yield prefix + name
        yield from known_keys(structure_of(annotation), prefix + name + SEPARATOR)


def _fields_at(model: Any, parents: Sequence[str]) -> Mapping[str, Any]:
    """The fields of the section at the path; list positions are passed over."""
    for name in parents:
        if not name.isdigit():
            model = structure_of(_fields(model).get(name))
    return _fields(model)


def _fields(model: Any) -> Mapping[str, Any]:
    """Name in the YAML -> type, of a pydantic model or a typed dictionary."""
    if is_typeddict(model):
        return get_type_hints(model)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    return {}


def structure_of(annotation: Any) -> Any:
    """The model or typed dictionary in a type such as `list[X] | None`; None if there is none."""
    if is_typeddict(annotation):
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    structures = (structure_of(argument) for argument in get_args(annotation))
    return next((structure for structure in structures if structure is not None), None)
