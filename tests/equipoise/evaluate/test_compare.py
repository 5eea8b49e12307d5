"""What the terminal says of several models beside each other."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from environments.presentation import Presentation, Words
from equipoise.evaluate.compare import Compared, Pair, print_compared
from equipoise.evaluate.entries import Entry, Evaluated
from equipoise.evaluate.page import OWN_REFERENCE
from equipoise.statistics.intervals import StatisticsSettings
from equipoise.terminal.console import Reporter


def test_each_model_stands_beside_its_noise_floor(capsys: Any) -> None:
    entries = [SimpleNamespace(name=name) for name in ("one", "two")]
    figure = {"value": 1.057, "low": 1.02, "high": 1.09}
    floors = {"one": 1.048, "two": None}
    pair = SimpleNamespace(
        first=entries[0], second=entries[1], other_reference=False, replies=(), items_text="8"
    )
    compared = SimpleNamespace(
        entries=entries,
        figures={name: {"ratio": figure | {"floor": floor}} for name, floor in floors.items()},
        metrics=({},),
        own_references=(["ratio"],),
        pairs=(pair,),
        presentation=Presentation(words={"ratio": Words("disparity ratio")}),
        settings=StatisticsSettings(),
    )
    print_compared(cast("Compared", compared), Reporter())
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert f"disparity ratio of one and two: {OWN_REFERENCE}" in " ".join(out.split())
    head = next(line for line in lines if "disparity ratio" in line)
    column = [cell.strip() for cell in head.split("┃")].index("noise floor")
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
