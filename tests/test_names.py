"""Names are nouns of the field, and docstrings say what a thing is or does."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_prep", "environments", "equipoise")
#: Such a name says that something was done, and not what the thing is.
WORDS = re.compile(
    "again|apart|asked|at|at_all|beside|by|came|dear|each|earlier|else_|found|given|good|here|it|its"
    "|kept|known|least|left|long|lost|made|most|new|now|of|old|one|other|others|over|own|place|rest"
    "|right|said|same|seen|shown|taken|that|their|there|told|unknown|used|usual|wanted|ways?|what"
    "|whatever|whole|whose|wrong"
)
#: "used" is nvidia-smi's own word, "at" a position: some are right where they stand.
MOST_PER_THOUSAND = 5
#: With these a docstring begins with a relative clause.
RELATIVE = ("What ", "Whose ", "Where ", "Whoever ")
#: A judge and a planner read these in the schema of their reply, which is part of a cache's key.
IN_SCHEMAS = (
    "What a judge finds in one response.",
    "What the rewriter is given beside the question.",
)


def test_bindings_are_named_by_nouns():
    bindings = [
        (name, f"{path.relative_to(ROOT)}:{line}")
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in bound_names(ast.parse(path.read_text("utf-8")))
    ]
    places = [f"{place} {name}" for name, place in bindings if WORDS.fullmatch(name.strip("_"))]
    assert 1000 * len(places) < MOST_PER_THOUSAND * len(bindings), "\n".join(places)


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every variable, field and argument, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg, node.lineno


def test_docstrings_begin_with_a_verb_or_a_noun():
    """First a verb or a noun: "What a record says" leaves the reader without a subject."""
    places = [
        f"{path.relative_to(ROOT)}: {docstring}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for docstring in docstrings(ast.parse(path.read_text("utf-8")))
        if docstring.startswith(RELATIVE) and not docstring.startswith(IN_SCHEMAS)
    ]
    assert not places, "\n".join(places)


def docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
