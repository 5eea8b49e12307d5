"""equipoise.log: what a run said, what its libraries warned of, how it ended, with the times."""

import io
import logging
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from pathlib import Path

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control

from equipoise.config.secrets import redacted
from equipoise.files.console import Reporter, escaped
from equipoise.files.errors import EquipoiseError
from equipoise.files.exits import Stopped

#: Its records are what the terminal has shown already.
_RUN = logging.getLogger("run")
#: Libraries whose records do not reach the root logger once they are imported.
_APART = ("transformers", "torch")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_WIDTH = 160


@contextmanager
def kept_log(reporter: Reporter) -> Iterator[Callable[[Path], None]]:
    """Write output, logs and errors of the block to a file.

    The yielded function names the file, to which it is then appended; before that it is held, and
    without it nothing is kept.
    """
    held = MemoryHandler(capacity=1, flushLevel=logging.CRITICAL)
    held.addFilter(_first_time)
    loggers = [logging.getLogger(), _RUN, *map(logging.getLogger, _APART)]
    logging.captureWarnings(True)
    _RUN.setLevel(logging.INFO)
    _RUN.propagate = False
    for logger in loggers:
        logger.addHandler(held)
    reporter.console.push_render_hook(_Echo())
    try:
        _RUN.info("started: %s", shlex.join(["python", *sys.argv]))
        yield lambda path: held.setTarget(_LogFile(path))
        _RUN.info("ended")
    except (EquipoiseError, Stopped) as error:
        _RUN.error("ended: %s", str(error) or "stopped")
        raise
    except BaseException:
        _RUN.exception("ended")
        raise
    finally:
        reporter.console.pop_render_hook()
        for logger in loggers:
            logger.removeHandler(held)
        held.close()


def _first_time(record: logging.LogRecord) -> bool:
    """Whether a record comes for the first time; several loggers may bring it."""
    is_repeat = getattr(record, "kept", False)
    record.kept = True
    return not is_repeat


class _Echo(RenderHook):
    """Logs what is printed on a console, without its colours and bars."""

    def __init__(self) -> None:
        self._plain = Console(file=io.StringIO(), width=_WIDTH, color_system=None, highlight=False)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by rich before it prints; a bar comes as nothing but control codes."""
        printed = [item for item in renderables if not isinstance(item, Control)]
        with self._plain.capture() as text:
            self._plain.print(*printed, soft_wrap=True)
        for line in filter(str.strip, text.get().split("\n")):
            _RUN.info("%s", line)
        return renderables


class _LogFile(logging.FileHandler):
    """Appends; continuation lines are indented, so that no text can pass for a record."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self.setFormatter(_Formatter(_FORMAT))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Ignore it: a full disk stops the run with an error of its own."""


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(redacted(super().format(record))).replace("\n", "\n    ")
