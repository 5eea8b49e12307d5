"""Runs in processes of their own, what a test reads of them, and how a run here is interrupted."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, command_line

Process = subprocess.Popen[str]


@dataclass(frozen=True)
class Runs:
    """Runs of the fairness recipe, with these words, in one folder and with one cache."""

    folder: Path
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, *words: str) -> Process:
        return subprocess.Popen(
            command_line("grpo_fairness", *words),
            cwd=ROOT,
            env={**os.environ, **self.variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def new(self, name: str, *words: str) -> Process:
        places = (f"--output-dir={self.folder}", f"equipoise.cache_dir={self.folder / 'cache'}")
        return self.start(*self.words, f"--run-name={name}", *places, *words)

    def resume(self, name: str, *words: str) -> Process:
        return self.start(f"--resume={self.run(name)}", *words)

    def run(self, name: str) -> Path:
        return self.folder / "fairness" / name


def ended(process: Process, code: int = 0) -> str:
    """Wait for the process and return its output; the test fails at another exit code."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def wait_for(reached: Callable[[], bool], process: Process) -> None:
    deadline = time.monotonic() + 600
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def history(run: Path) -> list[dict[str, float]]:
    """The rows of the steps, without the seconds, which no two runs share."""
    rows = map(json.loads, (run / "training_history.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def steps_done(run: Path) -> int:
    """How many steps the history has."""
    path = run / "training_history.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@contextmanager
def interrupted_at(function: str, *, call: int = 1, presses: int = 1) -> Iterator[None]:
    """Press Ctrl-C when the function of this name is called for the nth time."""
    module, _, name = function.rpartition(".")
    original, calls = getattr(import_module(module), name), []

    def interrupted(*words: Any, **named: Any) -> Any:
        calls.append(name)
        for _ in range(presses if len(calls) == call else 0):
            signal.raise_signal(signal.SIGINT)
        return original(*words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, interrupted)
        yield
    assert len(calls) >= call
