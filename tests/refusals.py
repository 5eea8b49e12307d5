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
def refusal(expected: str, *values: object) -> Iterator[pytest.ExceptionInfo[CodedError]]:
    """Expect the refusal of a code, `code` or `code | value`, whose message names the values."""
    with pytest.raises(CodedError) as caught:
        yield caught
    message = str(caught.value)
    code, *named = expected.split(" | ")
    assert caught.value.code == code, f"not {code}, but {caught.value.code}: {message}"
    absent = [value for value in (*named, *values) if str(value) not in message]
    assert not absent, f"{absent} is not in: {message}"


def holds(line: str, expected: str) -> bool:
    """Whether a problem has the code and, in this order, the values: `code | value | value`."""
    code, *values = expected.split(" | ")
    words = [rf"(?<!\w){re.escape(value)}(?!\w)" for value in values]
    return line.endswith(f" [{code}]") and bool(re.search(".*".join(words), line, re.DOTALL))


@dataclass(frozen=True, order=True, slots=True)
class Site:
    """A place where a refusal is made. `code` is empty where it has none."""

    code: str
    kind: str
    texts: tuple[str, ...]
    place: str


@cache
def sites() -> list[Site]:
    """Find every place where a refusal is made, except where one is only handed on."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    trees = {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}
    makers = _makers(list(trees.values()))
    return sorted(site for file in trees for site in _sites_in(file, trees[file], makers))


def _makers(trees: list[ast.Module]) -> dict[str, list[str]]:
    """Name what makes refusals, each with the remedy that it always has.

    These are classes of errors, and what else has a code as its first parameter or field.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    makers: dict[str, list[str]] = {CodedError.__name__: []}
    for node in nodes:
        match node:
            case ast.FunctionDef(name, ast.arguments(args=[ast.arg("code"), *_])):
                makers[name] = []
            case ast.ClassDef(name, body=[ast.Expr(), ast.AnnAssign(ast.Name("code")), *_]):
                makers[name] = []
    found = 0
    while found < len(makers):
        found = len(makers)
        for node in nodes:
            if isinstance(node, ast.ClassDef) and {ast.unparse(b) for b in node.bases} & {*makers}:
                makers[node.name] = list(_remedies(node))
    return makers


def _remedies(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.AnnAssign(ast.Name("remedy"), _, ast.Constant(str(text))) if text:
                yield text


def _sites_in(file: str, tree: ast.Module, makers: dict[str, list[str]]) -> Iterator[Site]:
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name(name), [first, *others]) if name in makers:
                texts = [text for other in others for text in _texts(other, constants)]
                if not isinstance(first, ast.Attribute | ast.Name | ast.Starred):  # handed on
                    texts += makers[name]
                    yield Site(_code(first), name, tuple(texts), f"{file}:{node.lineno}")


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
        case ast.Tuple(parts):
            yield ", ".join(text for part in parts for text in _texts(part, constants))
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
    for code, group in groupby(sites(), lambda site: site.code):
        first = next(group)
        lines = [line for text in first.texts for line in text.splitlines()]
        paragraphs.append("\n    ".join([f"{code} {first.kind}", *lines]))
    return "\n".join([*paragraphs, ""])


if __name__ == "__main__":
    FILE.write_text(described())
