"""NeMo-RL and Ray print thousands of lines: they go into a file, and the run's own to the user."""

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import BinaryIO

from equipoise.terminal.console import Reporter, escaped

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def output_to(path: Path, reporter: Reporter) -> Iterator[None]:
    """Inside, what this process and its workers print is appended to `path`.

    The reporter keeps writing to where standard output was. What Python prints, NeMo-RL's samples
    of completions among it, is escaped, since people read the file in a terminal.
    """
    before = reporter.console.file
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [os.dup(1), os.dup(2)]
    try:
        with path.open("ab") as log, os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout:
            reporter.console.file = stdout
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                text = _Escaping(log)  # not closed: loggers that begin inside keep it
                with redirect_stdout(text), redirect_stderr(text):
                    yield
            finally:
                for target, copy in zip((1, 2), copies, strict=True):
                    os.dup2(copy, target)
    finally:
        reporter.console.file = before
        for copy in copies:
            os.close(copy)


class _Escaping(io.TextIOWrapper):
    """Text without colours, in which a carriage return, of a progress bar, begins a new line."""

    def __init__(self, log: BinaryIO) -> None:
        copy = os.fdopen(os.dup(log.fileno()), "ab")
        super().__init__(copy, "utf-8", "backslashreplace", write_through=True)

    def write(self, text: str) -> int:
        super().write(escaped(_COLOURS.sub("", text).replace("\r", "\n")))
        return len(text)
