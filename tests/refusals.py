"""Refusals: tests name their codes, and refusals.txt alone has their messages.

`python -m tests.refusals` writes that file anew from the code.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from environments.errors import CodedError
from tests.command import ROOT

FILE = Path(__file__).with_suffix(".txt")
PACKAGES = ("equipoise", "environments", "data_prep", "recipes")
FORM = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")


@contextmanager
def refused(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[CodedError]]:
    """Expect the refusal of this code, whose message names the values."""
    with pytest.raises(CodedError) as caught:
        yield caught
    message = str(caught.value)
    assert caught.value.code == code, f"not {code}, but {caught.value.code}: {message}"
    absent = [value for value in values if str(value) not in message]
    assert not absent, f"{absent} is not in: {message}"


@dataclass(frozen=True, order=True, slots=True)
class Refusal:
    """A place where a refusal is made. `code` is empty where it has none."""

    code: str
    kind: str
    texts: tuple[str, ...]
    place: str


@cache
def refusals() -> list[Refusal]:
    """Find every place where a refusal is made, except where one is only handed on."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}
    names = _makers(list(trees.values()))
    return sorted(refusal for file in trees for refusal in _refusals_in(file, trees[file], names))


def _makers(trees: list[ast.Module]) -> set[str]:
    """Name the classes of refusals, and the functions whose first parameter is a code."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args[:1]] == ["code"]
    }
    classes, found = {CodedError.__name__}, 0
    while found < len(classes):
        found = len(classes)
        classes |= {
            node.name
            for node in nodes
            if isinstance(node, ast.ClassDef) and classes & {ast.unparse(b) for b in node.bases}
        }
    return functions | classes


def _refusals_in(file: str, tree: ast.Module, names: set[str]) -> Iterator[Refusal]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name), [first, *others]) if name in names:
                texts = [text for other in others for text in _texts(other, constants)]
                if not isinstance(first, ast.Attribute | ast.Name | ast.Starred):  # handed on
                    yield Refusal(_code(first), name, tuple(texts), f"{file}:{node.lineno}")


def _code(argument: ast.expr) -> str:
    """The code, or that of an error without one: `code_of(error, "...")`."""
    if isinstance(argument, ast.Call) and argument.args:
        argument = argument.args[-1]
    return str(argument.value) if isinstance(argument, ast.Constant) else ""


def _texts(argument: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    match argument:
        case ast.Constant(str(text)):
            yield text
        case ast.JoinedStr(parts):
            yield "".join(text for part in parts for text in _texts(part, constants))
        case ast.FormattedValue(ast.Name(name)) | ast.Name(name) if name in constants:
            yield from _texts(constants[name], {})
        case ast.Starred(ast.Name(name)) if isinstance(constants.get(name), ast.Tuple):
            for part in constants[name].elts:
                yield from _texts(part, constants)
        case ast.FormattedValue(value):
            yield f"{{{ast.unparse(value)}}}"
        case _:
            yield f"{{{ast.unparse(argument)}}}"


def described() -> str:
    """Write a paragraph for each code: its class, then message and remedy."""
    paragraphs = []
    for code, group in groupby(refusals(), lambda refusal: refusal.code):
        first = next(group)
        lines = [line for text in first.texts for line in text.splitlines()]
        paragraphs.append("\n    ".join([f"{code} {first.kind}", *lines]))
    return "\n".join([*paragraphs, ""])


if __name__ == "__main__":
    FILE.write_text(described())
