"""What a test reads of a run directory, and how it interrupts a run of this process."""

import csv
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def history(run: Path) -> list[dict[str, str]]:
    """The rows of the steps, without the seconds, which no two runs share."""
    with (run / "training_history.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def steps_done(run: Path) -> int:
    """How many steps the history has."""
    path = run / "training_history.csv"
    return path.read_text().count("\n") - 1 if path.exists() else 0


@contextmanager
def interrupted_at(function: str, *, call: int = 1, presses: int = 1) -> Iterator[None]:
    """Inside, Ctrl-C is pressed when the function of this name is called for the nth time."""
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
