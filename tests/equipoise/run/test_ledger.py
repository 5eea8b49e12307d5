"""What a ledger holds, and what two ledgers of one run make of each other's changes."""

from pathlib import Path

from equipoise.run.ledger import Ledger, Provenance


def test_the_change_of_another_ledger_is_read_and_kept(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path / "provenance.json") for _ in range(2))
    first.create(Provenance(task="any"))
    assert second.read().task == "any"
    first.update(seconds={"baseline": 1.0}, seed=1)
    second.update(seconds={"final": 2.0})
    first.update(device="cpu", seed=2)
    assert second.read() == Provenance(
        task="any", seconds={"baseline": 1.0, "final": 2.0}, device="cpu", seed=2
    )


def test_what_is_not_a_number_is_read_as_unknown(tmp_path: Path) -> None:
    kept = Ledger(tmp_path / "provenance.json")
    kept.create(Provenance(logprobs_differ_by={"vllm": float("nan")}))
    assert kept.read().logprobs_differ_by == {"vllm": None}
