"""One process at a time: with real ones, suspended and killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.run.ledger import owning
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


def test_a_second_process_is_refused_also_while_the_first_is_suspended(tmp_path: Path, other):
    other.send_signal(signal.SIGSTOP)
    os.waitpid(other.pid, os.WUNTRACED)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        other.send_signal(number)
        with refusal("run.in-use", tmp_path, ".lock"), owning(tmp_path):
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_run_of_a_dead_process_is_free(tmp_path: Path, other, number):
    other.send_signal(number)
    other.wait(timeout=30)
    with owning(tmp_path):
        pass
