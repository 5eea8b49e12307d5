"""Output for a person: stages, progress with the time left, steps, tables.

On a terminal progress is a live bar; in a file or a pipe it is a line now and then. All that is
printed goes through `Reporter`, which lets no text from outside do anything to a terminal.
"""

import logging
import re
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event, Lock, Thread, get_ident
from typing import Any, Literal

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# --- foreign text ---------------------------------------------------------------------------------
# Text from outside: completions, servers' errors, model names, paths. All of it is hostile input.
#
# A terminal obeys control characters (ESC may write into the clipboard), and marks that reverse the
# direction of writing make a line read as what it is not.


#: Control characters, formatting ones, lone surrogates, separators of lines that are no newline.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Newline and tab, and the joiners that scripts and emoji are written with.
_HARMLESS = frozenset("\n\t\u200c\u200d")


def is_visible(character: str) -> bool:
    """Whether a character shows itself and does nothing else."""
    return character in _HARMLESS or unicodedata.category(character) not in _UNSEEN


def escaped(text: str) -> str:
    r"""The text with every character that is not visible written as Python would: `\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if is_visible(c) else ascii(c)[1:-1] for c in text)


# --- layout ---------------------------------------------------------------------------------------
# How text fits a width: words, figures and names stay whole, and tables keep every figure.


_WORD = re.compile(r"^\s+|\S+\s*")
#: A part of a name such as parse_rate or of a path, with what joins it to the next one.
_PART = re.compile(r"[^\s_/]*[\s_/]+|[^\s_/]+")
#: Longer parts than this are cut where a table is narrow: paths and names of models, no figure.
_LONGEST_PART = 24
#: What rich draws around a column, and at a table's edge.
_AROUND, _EDGE = 3, 1


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: text, which may fold, or figures, which are never cut.

    A narrow table does without the `spare` columns, the one with the highest number first.
    """

    name: str
    folds: bool = False
    spare: int = 0


def words(text: str) -> list[str]:
    """The words of a line, each with the space after it."""
    return _WORD.findall(text)


def fill(parts: Sequence[str], width: int, indent: str = "") -> list[str]:
    """Lines of whole parts, all but the first indented; a part that is too long stays whole."""
    lines = [""]
    for part in parts:
        if lines[-1].strip() and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append(indent)
        lines[-1] += part
    return [line.rstrip() for line in lines]


def fold(text: str, width: int) -> str:
    """The text in lines of at most `width`, broken between words and within long names."""
    return "\n".join(
        line
        for paragraph in text.split("\n")
        for line in fill(
            [p for part in _PART.findall(paragraph) for p in _chopped(part, width)], width
        )
    )


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """The columns that are shown, by their place, and how wide; empty where no table fits."""
    cells = [[row[index] for row in rows] for index in range(len(columns))]
    narrowest = [_least(column, texts) for column, texts in zip(columns, cells, strict=True)]
    natural = [_longest([c.name, *texts]) for c, texts in zip(columns, cells, strict=True)]
    visible = list(range(len(columns)))
    while (room := width - _EDGE - sum(narrowest[i] + _AROUND for i in visible)) < 0:
        last = max(visible, key=lambda i: columns[i].spare)
        if not columns[last].spare:
            return {}
        visible.remove(last)
    widths = {index: narrowest[index] for index in visible}
    for index in sorted(visible, key=lambda i: not columns[i].folds):
        more = min(room, max(0, natural[index] - narrowest[index]))
        widths[index] += more
        room -= more
    return widths


def _least(column: Column, cells: Sequence[str]) -> int:
    """How narrow a column may be: its names and words fold, its figures do not."""
    texts = (column.name, *cells) if column.folds else (column.name,)
    parts = [part.rstrip() for text in texts for part in _PART.findall(text)]
    folded = min(_LONGEST_PART, _longest(parts))
    return folded if column.folds else max(folded, _longest(cells))


def _longest(texts: Sequence[str]) -> int:
    return max((cell_len(line) for text in texts for line in text.split("\n")), default=0)


def _chopped(part: str, width: int) -> list[str]:
    return chop_cells(part, width) if cell_len(part.rstrip()) > width else [part]


# --- progress -------------------------------------------------------------------------------------
# How far a stage is: how much of it is done, how fast, and how long the rest will take.


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
        rate = self._rate()
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        remaining = f"in {elapsed}" if self.finished else self.eta()
        return f"{part}, {speed}/s, {remaining}"

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


# --- console --------------------------------------------------------------------------------------


Advance = Callable[[int], None]
_LINES_PER_TRAINING = 10
_WIDTH_OF_FILES = 160
_WIDTH_OF_RULE = 80
#: How many seconds of silence there may be in a file: at first, and later in a stage.
_FIRST_LINE, _LINE_EVERY, _LOOKS_EVERY = 10.0, 30.0, 1.0
#: How many of a task's metrics a line of training shows: the first ones, which matter most.
_METRICS_PER_LINE = 5


