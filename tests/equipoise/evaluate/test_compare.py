"""What the terminal says of several models beside each other."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from environments.presentation import Presentation, Words
from equipoise.evaluate.compare import Pair
from equipoise.evaluate.compare_report import OWN_REFERENCE, comparison_notes, comparison_sections
from equipoise.evaluate.entries import Entry, Evaluated
from equipoise.report.renderers import print_sections
from equipoise.terminal.console import Reporter


def test_each_model_stands_beside_its_noise_floor(capsys: Any) -> None:
    figure = {"value": 1.057, "low": 1.02, "high": 1.09}
    floors = {"one": 1.048, "two": None}
    pair = {"first": "one", "second": "two", "items": [8], "replies": [], "metrics": {}}
    pair["drawn_differently"] = []
    content = {
        "entries": [
            {"name": name, "metrics": {"ratio": figure | {"floor": floor}}, "unsealed": []}
            | {"n_failed": 0}
            for name, floor in floors.items()
        ],
        "comparisons": [pair | {"other_reference": False, "own_references": ["ratio"]}],
        "confidence": 0.95,
        "allowed": [],
    }
    presentation = Presentation(words={"ratio": Words("disparity ratio")})
    (note,) = comparison_notes(content, presentation)
    assert note == f"disparity ratio of one and two: {OWN_REFERENCE}."
    print_sections(Reporter(), comparison_sections(content, presentation), "compare.html")
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "Disparity ratio" in line)
    column = [cell.strip() for cell in head.split("┃")].index("Noise alone")
    cells = {
        row[1]: row[column]
        for line in lines
        if line.startswith("│") and (row := [cell.strip() for cell in line.split("│")])[1:]
    }
    assert cells == {"one": "1.048", "two": "-"}


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
