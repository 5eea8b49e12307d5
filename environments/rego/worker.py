"""The process that runs Rego: `python -m environments.rego.worker SECONDS TOTAL_SECONDS BYTES`.

It reads a command per line, {"compile": modules, "rules": [...]}, {"mark": modules} or
{"ask": rule, "input": "..."}, and answers each with a line, {"result": ...} or {"error": "..."}.
Where one takes more than the limits it ends at once, with a status that says which. What a policy
prints is read for marks and goes nowhere else.
"""

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

from environments.rego.engine import Engine, RegoError, compile_marked, compile_modules
from environments.rego.marks import marks_in

#: The status with which the process ends.
TOO_LONG, TOO_MUCH, TOO_LONG_IN_ALL = 101, 102, 103
_POLL_SECONDS = 0.01
_MEMORY = Path("/proc/self/statm")


class Watch:
    """Ends the process when it takes too much memory, or too many CPU seconds: a command's, or all.

    CPU seconds, for what fits the limits must fit them on a busy machine as well. A thread, for
    the engine releases the interpreter's lock, and macOS enforces no limit of memory by itself.
    """

    def __init__(self, seconds: float, total: float, size: int) -> None:
        self._seconds = seconds
        self._total = total
        self._size = size
        self._ends_at = float("inf")
        Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        """A command begins."""
        self._ends_at = time.process_time() + self._seconds

    def end(self) -> None:
        """It has ended, in time or too late for the thread to see."""
        self._check()
        self._ends_at = float("inf")

    def _watch(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            self._check()

    def _check(self) -> None:
        seconds = time.process_time()
        if seconds > self._ends_at:
            os._exit(TOO_LONG)
        if seconds > self._total:
            os._exit(TOO_LONG_IN_ALL)
        if _resident_bytes() > self._size:
            os._exit(TOO_MUCH)


def _resident_bytes() -> int:
    if _MEMORY.exists():  # on Linux ru_maxrss is that of the parent, if it is larger
        return int(_MEMORY.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


class Printed:
    """Standard output, in a file: the engine prints there from C++."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process lives
        self._flush = ctypes.CDLL(None).fflush
        os.dup2(self._file.fileno(), sys.stdout.fileno())

    def take(self) -> bytes:
        """Return what was printed since the last call."""
        self._flush(None)
        self._file.seek(0)
        printed = self._file.read()
        self._file.seek(0)
        self._file.truncate()
        return printed


class Worker:
    """Answers commands; holds what was compiled last."""

    def __init__(self, printed: Printed) -> None:
        self._printed = printed
        self._engine: Engine | None = None

    def answer(self, command: Mapping[str, Any]) -> Any:
        """The result of one command. Raises `RegoError`."""
        if "compile" in command:
            self._engine = compile_modules(command["compile"], command["rules"])
            return None
        if "mark" in command:
            self._engine, rules = compile_marked(command["mark"])
            return [asdict(rule) for rule in rules]
        assert self._engine
        self._printed.take()
        value = self._engine.ask(command["ask"], command["input"])
        return {"value": value, "reached": marks_in(self._printed.take())}


def main(seconds: float, total: float, size: int) -> None:
    """Answer until the input ends."""
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    worker, watch = Worker(Printed()), Watch(seconds, total, size)
    for line in sys.stdin:
        watch.begin()
        try:
            reply = {"result": worker.answer(json.loads(line))}
        except RegoError as error:
            reply = {"error": str(error)}
        text = json.dumps(reply)
        watch.end()
        print(text, file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
