"""The parent's side of a Rego process: started when it is needed, and again after its end."""

import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from environments.rego.plan import Rule
from environments.rego.worker import TOO_LONG, TOO_LONG_IN_ALL, TOO_MUCH, RegoError

#: For a process that has nothing more to do.
_GRACE_SECONDS = 2.0
#: The process has no environment: what is in this one, keys among it, is no policy's business. The
#: one variable is for a Python whose libraries the loader finds by it; the worker takes it away.
_LOADER = ("LD_LIBRARY_PATH",)
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module('environments.rego.worker', run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of compiling, and then of each question. A question takes a millisecond.

    `total_seconds` is for all that the process does in its life.
    """

    cpu_seconds: float = 2.0
    memory_bytes: int = 512 * 2**20
    total_seconds: float = math.inf


class ProcessEndedError(RegoError):
    """The process has ended, for its limits or for a fault of the engine."""


class RegoProcess:
    """Modules in a process of their own; their rules without arguments can be asked.

    Any number of threads may ask; one is answered at a time. Without `rules` every rule can be
    asked, and each answer has the marks that it reached. Raises `RegoError` where the modules
    cannot be compiled.
    """

    def __init__(
        self,
        modules: Mapping[str, str],
        rules: Sequence[str] | None = None,
        limits: Limits = Limits(),
    ) -> None:
        compiled = {"compile": dict(modules), "rules": rules}
        self._compile = {"mark": dict(modules)} if rules is None else compiled
        self._limits = limits
        self._lock = Lock()
        self._child: subprocess.Popen[str] | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        with self._lock:
            self.rules = [Rule(**rule) for rule in self._start() or ()]

    def ask(self, rule: str, input_json: str) -> tuple[Any, list[str]]:
        """The value of a rule for an input in JSON, and the marks that it reached.

        Raises `RegoError` without a value, as when a limit is met.
        """
        with self._lock:
            if self._child is None:
                self._start()
            answer = self._exchange({"ask": rule, "input": input_json})
        return answer["value"], answer["reached"]

    def close(self) -> None:
        """End the process; a later question starts another."""
        with self._lock:
            self._stop()

    def _start(self) -> Any:
        limits = self._limits
        numbers = limits.cpu_seconds, limits.total_seconds, limits.memory_bytes
        path = json.dumps([folder for folder in sys.path if folder])
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, path, *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={name: os.environ[name] for name in _LOADER if name in os.environ},
        )
        self._end = weakref.finalize(self, _end, self._child)
        return self._exchange(self._compile)

    def _exchange(self, command: Mapping[str, Any]) -> Any:
        """The result of a command. Raises `RegoError`; a process that has ended is given up."""
        assert self._child and self._child.stdin and self._child.stdout
        try:
            self._child.stdin.write(f"{json.dumps(command)}\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # a late answer must not be taken for that to the next question
            self._stop()
            raise
        if not line.endswith("\n"):
            raise ProcessEndedError("rego.ended-process", self._stop())
        reply = json.loads(line)
        if "error" in reply:
            raise RegoError(*reply["error"])
        return reply["result"]

    def _stop(self) -> str:
        """End the process, if one runs; why it had ended, if it had."""
        child, self._child = self._child, None
        status = self._end() if self._end else None
        if child is None:
            return "it is closed"
        if status == TOO_LONG:
            return f"it takes more than {self._limits.cpu_seconds:g} s of CPU time"
        if status == TOO_LONG_IN_ALL:
            return f"it takes more than {self._limits.total_seconds:g} s of CPU time in all"
        if status == TOO_MUCH:
            return f"it takes more than {self._limits.memory_bytes // 2**20:,} MiB of memory"
        return f"it ends the engine (status {status})"


def _end(child: subprocess.Popen[str]) -> int:
    """The status with which a process has ended, or ends now that nothing more is asked."""
    assert child.stdin and child.stdout
    with suppress(BrokenPipeError):
        child.stdin.close()
    try:
        return child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
    finally:
        child.stdout.close()
