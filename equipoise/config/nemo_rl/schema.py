"""The whole schema: what Equipoise types itself, and every other key of NeMo-RL's versions.

What Equipoise does not read has no default here: it stays unset, and NeMo-RL's own file decides.

A version's file says types as Python writes them: `int | None`, `list[str]`. `section` is a mapping
whose own keys are listed too, below the key; `dict[str, Any]` is one that takes any key.
"""

import ast
import json
import operator
from collections import defaultdict
from collections.abc import Mapping
from copy import copy
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, create_model

from environments.yaml_file import structure_of
from equipoise.config.problems import SEPARATOR
from equipoise.config.schema import Config, Section

SECTION = "section"
_NAMES = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "Any": Any}


@cache
def versions() -> Mapping[str, Mapping[str, str]]:
    """Version -> its keys and the texts of their types, of all that Equipoise runs on."""
    files = sorted(Path(__file__).parent.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


@cache
def whole_schema() -> type[Config]:
    """`Config` with every key that one of the versions has; a value must fit one of their types.

    The names that Equipoise does not read are in no attribute that code should use.
    """
    types: dict[str, list[str]] = defaultdict(list)
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for keys in versions().values():
        for key, text in keys.items():
            types[key].append(text)
            parent, _, name = key.rpartition(SEPARATOR)
            names[parent][name] = None
    schema: type[Config] = _complete(Config, "", types, names)
    return schema


def _complete(
    model: type[Section],
    prefix: str,
    types: Mapping[str, list[str]],
    names: Mapping[str, Mapping[str, None]],
) -> Any:
    """The model with every key of the section at `prefix`, and so with the sections below it."""
    declared = {info.alias or field: field for field, info in model.model_fields.items()}
    fields: dict[str, Any] = {}
    for name in names[prefix]:
        key = f"{prefix}{SEPARATOR}{name}" if prefix else name
        info = model.model_fields[declared[name]] if name in declared else None
        typed = structure_of(info.annotation) if info else Section
        is_section = key in names and isinstance(typed, type) and issubclass(typed, Section)
        section = _complete(typed, key, types, names) if is_section else None
        if info is None:
            kind = reduce(operator.or_, (read_type(text, section) for text in types[key]))
            fields[f"nemo_rl_{name}"] = (kind, Field(default=None, alias=name))
        elif section is not None:  # a default of that section's is one of the completed one
            info = copy(info)
            optional = type(None) in getattr(info.annotation, "__args__", ())
            info.annotation = section | None if optional else section
            info.default = section() if isinstance(info.default, Section) else info.default
            fields[declared[name]] = (info.annotation, info)
    return create_model(model.__name__, __base__=model, **fields)


def read_type(text: str, section: Any) -> Any:
    """The type that a text of a version's file says, with `section` for the word of that name."""
    return _type(ast.parse(text, mode="eval").body, section)


def _type(node: ast.expr, section: Any) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name):
            return section if name == SECTION else _NAMES[name]
        case ast.BinOp(left=left, right=right):
            return _type(left, section) | _type(right, section)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            return Literal[ast.literal_eval(choices)]
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type(item, section)]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, value])):
            return dict[str, _type(value, section)]  # type: ignore[misc]
    raise ValueError(f"{ast.unparse(node)} is no type of a key")
