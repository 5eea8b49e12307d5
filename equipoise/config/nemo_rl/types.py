"""The types of a version's keys, written as Python writes them: `int | None`, `list[str]`.

`section` is a mapping whose own keys are listed too, below the key; `dict[str, Any]` is one that
takes any key.
"""

import ast
from collections.abc import Iterable
from typing import Any, Literal

SECTION = "section"
_NAMES = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "Any": Any}


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


def join_types(texts: Iterable[str]) -> str:
    """One text for all of them, without what another of them holds already."""
    parts = set(texts)
    if "Any" in parts:
        return "Any"
    choices = {part.removeprefix("Literal[")[:-1] for part in parts if part.startswith("Literal[")}
    parts = {part for part in parts if not part.startswith("Literal[")}
    if "float" in parts:
        parts.discard("int")  # a float takes whole numbers too
    if "dict[str, Any]" in parts:
        parts = {part for part in parts if not part.startswith("dict[")} | {"dict[str, Any]"}
    if choices <= {"True", "False"}:
        parts |= {"bool"} if choices else set()
    elif "str" not in parts:
        parts.add(f"Literal[{', '.join(sorted(choices))}]")
    return " | ".join(sorted(parts, key=lambda part: (part == "None", part)))
