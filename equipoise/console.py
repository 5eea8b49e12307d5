"""What a person sees: stages, progress with the time that is left, steps, tables.

On a terminal progress is a live bar; in a file or a pipe it is a line now and then.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Advance = Callable[[int], None]
_LINES_PER_STAGE = 10
_WIDTH_OF_FILES = 160
#: How many of a task's metrics a line of training shows: the first ones, which matter most.
_METRICS_PER_LINE = 5


class Reporter:
    """Prints a run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()

    @classmethod
    def for_errors(cls) -> "Reporter":
        """A reporter on standard error."""
        return cls(_console(stderr=True))

    def heading(self, text: str) -> None:
        """Start a stage."""
        self.console.print()
        self.console.print(text.upper(), style="bold", markup=False)
        self.console.print("=" * 80)

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line."""
        self.console.print(text, style=style, markup=False)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.console.print(f"warning: {text}", style="yellow", markup=False)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table: the first column is text, the others are figures."""
        table = Table(title=title, title_justify="left", title_style="bold")
        for number, name in enumerate(columns):
            table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        """A bar or a few lines; the yielded function takes how much is done so far."""
        if self.console.is_terminal:
            with self.bar(label, total) as advance:
                yield advance
        else:
            yield _Lines(self, label, total)

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        """A live bar, below the lines that are printed meanwhile; nothing without a terminal."""
        if not self.console.is_terminal:
            yield _nothing
            return
        with self._bar() as bar:
            task = bar.add_task(label, total=total, completed=done)
            yield lambda now: bar.update(task, completed=now)

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )


def _console(*, stderr: bool = False) -> Console:
    """A console; without a terminal tables keep the width that their columns need."""
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console


class _Lines:
    """Progress as lines, about ten a stage, each with the estimated time left."""

    def __init__(self, reporter: Reporter, label: str, total: int) -> None:
        self.reporter, self.label, self.total = reporter, label, total
        self.started = time.perf_counter()
        self.every = max(1, total // _LINES_PER_STAGE)
        self.next = self.every

    def __call__(self, now: int) -> None:
        if now < min(self.next, self.total):
            return
        self.next = now + self.every
        elapsed = time.perf_counter() - self.started
        eta = timedelta(seconds=round(elapsed * (self.total - now) / now))
        self.reporter.say(f"{self.label}: {now:,} of {self.total:,}, ETA {eta}")


def _nothing(now: int) -> None:
    """Progress that nobody watches."""


class StepPrinter:
    """Sums up the training steps: means since the last line, and how they changed."""

    def __init__(self, reporter: Reporter, total: int, done: int = 0) -> None:
        self.reporter, self.total, self.done = reporter, total, done
        self._started = time.perf_counter()
        self.every = max(1, total // _LINES_PER_STAGE)
        self._window: deque[Mapping[str, Any]] = deque(maxlen=self.every)
        self._last: dict[str, float] = {}

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Take a row of the history; print when a window is full."""
        self._window.append(row)
        step = int(row["step"])
        if step % self.every and step != self.total:
            return
        metrics = [name for name in row if name.startswith("env/")][:_METRICS_PER_LINE]
        means = {n: mean for n in ("reward", *metrics) if (mean := self._mean(n)) is not None}
        figures = "  ".join(self._figure(name, value) for name, value in means.items())
        self.reporter.say(f"step {step:>4}/{self.total}  {self._eta(step)}  {figures}")
        self._last = means

    def _eta(self, step: int) -> str:
        elapsed = time.perf_counter() - self._started
        left = elapsed * (self.total - step) / max(1, step - self.done)
        return f"ETA {timedelta(seconds=round(left))}"

    def _mean(self, name: str) -> float | None:
        values = [row[name] for row in self._window if row.get(name) is not None]
        values = [value for value in values if value == value]
        return sum(values) / len(values) if values else None

    def _figure(self, name: str, value: float) -> str:
        change = f" ({value - self._last[name]:+.3f})" if name in self._last else ""
        return f"{name.rpartition('/')[2].replace('_', ' ')} {value:.3f}{change}"
