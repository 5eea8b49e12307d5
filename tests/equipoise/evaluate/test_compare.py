"""Pairs of a comparison."""

from types import SimpleNamespace
from typing import cast

import pytest

from equipoise.evaluate.compare import Pair
from equipoise.evaluate.entries import Entry, Evaluated


@pytest.mark.parametrize(
    ("hashes", "two"), [(("a", "a"), False), (("a", "b"), True), (("", ""), False)]
)
def test_references_are_compared_by_their_hashes(hashes: tuple[str, str], two: bool) -> None:
    runs = tuple(cast("Evaluated", SimpleNamespace(reference_hash=digest)) for digest in hashes)
    entry = cast("Entry", None)
    assert Pair(entry, entry, ((runs[0], runs[1]),), (frozenset(),)).two_references is two


@pytest.mark.parametrize(
    ("stages", "frozen"),
    [(("baseline", "final"), True), (("final", "baseline"), True), (("final", "final"), False)],
)
def test_a_frozen_model_may_be_on_either_side(stages: tuple[str, str], frozen: bool) -> None:
    """Else the second one is better in what is 0 by construction."""
    runs = tuple(cast("Evaluated", SimpleNamespace(stage=stage)) for stage in stages)
    entry = cast("Entry", None)
    assert Pair(entry, entry, ((runs[0], runs[1]),), (frozenset(),)).frozen is frozen
