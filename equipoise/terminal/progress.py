"""How far a stage is: how much of it is done, how fast, and how long the rest will take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.progress_bar import ProgressBar
from rich.text import Text

#: What a bar leaves of a terminal's width for its label and its figures.
_WIDTH_OF_FIGURES = 60
_NARROWEST, _WIDEST = 4, 40


@dataclass(slots=True, eq=False)
class Stage:
    """A stage that goes on; `done` of its `total` were done before it began."""

    label: str
    total: int | None
    done: int = 0
    completed: int = field(init=False)
    started: float = field(init=False, default_factory=time.monotonic)
    heard: bool = field(init=False, default=False)
    _first: tuple[int, float] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.completed = self.done

    def advance(self, completed: int) -> None:
        """So much is done so far."""
        self.completed = completed
        self._first = self._first or (completed, time.monotonic())

    @property
    def finished(self) -> bool:
        """Whether all is done that was to be done."""
        return self.total is not None and self.completed >= self.total

    def line(self) -> str:
        """The label and the figures, for a file."""
        return f"{self.label}: {self.figures()}"

    def figures(self) -> str:
        """How much is done, how much in a second, and how long the rest will take."""
        elapsed = duration(time.monotonic() - self.started)
        if self.total is None:
            return f"{elapsed} so far"
        part = f"{self.completed:,} of {self.total:,}"
        if self.completed == self.done:
            return f"{part}, {elapsed} so far"
        remaining = f"in {elapsed}" if self.finished else self.eta()
        return f"{part}, {_per_second(self._rate())}, {remaining}"

    def eta(self) -> str:
        """How long the rest will take."""
        return f"ETA {duration(((self.total or 0) - self.completed) / self._rate())}"

    def _rate(self) -> float:
        """Done in a second. What came before the first part, such as starting, is no measure."""
        since, started = self._first or (self.done, self.started)
        if self.completed == since or self.finished:
            since, started = self.done, self.started
        return (self.completed - since) / max(1e-9, time.monotonic() - started)


class LiveBar:
    """The bars below what a terminal prints meanwhile: one for each stage, the first on top.

    Stages may begin and end in any order, and in any thread.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._lock = Lock()

    @contextmanager
    def showing(self, stage: Stage, console: Console) -> Iterator[None]:
        """Inside, the stage has a bar."""
        with self._lock:
            if self._progress is None:
                self._progress = _progress(console)
                self._progress.start()
            progress = self._progress
            task = progress.add_task("", total=stage.total, stage=stage)
        try:
            yield
        finally:
            with self._lock:
                progress.remove_task(task)
                if not progress.tasks:
                    progress.stop()
                    self._progress = None


def duration(seconds: float) -> str:
    """Hours, minutes, seconds."""
    return str(timedelta(seconds=round(seconds)))


def _per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _progress(console: Console) -> Progress:
    width = min(_WIDEST, max(_NARROWEST, console.width - _WIDTH_OF_FIGURES))
    columns = (SpinnerColumn(), _Label(), _Bar(bar_width=width), _Figures())
    return Progress(*columns, console=console, transient=True)


class _Label(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["stage"].label)


class _Bar(BarColumn):
    """The bar takes its figures from the stage, so that advancing it waits for no screen."""

    def render(self, task: Task) -> ProgressBar:
        task.completed = task.fields["stage"].completed
        return super().render(task)


class _Figures(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["stage"].figures())
