"""Output for a person: stages, progress with the time left, steps, tables.

On a terminal progress is a live bar; in a file or a pipe it is a line now and then. All that is
printed goes through `Reporter`, which lets no text from outside do anything to a terminal.

Commands alone have a `Reporter`. What computes returns data, shows what lasts by a `ShowProgress`,
and logs notes and warnings for a person, which `printing_notes` prints.
"""

import logging
import math
import re
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean
from threading import Lock
from typing import Any, Protocol, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

# --- foreign text ---------------------------------------------------------------------------------
# Text from outside: completions, servers' errors, model names, paths. All of it is hostile input.
#
# A terminal obeys control characters (ESC may write into the clipboard), and marks that reverse the
# direction of writing make a line read as what it is not.


#: Control characters, formatting ones, lone surrogates, separators of lines other than the newline.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Newline and tab, and the joiners that scripts and emoji are written with.
_HARMLESS = frozenset("\n\t\u200c\u200d")


def is_visible(character: str) -> bool:
    """Whether a character is visible and has no other effect."""
    return character in _HARMLESS or unicodedata.category(character) not in _UNSEEN


def escaped(text: str) -> str:
    r"""The text with every character that is not visible written as Python would: `\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_visible(c) else ascii(c)[1:-1] for c in text)


# --- console --------------------------------------------------------------------------------------


Advance = Callable[[int], None]
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH_OF_FILES = 160
_WIDTH_OF_RULE = 80
#: Seconds without a line in a file after which a stage says how far it is.
_LINE_EVERY = 20.0
#: What is not broken: a line's indent stays with its first word.
_WORD = re.compile(r"^[ \t]*\S+|\S+", re.MULTILINE)
#: Longer words than this are cut where a terminal is narrow: paths and names of models, no figure.
_LONGEST_WORD = 16
#: How many of a task's metrics a line of training shows: the first ones, which matter most.
_METRICS_PER_LINE = 5


class ShowProgress(Protocol):
    """Shows that something goes on; `total` is None where it is not known how long."""

    def __call__(
        self, label: str, total: int | None = None, done: int = 0
    ) -> AbstractContextManager[Advance]: ...


def no_progress(*_: object, **__: object) -> AbstractContextManager[Advance]:
    """Show nothing."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: text, which may fold, or figures, which are never cut."""

    name: str
    folds: bool = False


