"""Resources that the process of a run has used, and the models that answered it."""

import subprocess
import sys
from pathlib import Path

import pytest

from environments.chat import Budget, Source
from environments.chat.accounting import Accounts, Usage
from equipoise.files.disk import read_json
from equipoise.run import ledger
from equipoise.run.ledger import Ledger, Meter, Provenance


@pytest.fixture
def provenance(tmp_path: Path) -> Path:
    path = tmp_path / "provenance.json"
    Ledger(path).create(Provenance(task="any"))
    return path


def asked(model: str, calls: int = 1, tokens: tuple[int, int] = (100, 20)) -> None:
    accounts = Accounts(model, Budget(prompt_price=2.0, completion_price=10.0))
    accounts.add("calls", calls)
    accounts.spend(Usage(*tokens))


def process(provenance: Path, prompt: int, completion: int, calls: int) -> dict:
    meter = Meter()
    asked("judge", calls)
    with meter.writing(Ledger(provenance), print):
        meter.add_tokens(prompt, completion)
    return read_json(provenance)["usage"]


def test_a_process_writes_what_it_took_itself(provenance: Path) -> None:
    process(provenance, 10, 4, calls=3)
    second = process(provenance, 5, 2, calls=2)
    assert (second["prompt_tokens"], second["completion_tokens"]) == (5, 2)
    assert second["calls"]["judge"]["calls"] == 2
    assert second["calls"]["judge"]["cost"] == pytest.approx(2 * (200 + 200) / 1e6 / 2)
    assert second["peak_memory_bytes"] > 1e7


def answered(provenance: Path, meter: Meter, *sources: Source) -> list[str]:
    """The warnings of a process of a run whose judge was answered by these."""
    warnings: list[str] = []
    with meter.writing(Ledger(provenance), warnings.append):
        accounts = Accounts("judge", Budget())
        for source in sources:
            accounts.add_sources([source])
            meter.write()
    return warnings


def test_what_answered_is_in_the_provenance_and_a_change_is_told_once(provenance: Path) -> None:
    first, second = Source("judge-1", "fp_1"), Source("judge-2", "fp_1")
    (warning,) = answered(provenance, Meter(), first, first, second, first)
    assert warning.startswith(
        "judge: the answering model changed within the run (judge-1, judge-2)"
    )
    assert read_json(provenance)["usage"]["calls"]["judge"] == {
        **dict.fromkeys(ledger._KEPT, 0.0),
        "answering_model/judge-1": 3.0,
        "answering_model/judge-2": 1.0,
        "system_fingerprint/fp_1": 4.0,
    }


def test_a_server_that_names_no_fingerprint_has_changed_nothing(provenance: Path) -> None:
    sources = Source("judge-1", "fp_1"), Source("judge-1"), Source(), Source("judge-1", "fp_1")
    assert not answered(provenance, Meter(), *sources)


def test_several_models_of_one_name_and_other_processes_are_one_sum(provenance: Path) -> None:
    meter = Meter()
    with meter.writing(Ledger(provenance), print):
        asked("judge of two", 2)
        asked("judge of two", 3)
        meter.elsewhere = {"judge of two": {"calls": 4.0, "seconds_waited": 9.0}}
    assert list(read_json(provenance)["usage"]["calls"]) == ["judge of two"]
    counts = read_json(provenance)["usage"]["calls"]["judge of two"]
    assert counts["calls"] == 9
    assert "seconds_waited" not in counts


def test_a_run_that_dies_has_what_it_used(provenance: Path) -> None:
    meter = Meter()
    with pytest.raises(RuntimeError), meter.writing(Ledger(provenance), print):
        meter.add_tokens(3, 1)
        raise RuntimeError
    assert read_json(provenance)["usage"]["prompt_tokens"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems forget what a launcher held")
def test_what_a_launcher_held_is_not_memory_of_its_run() -> None:
    held = bytearray(600_000_000)
    code = "from equipoise.run.ledger import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1_000_000 < int(done.stdout) < len(held)


def test_what_was_asked_before_the_run_is_not_its_own(provenance: Path) -> None:
    asked("judge", 7)
    assert process(provenance, 1, 1, calls=2)["calls"]["judge"]["calls"] == 2
