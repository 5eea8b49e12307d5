"""NeMo-RL and Ray print thousands of lines: they go into a file, and the run's own to the user."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from equipoise.console import Reporter


@contextmanager
def output_to(path: Path, reporter: Reporter) -> Iterator[None]:
    """Inside, what this process and its workers print is appended to `path`.

    The reporter keeps writing to where standard output was.
    """
    before = reporter.console.file
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with path.open("ab") as log, os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
            reporter.console.file = own
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                yield
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                for target, copy in zip((1, 2), kept, strict=True):
                    os.dup2(copy, target)
    finally:
        reporter.console.file = before
        for copy in kept:
            os.close(copy)
