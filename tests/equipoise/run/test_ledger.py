"""What a ledger holds, and what two ledgers of one run make of each other's changes."""

from pathlib import Path

import pytest

from equipoise.run.ledger import Ledger


def test_the_change_of_another_ledger_is_read_and_kept(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path / "provenance.json") for _ in range(2))
    first.create({"seconds": {}, "task": "any"})
    assert second.read()["task"] == "any"
    first.update({"seconds": {"baseline": 1.0}})
    second.update({"seconds": {"final": 2.0}})
    first.update({"device": "cpu"})
    assert second.read()["seconds"] == {"baseline": 1.0, "final": 2.0}
    assert second.read()["device"] == "cpu"


def test_what_was_written_is_read_as_json_holds_it(tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "provenance.json")
    kept.create({"tokens": (1, 2), "seconds": float("nan")})
    assert kept.read()["tokens"] == [1, 2]
    assert kept.read()["seconds"] is None


@pytest.mark.parametrize("value", [{"b": 2}, None, [1]])
def test_a_section_is_merged_and_anything_else_replaced(tmp_path: Path, value: object) -> None:
    kept = Ledger(tmp_path / "provenance.json")
    kept.create({"section": {"a": 1}})
    kept.update({"section": value})
    assert kept.read()["section"] == ({"a": 1, "b": 2} if isinstance(value, dict) else value)
