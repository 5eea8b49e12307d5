"""A step as it runs: its commands, within one time limit, and what it measures of them."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from equipoise.machine.software import read_driver

ROOT = Path(__file__).resolve().parents[2]
GB = 10**9
_SECONDS_BETWEEN_LOOKS = 0.25
Figures = Mapping[str, Any]


class StepError(RuntimeError):
    """A step that did not show what it should; the message says how."""


@dataclass(slots=True)
class Attempt:
    """A step as it runs: its commands, which share a time limit, and the most memory they took."""

    step: str
    folder: Path  # absolute, of all that is written
    device: str  # cuda or cpu
    minutes: float
    ends: float = field(init=False)  # on the monotonic clock
    peak: int = 0  # bytes, of the fullest GPU, else of all processes

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + 60 * self.minutes

    @property
    def cuda(self) -> bool:
        """Whether a GPU computes."""
        return self.device == "cuda"

    def python(self, *words: str, code: int = 0, until: Callable[[], bool] | None = None) -> str:
        """Run Python with these words and return what it said.

        `until` is asked several times a second: once it is true, all processes get SIGKILL. Raises
        `StepError` for another exit code than `code`, at the time limit, and where the command
        ended before `until` was true.
        """
        log = self.folder / "logs" / f"{self.step}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            start = file.tell()
            with _started([sys.executable, *words], file, self.variables) as process:
                while process.poll() is None and not (until and until()):
                    if time.monotonic() > self.ends:
                        raise StepError(f"not ended after {self.minutes:g} minutes: {log}")
                    self.peak = max(self.peak, _memory(process.pid, cuda=self.cuda))
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                killed = process.poll() is None
        output = log.read_bytes()[start:].decode(errors="replace")
        if not killed and (until or process.returncode != code):
            lines = output.strip().splitlines()[-3:]
            raise StepError(f"exit code {process.returncode}: {' / '.join(lines)}")
        return output

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its commands: this project's code, no network, no GPU on `cpu`."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        hidden = {} if self.cuda else {"CUDA_VISIBLE_DEVICES": ""}
        return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"} | hidden

    def train(self, task: str, name: str, *words: str) -> "Run":
        """Train once from the start, on this device; what an earlier attempt left is resumed."""
        run = self.run_named(task, name)
        if run.root.exists():
            self.python("-m", "equipoise", "train", task, f"--resume={run.root}")
        else:
            self.python(*self.training(task, name, *words))
        return run

    def run_named(self, task: str, name: str) -> "Run":
        """A run of this hour."""
        return Run(self.folder / "runs" / task / name)

    def training(self, task: str, name: str, *words: str) -> tuple[str, ...]:
        """Return the words that start a run which is kept under this name."""
        return (
            *("-m", "equipoise", "train", task, "--no-wandb", f"--run-name={name}"),
            *(f"--output-dir={self.folder / 'runs'}", f"equipoise.cache_dir={self.folder}/cache"),
            *words,
        )


@contextmanager
def _started(
    command: list[str], output: Any, variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process; whatever of it still runs at the end is killed, Ray's own sessions too."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=dict(variables), stdout=output, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for child in family:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(family, timeout=5)
        process.wait()


def _memory(pid: int, *, cuda: bool) -> int:
    """Bytes in use now: of the fullest GPU, else of a process and its children."""
    if cuda:
        driver = read_driver()
        return max((gpu.used for gpu in driver.gpus), default=0) if driver else 0
    total = 0
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


@dataclass(frozen=True, slots=True)
class Run:
    """A run's directory."""

    root: Path

    @property
    def history(self) -> list[dict[str, str]]:
        """The rows of its steps."""
        path = self.root / "training_history.csv"
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def rollouts(self) -> list[bytes]:
        """What was generated in training, with its scores."""
        return (self.root / "training" / "rollouts.jsonl").read_bytes().splitlines()

    @property
    def figures(self) -> Figures:
        """Seconds of a step after the first, which warms up, and the largest gradient.

        That is 0 where all rewards are equal, as those of random weights may well be.
        """
        seconds = [float(row["seconds"]) for row in self.history]
        later = seconds[1:] or seconds
        return {
            "steps": len(seconds),
            "seconds_per_step": round(sum(later) / len(later), 2),
            "grad_norm": max(float(row["grad_norm"]) for row in self.history),
        }
