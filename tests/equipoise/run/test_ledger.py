"""Lock and provenance of a run: its checkout, and what its processes have used."""

import os
import signal
import subprocess
import sys

import pytest

from environments.chat import Budget, Source
from environments.chat.accounting import Accounts, Usage
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.disk import read_json
from equipoise.run import ledger
from equipoise.run.ledger import Ledger, Meter, Provenance, owning
from tests.refusals import refusal

OWNER = """
import sys
from pathlib import Path
from equipoise.run.ledger import owning
with owning(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that owns the run until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_a_second_process_is_refused_also_while_the_first_is_suspended(tmp_path, other):
    other.send_signal(signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        other.send_signal(number)
        with refusal("run.in-use", tmp_path, ".lock"), owning(tmp_path):
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_run_of_a_dead_process_is_free(tmp_path, other, number):
    other.send_signal(number)
    other.wait(timeout=30)
    with owning(tmp_path):
        pass


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit in the place of ours."""
    monkeypatch.setattr(ledger, "_ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    (tmp_path / "notes.txt").write_bytes(b"caf\xe9\nsame\n")
    git(tmp_path, "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git(tmp_path, *who, "commit", "-q", "-m", "first")
    return tmp_path


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    return done.stdout


@pytest.mark.parametrize("settings", [{}, {"color.ui": "always", "diff.external": "false"}])
def test_a_file_that_is_not_utf_8_can_be_put_back_from_the_diff(checkout, settings):
    for name, value in settings.items():
        git(checkout, "config", name, value)
    changed = b"th\xe9\xff\nsame\n"
    (checkout / "notes.txt").write_bytes(changed)
    assert ledger.git_state().dirty
    diff = ledger.code_diff()
    git(checkout, "checkout", "-q", ".")
    (checkout / "x.diff").write_bytes(diff)
    git(checkout, "apply", "x.diff")
    assert (checkout / "notes.txt").read_bytes() == changed


def test_a_key_on_the_command_line_is_masked(monkeypatch):
    monkeypatch.setattr(ledger.sys, "argv", ["x.py", "url=http://me:hunter2@host"])
    about = ledger.describe_run(load_config("fairness", parse_flags("x", [])), "r")
    assert about.command == ("python", "x.py", "url=http://***@host")


def test_the_change_of_another_ledger_is_read_and_kept(tmp_path):
    first, second = (Ledger(tmp_path / "provenance.json") for _ in range(2))
    first.create(Provenance(task="any"))
    assert second.read().task == "any"
    first.update(Provenance(seconds={"baseline": 1.0}, seed=1))
    second.update(Provenance(seconds={"final": 2.0}))
    first.update(Provenance(device="cpu", seed=2))
    assert second.read() == Provenance(
        task="any", seconds={"baseline": 1.0, "final": 2.0}, device="cpu", seed=2
    )


@pytest.fixture
def provenance(tmp_path):
    path = tmp_path / "provenance.json"
    Ledger(path).create(Provenance(task="any"))
    return path


def asked(model, calls=1, tokens=(100, 20)):
    accounts = Accounts(model, Budget(prompt_price=2.0, completion_price=10.0))
    accounts.add("calls", calls)
    accounts.spend(Usage(*tokens))


def process(provenance, prompt, completion, calls):
    meter = Meter()
    asked("judge", calls)
    with meter.writing(Ledger(provenance), print):
        meter.add_tokens(prompt, completion)
    return read_json(provenance)["usage"]


def test_a_process_writes_what_it_took_itself(provenance):
    process(provenance, 10, 4, calls=3)
    second = process(provenance, 5, 2, calls=2)
    assert (second["prompt_tokens"], second["completion_tokens"]) == (5, 2)
    assert second["calls"]["judge"]["calls"] == 2
    assert second["calls"]["judge"]["cost"] == pytest.approx(2 * (200 + 200) / 1e6 / 2)
    assert second["peak_memory_bytes"] > 1e7


def answered(provenance, meter, *sources):
    """The warnings of a process of a run whose judge was answered by these."""
    warnings: list[str] = []
    with meter.writing(Ledger(provenance), warnings.append):
        accounts = Accounts("judge", Budget())
        for source in sources:
            accounts.add_sources([source])
            meter.write()
    return warnings


def test_what_answered_is_in_the_provenance_and_a_change_is_told_once(provenance):
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


def test_a_server_that_names_no_fingerprint_has_changed_nothing(provenance):
    sources = Source("judge-1", "fp_1"), Source("judge-1"), Source(), Source("judge-1", "fp_1")
    assert not answered(provenance, Meter(), *sources)


def test_several_models_of_one_name_and_other_processes_are_one_sum(provenance):
    meter = Meter()
    with meter.writing(Ledger(provenance), print):
        asked("judge of two", 2)
        asked("judge of two", 3)
        meter.elsewhere = {"judge of two": {"calls": 4.0, "seconds_waited": 9.0}}
    assert list(read_json(provenance)["usage"]["calls"]) == ["judge of two"]
    counts = read_json(provenance)["usage"]["calls"]["judge of two"]
    assert counts["calls"] == 9
    assert "seconds_waited" not in counts


def test_a_run_that_dies_has_what_it_used(provenance):
    meter = Meter()
    with pytest.raises(RuntimeError), meter.writing(Ledger(provenance), print):
        meter.add_tokens(3, 1)
        raise RuntimeError
    assert read_json(provenance)["usage"]["prompt_tokens"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems forget what a launcher held")
def test_what_a_launcher_held_is_not_memory_of_its_run():
    held = bytearray(600_000_000)
    code = "from equipoise.run.ledger import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 1_000_000 < int(done.stdout) < len(held)


def test_what_was_asked_before_the_run_is_not_its_own(provenance):
    asked("judge", 7)
    assert process(provenance, 1, 1, calls=2)["calls"]["judge"]["calls"] == 2
