"""Names are nouns of the field: few bindings are named by a participle or a function word."""

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
