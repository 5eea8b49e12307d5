"""Names that a module defines, from its source: importing it would run it."""

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path


def find_module(name: str) -> ModuleSpec | None:
    """Find the module as `import name` would, without importing it or its packages."""
    path: list[str] | None = None
    spec = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if end > 1 and path is None:
            return None
        spec = _find(".".join(parts[:end]), path)
        if spec is None:
            return None
        places = spec.submodule_search_locations
        path = None if places is None else list(places)
    return spec


def is_pythons_own(name: str) -> bool:
    """Whether the module is of the standard library, which holds no task's code."""
    return name.partition(".")[0] in sys.stdlib_module_names


def defines(spec: ModuleSpec, name: str) -> bool:
    """Whether the module's source binds `name`; a module that cannot be read so may."""
    if spec.origin is None or not spec.has_location or not spec.origin.endswith(".py"):
        return spec.origin is not None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return True  # the import says what is wrong with it
    names = set(_bound(tree))
    return bool(names & {name, "*", "__getattr__"})


def _find(name: str, path: list[str] | None) -> ModuleSpec | None:
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _bound(tree: ast.AST) -> Iterator[str]:
    """The names that definitions, imports and assignments bind, in conditions and `try` too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _bound(node)
