"""The process that runs Rego: `python -m environments.rego.worker SECONDS TOTAL_SECONDS BYTES`.

It reads a command per line, {"compile": modules, "rules": [...]}, {"mark": modules} or
{"ask": rule, "input": "..."}, and answers each with a line, {"result": ...} or
{"error": [code, message]}.
Where one takes more than the limits it ends at once, with a status that says which. What a policy
prints is read for marks and goes nowhere else.

Faults that regopy lets pass are refused:

- an error within a built-in function makes the rule undefined: strict errors, `Output.ok()`
- a number that is set as a Python value is rounded to six decimals: the input is set as JSON
- input that cannot be read leaves the input before it in place: that raises, nothing is asked
- `not` in the body of `every` always holds: refused where rules are marked
- functions and statements that `plan.py` does not list: refused in the compiled plan
- recursion, a number beyond a double: an answer that is no JSON
"""

import ctypes
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import regopy  # type: ignore[import-untyped]

from environments.errors import CodedError
from environments.rego.plan import Plan, Rule, excess, mark, marks_in, names, vacuous

_ENGINE_ERROR = re.compile(
    r"error \d+:([^|\n]{1,200})\|\d+\|\d+\s{1,40}\(errormsg \d+:([^\n]{1,300})"
)


class RegoError(CodedError, ValueError):
    """Rego that gives no answer; the message says why."""


class Engine:
    """Compiled modules; their rules without arguments can be asked."""

    def __init__(self, rego: regopy.Interpreter, bundle: regopy.Bundle) -> None:
        self._rego = rego
        self._bundle = bundle

    def ask(self, rule: str, input_json: str) -> Any:
        """Evaluate a rule, such as `dharma.decision`, for an input in JSON."""
        try:
            self._rego.set_input_term(input_json)
            output = self._rego.query_bundle_entrypoint(self._bundle, _entrypoint(rule))
        except (regopy.RegoError, ValueError, RecursionError):
            raise RegoError(
                "rego.no-answer", f"{rule} has no answer: it names something unknown, or loops"
            ) from None
        if not output.ok():
            raise RegoError(
                "rego.failed-rule", f"{rule} ended with an error: a wrong type or rules in conflict"
            )
        if len(output) != 1 or len(output[0].expressions) != 1:
            raise RegoError("rego.undefined-rule", f"{rule} is undefined")
        return output[0].expressions[0]


def compile_modules(modules: Mapping[str, str], rules: Sequence[str]) -> Engine:
    """Modules by file name, of which these rules will be asked. Raises `RegoError`."""
    with tempfile.TemporaryDirectory() as name:
        _plan(modules, rules, Path(name))
        return _load(Path(name))


def compile_marked(modules: Mapping[str, str]) -> tuple[Engine, list[Rule]]:
    """The same with every rule, and every clause printing its mark when it is reached."""
    with tempfile.TemporaryDirectory() as name:
        rules = names(_plan(modules, (), Path(name) / "names"))
        folder = Path(name) / "marked"
        plan = _plan(modules, rules, folder)
        if places := vacuous(plan):
            raise RegoError(
                "rego.vacuous-not",
                f"{places[0]}: `not` in the body of `every` always holds in the in-process engine: "
                "put it into a rule of its own, or collect what is wrong and compare it with []",
            )
        marked = mark(plan)
        (folder / "plan.json").write_text(json.dumps(plan))
        return _load(folder), marked


def _plan(modules: Mapping[str, str], rules: Sequence[str], folder: Path) -> Plan:
    """The plan of a bundle that is saved in a folder. Raises `RegoError` for what it may not do."""
    rego = _interpreter()
    try:
        for name, text in modules.items():
            # A comment that ends the file without a line end is no comment to rego-cpp.
            rego.add_module(name, f"{text}\n")
        bundle = rego.build("true", [_entrypoint(rule) for rule in rules])
    except (regopy.RegoError, ValueError) as error:
        match = _ENGINE_ERROR.search(str(error))
        reason = f"{match[1]}: {match[2].rstrip(')')}" if match else str(error)[:200]
        raise RegoError("rego.uncompilable", f"cannot be compiled: {reason}") from None
    if not bundle.ok():
        raise RegoError("rego.not-compiled", "cannot be compiled")
    rego.save_bundle(str(folder), bundle)
    plan: Plan = json.loads((folder / "plan.json").read_text())
    if problem := excess(plan):
        raise RegoError("rego.excess", problem)
    return plan


def _load(folder: Path) -> Engine:
    rego = _interpreter()
    return Engine(rego, rego.load_bundle(str(folder)))


def _interpreter() -> regopy.Interpreter:
    rego = regopy.Interpreter()
    rego.strict_built_in_errors = True
    return rego


def _entrypoint(rule: str) -> str:
    return rule.replace(".", "/")


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
        if _MEMORY.exists():  # on Linux ru_maxrss is that of the parent, if it is larger
            size = int(_MEMORY.read_text().split()[1]) * resource.getpagesize()
        else:
            size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
        if size > self._size:
            os._exit(TOO_MUCH)


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
            reply = {"error": (error.code, error.message)}
        text = json.dumps(reply)
        watch.end()
        print(text, file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
