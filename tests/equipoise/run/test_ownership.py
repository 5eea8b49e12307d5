"""One process at a time: with real ones, suspended and killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.errors import UsageError
from equipoise.run.ledger import Ledger, confirm_owner, owning, read_owner
from tests.refusals import refusal

OWNER = """
import sys
from pathlib import Path
from equipoise.run.ledger import owning
with owning(Path(sys.argv[1]), print):
    print("mine", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
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


def refused(root: Path) -> UsageError:
    with refusal("run.in-use-by-owner") as error, owning(root, print):
        pass
    return error.value


def named_by_another(root: Path, host: str = "another-host") -> None:
    owner = {"token": "x", "pid": 7, "host": host, "since": "now", "command": "recipe"}
    (root / "owner.json").write_text(json.dumps(owner))


def test_a_second_process_is_refused_and_told_how_to_end_the_first(tmp_path: Path, other):
    error = refused(tmp_path)
    assert f"process {other.pid} on {socket.gethostname()}" in error.message
    assert f"kill {other.pid}; kill -CONT {other.pid}" in error.remedy


def test_a_suspended_process_keeps_its_run(tmp_path: Path, other):
    other.send_signal(signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    refused(tmp_path)
    other.send_signal(signal.SIGCONT)


def test_the_remedy_ends_a_suspended_process(tmp_path: Path, other):
    other.send_signal(signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    subprocess.run(["sh", "-c", refused(tmp_path).remedy.split("`")[1]], check=True)
    other.wait(timeout=30)
    with owning(tmp_path, pytest.fail):
        pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_run_of_a_dead_process_is_free(tmp_path: Path, other, number):
    other.send_signal(number)
    other.wait(timeout=30)
    with owning(tmp_path, pytest.fail):
        confirm_owner(tmp_path)


def test_an_owner_leaves_no_name_behind(tmp_path: Path):
    with owning(tmp_path, pytest.fail):
        owner = read_owner(tmp_path)
        assert owner is not None
        assert owner.pid == os.getpid()
        refused(tmp_path)
    assert read_owner(tmp_path) is None


def test_one_that_was_taken_over_from_another_machine_stops_before_it_writes(tmp_path: Path):
    """As on a file system whose locks do not reach the other machine."""
    ledger = Ledger(tmp_path / "provenance.json")
    ledger.create({"seconds": {}})
    with owning(tmp_path, pytest.fail):
        ledger.update({"seconds": {"baseline": 1.0}})
        named_by_another(tmp_path)
        with refusal("run.lost", "process 7 on another-host"):
            confirm_owner(tmp_path)
        with refusal("run.lost"):
            ledger.update({"seconds": {"baseline": 2.0}})
    assert ledger.read()["seconds"] == {"baseline": 1.0}
    assert read_owner(tmp_path) is not None, "the other's name stays"


def test_a_run_is_taken_over_from_another_machine_and_that_is_said(tmp_path: Path):
    named_by_another(tmp_path)
    said: list[str] = []
    with owning(tmp_path, said.append):
        confirm_owner(tmp_path)
    assert "process 7 on another-host" in said[0]


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch):
    def no_locks(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("equipoise.run.ledger.FileLock.acquire", no_locks)
    said: list[str] = []
    with owning(tmp_path, said.append):
        confirm_owner(tmp_path)
    assert "without locks" in said[0]


@pytest.mark.parametrize("content", ["", "{}", "[]", "\0"])
def test_a_name_that_cannot_be_read_is_nobodys(tmp_path: Path, content: str):
    (tmp_path / "owner.json").write_text(content)
    with owning(tmp_path, pytest.fail):
        confirm_owner(tmp_path)
