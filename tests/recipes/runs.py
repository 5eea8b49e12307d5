"""Runs in processes of their own, what a test reads of them, and how a run here is interrupted."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

from tests.command import ROOT, command_line

#: What every run here is small by.
SMALL = (
    *("--num-samples=96", "--learning-rate=3e-3", "grpo.num_prompts_per_step=8"),
    *("grpo.num_generations_per_prompt=4", "equipoise.local_model.steps=150"),
    *("equipoise.evaluation.generations=2", "env.fairness.reference_generations=2"),
    "equipoise.max_failure_rate=1.0",
)


@dataclass(frozen=True)
class Runs:
    """Runs of the fairness recipe, with these words, in one folder and with one cache."""

    folder: Path
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, *words):
        return subprocess.Popen(
            command_line("grpo_fairness", *words),
            cwd=ROOT,
            env={**os.environ, **self.variables},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def new(self, name, *words):
        places = (f"--output-dir={self.folder}", f"equipoise.cache_dir={self.folder / 'cache'}")
        return self.start(*self.words, f"--run-name={name}", *places, *words)

    def resume(self, name, *words):
        return self.start(f"--resume={self.run(name)}", *words)

    def run(self, name):
        return self.folder / "fairness" / name


def ended(process, code=0):
    """Wait for the process and return its output; the test fails at another exit code."""
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def wait_for(reached, process):
    deadline = time.monotonic() + 600
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def history(run):
    """The rows of the steps, without the seconds, which no two runs share."""
    rows = map(json.loads, (run / "training_history.jsonl").read_text().splitlines())
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def steps_done(run):
    """How many steps the history has."""
    path = run / "training_history.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def assert_same_files(run, other, *files):
    assert history(run) == history(other)
    for file in (*files, "final/rollouts.jsonl", "comparison.json"):
        assert (run / file).read_bytes() == (other / file).read_bytes(), file


@contextmanager
def interrupted_at(function, *, call=1, presses=1):
    """Press Ctrl-C when the function of this name is called for the nth time."""
    module, _, name = function.rpartition(".")
    original, calls = getattr(import_module(module), name), []

    def interrupted(*words, **named):
        calls.append(name)
        for _ in range(presses if len(calls) == call else 0):
            signal.raise_signal(signal.SIGINT)
        return original(*words, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, interrupted)
        yield
    assert len(calls) >= call