class Reporter:
    """Prints a run. Every text may come from outside: escapes and markup in it are shown."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._bar = LiveBar()
        self._heartbeat = _Heartbeat(self.say)
        self._last_line = time.monotonic()

    @classmethod
    def for_errors(cls) -> "Reporter":
        """A reporter on standard error."""
        return cls(_console(stderr=True))

    def heading(self, text: str) -> None:
        """Start a stage."""
        self.say("")
        self.say(text.upper(), style="bold")
        self.say("=" * min(_WIDTH_OF_RULE, self.console.width))

    def say(self, text: str, style: str | None = None) -> None:
        """Print lines; on a terminal no word is broken at its edge."""
        for line in text.split("\n"):
            self.parts(words(line), style, indent=line[: len(line) - len(line.lstrip())])

    def parts(self, parts: Sequence[str], style: str | None = None, indent: str = "  ") -> None:
        """Print a line of parts that stay whole; what a terminal is too narrow for is indented."""
        pieces = [escaped(part) for part in parts]
        wraps = self.console.is_terminal  # files and pipes keep whole lines
        lines = fill(pieces, self.console.width, indent) if wraps else ["".join(pieces)]
        self._last_line = time.monotonic()
        self.console.print(Text("\n".join(lines).rstrip()), style=style, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.say(f"warning: {text}", style="yellow")

    def table(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        all_in: str = "a wider terminal",
    ) -> None:
        """Print a table. What a narrow one leaves out is named, and that it is `all_in`."""
        columns = [Column(escaped(c.name), c.folds, c.spare) for c in columns]
        rows = [[escaped(cell) for cell in row] for row in rows]
        widths = fit(columns, rows, self.console.width)
        self.say(title, style="bold")
        if widths:
            table = Table()
            for index, width in widths.items():
                name, folds = columns[index].name, columns[index].folds
                justify: Literal["left", "right"] = "left" if folds else "right"
                table.add_column(Text(fold(name, width)), justify=justify, width=width)
            for row in rows:
                table.add_row(*(Text(fold(row[index], width)) for index, width in widths.items()))
            self.console.print(table)
        else:  # too narrow for columns: the cells of a row as lines
            for first, *cells in rows:
                self.say(first)
                pairs = zip(columns[1:], cells, strict=True)
                self.parts(["  ", *(f"{column.name} {cell}  " for column, cell in pairs)])
        if missing := [c.name for i, c in enumerate(columns) if widths and i not in widths]:
            self.say(f"left out, for the terminal is narrow: {', '.join(missing)}; see {all_in}")

    @contextmanager
    def progress(self, label: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
        """Show that a stage goes on; the yielded function takes how much of it is done so far.

        Stages may be within another, or of several threads. Without a `total` it is not known
        how long one will take.
        """
        stage = Stage(escaped(label), total, done)
        if self.console.is_terminal:
            with self._bar.showing(stage, self.console):
                yield stage.advance
        else:
            with self._heartbeat.telling(stage, lambda: self._last_line):
                yield stage.advance
            if stage.finished:
                self.say(stage.line())


class _Heartbeat:
    """A line now and then in place of a bar, about a stage that is silent for a while.

    Of stages that a thread has begun within each other that is the innermost; the stages of
    several threads are all heard of.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stages: list[tuple[int, Stage]] = []
        self._lock = Lock()
        self._speaking: Callable[[], None] | None = None

    @contextmanager
    def telling(self, stage: Stage, last_line: Callable[[], float]) -> Iterator[None]:
        """Inside, the stage is heard of."""
        entry = (get_ident(), stage)
        with self._lock:
            self._stages.append(entry)
            self._speaking = self._speaking or self._begin(last_line)
        try:
            yield
        finally:
            with self._lock:
                self._stages.remove(entry)
                end = None if self._stages else self._speaking
                self._speaking = self._speaking if self._stages else None
            if end:
                end()

    def _begin(self, last_line: Callable[[], float]) -> Callable[[], None]:
        """Speak in a thread from now on; what ends it."""
        ended = Event()

        def speak() -> None:
            while not ended.wait(_LOOKS_EVERY):
                with self._lock:
                    self._break_silence(last_line())

        def end() -> None:
            ended.set()
            thread.join()

        thread = Thread(target=speak, name="progress", daemon=True)
        thread.start()
        return end

    def _break_silence(self, last_line: float) -> None:
        for stage in dict(self._stages).values():
            silent = time.monotonic() - max(last_line, stage.started)
            if silent >= (_LINE_EVERY if stage.heard else _FIRST_LINE):
                stage.heard = True
                self._say(stage.line())


def _console(*, stderr: bool = False) -> Console:
    """A console; without a terminal tables keep the width that their columns need."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console


def guard_terminal() -> None:
    """Let nothing that logs and warnings quote do anything to the terminal, either."""
    handler = logging.StreamHandler()
    handler.setFormatter(_EscapingFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.captureWarnings(True)


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class StepPrinter:
    """Sums up the training steps: means since the last line, and how they changed."""

    def __init__(self, reporter: Reporter, total: int, done: int = 0) -> None:
        self.reporter, self.total = reporter, total
        self._stage = Stage("training", total, done)
        self.every = max(1, total // _LINES_PER_TRAINING)
        self._window: deque[Mapping[str, Any]] = deque(maxlen=self.every)
        self._last: dict[str, float] = {}

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Take a row of the history; print when a window is full."""
        self._window.append(row)
        step = int(row["step"])
        self._stage.advance(step)
        if step % self.every and step != self.total:
            return
        metrics = [name for name in row if name.startswith("env/")][:_METRICS_PER_LINE]
        means, figures = {}, []
        for name in ("reward", "loss", *metrics):
            values = [row[name] for row in self._window if row.get(name) is not None]
            values = [value for value in values if value == value]  # NaN is not
            if not values:
                continue
            means[name] = sum(values) / len(values)
            change = f" ({means[name] - self._last[name]:+.3f})" if name in self._last else ""
            label = name.rpartition("/")[2].replace("_", " ")
            figures.append(f"{label} {means[name]:.3f}{change}  ")
        self.reporter.parts([f"step {step:>4}/{self.total}  ", f"{self._stage.eta()}  ", *figures])
        self._last = means


@contextmanager
def showing_steps(
    reporter: Reporter, total: int, done: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yields what shows a row of the history: in the progress, and summed up in a line at times."""
    printer = StepPrinter(reporter, total, done)
    with reporter.progress("training", total, done) as advance:

        def show(row: Mapping[str, Any]) -> None:
            printer(row)
            advance(int(row["step"]))

        yield show