class Reporter:
    """Prints a run. Every text may come from outside: escapes and markup in it are shown."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._lock = Lock()
        self._bars: Progress | None = None
        self._last_line = time.monotonic()

    @classmethod
    def for_errors(cls) -> "Reporter":
        return cls(_console(stderr=True))

    def heading(self, text: str) -> None:
        self.say("")
        self.say(text.upper(), style="bold")
        self.say("=" * min(_WIDTH_OF_RULE, self.console.width))

    def say(self, text: str, style: str | None = None) -> None:
        """Print lines. A terminal breaks them between words alone, a file keeps them whole."""
        lines = escaped(text).split("\n")
        if self.console.is_terminal:
            lines = [_filled(line, self.console.width) for line in lines]
        self._last_line = time.monotonic()
        self.console.print(Text("\n".join(lines)), style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    def table(self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Print a table. It is wider than a terminal that is too narrow for its figures."""
        columns = [Column(escaped(column.name), column.folds) for column in columns]
        rows = [[escaped(cell) for cell in row] for row in rows]
        table, min_width = Table(), 1
        for index, column in enumerate(columns):
            cells = [column.name, *(row[index] for row in rows)]
            words = [w for cell in cells for w in _WORD.findall(cell)] if column.folds else cells
            longest = max(map(cell_len, words), default=0)
            if column.folds and self.console.is_terminal:
                longest = min(longest, _LONGEST_WORD)
            min_width += 3 + longest
            table.add_column(
                Text(column.name),
                justify="left" if column.folds else "right",
                no_wrap=not column.folds,
                overflow="fold",
                min_width=longest,
            )
        for row in rows:
            table.add_row(*map(Text, row))
        table.width = min_width if min_width > self.console.width else None
        self.say(title, style="bold")
        self.console.print(table, crop=False)

    @contextmanager
    def progress(self, label: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
        """Show that a stage goes on; the yielded function takes how much of it is done so far.

        Stages may be nested, or run in several threads. Without a `total` it is not known how long
        one will take.
        """
        show = self._bar if self.console.is_terminal else self._lines
        with show(escaped(label), total, done) as advance:
            yield advance

    @contextmanager
    def _bar(self, label: str, total: int | None, done: int) -> Iterator[Advance]:
        with self._lock:
            if self._bars is None:
                self._bars = _progress(self.console)
                self._bars.start()
            bars = self._bars
            task = bars.add_task(label, total=total, completed=done)
        try:
            yield lambda completed: bars.update(task, completed=completed)
        finally:
            with self._lock:
                bars.remove_task(task)
                if not bars.tasks:
                    bars.stop()
                    self._bars = None

    @contextmanager
    def _lines(self, label: str, total: int | None, done: int) -> Iterator[Advance]:
        started = time.monotonic()
        if total is None:
            self.say(f"{label} ...")

        def advance(completed: int) -> None:
            moment, finished = time.monotonic(), completed == total
            late = moment - max(started, self._last_line) >= _LINE_EVERY
            if total is None or completed <= done or not (finished or late):
                return
            duration_text = f"in {duration(moment - started)}" if finished else ""
            duration_text = duration_text or time_left(started, completed - done, total - completed)
            self.say(f"{label}: {completed:,} of {total:,}, {duration_text}")

        yield advance

    @contextmanager
    def writing_to(self, file: TextIO) -> Iterator[None]:
        """Print to another file while the block runs."""
        before = self.console.file
        self.console.file = file
        try:
            yield
        finally:
            self.console.file = before


def duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def time_left(started: float, done: int, remaining: int) -> str:
    """Estimate the time left from that since `started`, a monotonic time."""
    return f"ETA {duration((time.monotonic() - started) / done * remaining)}"


def _filled(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=3_600,  # a step of a large model takes minutes
    )


def _console(*, stderr: bool = False) -> Console:
    """Make a console; without a terminal, tables are as wide as their columns need."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console


def guard_terminal() -> None:
    """Escape control characters in logs and warnings too."""
    handler = logging.StreamHandler()
    handler.setFormatter(_EscapingFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


_NOTES = logging.getLogger("equipoise")


@contextmanager
def printing_notes(reporter: Reporter) -> Iterator[None]:
    """Print what Equipoise's modules log from INFO on while the block runs."""
    handler = _NotesHandler(reporter)
    level = _NOTES.level
    _NOTES.addHandler(handler)
    _NOTES.setLevel(logging.INFO)
    _NOTES.propagate = False
    try:
        yield
    finally:
        _NOTES.removeHandler(handler)
        _NOTES.setLevel(level)
        _NOTES.propagate = not any(isinstance(h, _NotesHandler) for h in _NOTES.handlers)


class _NotesHandler(logging.Handler):
    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        show = self._reporter.warn if record.levelno >= logging.WARNING else self._reporter.say
        show(record.getMessage())


def sparkline(values: Sequence[float]) -> str:
    """Draw values as at most 40 blocks, each the mean of neighbours where they are many."""
    width = min(40, len(values))
    cuts = [n * len(values) // width for n in range(width + 1)]
    means = [fmean(values[cuts[n] : cuts[n + 1]]) for n in range(width)]
    low, span = min(means), max(means) - min(means)
    return "".join(_BLOCKS[round((mean - low) / span * 7) if span else 0] for mean in means)


@contextmanager
def showing_steps(
    progress: ShowProgress, total: int, done: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield the function that prints a step's row as a line, and ten times the rewards so far."""
    started, rewards = time.monotonic(), list[float]()

    def show(row: Mapping[str, Any]) -> None:
        step = int(row["step"])
        parts = [f"step {step:>4}/{total}", time_left(started, step - done, total - step)]
        metrics = [name for name in row if name.startswith("env/")][:_METRICS_PER_LINE]
        parts += [
            f"{name.rpartition('/')[2].replace('_', ' ')} {value:.3f}"
            for name in ("reward", "loss", *metrics)
            if (value := row.get(name)) is not None and not math.isnan(value)
        ]
        _NOTES.info("  ".join(parts))
        reward = row.get("reward")
        if reward is not None and math.isfinite(reward):
            rewards.append(reward)
        due = (step % max(1, total // 10) == 0 or step == total) and len(rewards) > 1
        if due and (sys.stdout.encoding or "").lower().startswith("utf"):
            _NOTES.info(f"reward {sparkline(rewards)}  {rewards[0]:.3f} to {rewards[-1]:.3f}")
        advance(step)

    with progress("training", total, done) as advance:
        yield show
