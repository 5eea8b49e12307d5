"""A check, its input and its findings, and checks run at once, each with a limit of time."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any, Literal, TypeVar, get_args

from equipoise.config import Config, LoadedConfig
from equipoise.config.checks import Engine
from equipoise.errors import EquipoiseError, UsageError

Status = Literal["failure", "warning", "not checked", "ok"]
STATUSES: tuple[Status, ...] = get_args(Status)
#: What the doctor needs for it: the machine alone, or a valid configuration of a run as well.
When = Literal["machine", "run"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found; `remedy` is one line, and empty for the check's usual one."""

    status: Status
    says: str
    remedy: str = ""


def ok(says: str) -> Finding:
    """Nothing is wrong."""
    return Finding("ok", says)


def warning(says: str, remedy: str = "") -> Finding:
    """The run works, and this is hardly meant."""
    return Finding("warning", says, remedy)


def failure(says: str, remedy: str = "") -> Finding:
    """The run would fail."""
    return Finding("failure", says, remedy)


def unchecked(why: str) -> Finding:
    """The check was left out."""
    return Finding("not checked", why)


class NotCheckedError(Exception):
    """Something that the user left out is needed; the text is what the check says."""


@dataclass(frozen=True)
class Case:
    """The input of the checks; `loaded` is None without a task or a valid configuration."""

    loaded: LoadedConfig | None = None
    invalid: UsageError | None = None  # why the configuration is not valid
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    before: Mapping[str, str] = field(default_factory=dict)  # `.env` was read
    online: bool = True
    gpu: bool = True
    thorough: bool = True  # a start does without what takes long
    _facts: dict[Callable[["Case"], Any], Future[Any]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def configured(self) -> LoadedConfig:
        """The valid configuration, for checks that are run with one alone."""
        assert self.loaded is not None
        return self.loaded

    @property
    def config(self) -> Config:
        """Its values."""
        return self.configured.config

    @property
    def without_run(self) -> str:
        """Say why there is no valid configuration."""
        return "the configuration is not valid" if self.invalid else "no task is named"

    @property
    def on_nemo_rl(self) -> bool:
        """Whether the run is one of NeMo-RL's."""
        return self.loaded is not None and self.loaded.engine == "nemo_rl"

    def once(self, look: Callable[["Case"], T]) -> T:
        """Look once, whichever check asks first; all get the same value, or the same error."""
        with self._lock:
            is_first = look not in self._facts
            fact: Future[T] = self._facts.setdefault(look, Future())
        if is_first:
            try:
                fact.set_result(look(self))
            except Exception as error:  # noqa: BLE001  raised for everyone who asks
                fact.set_exception(error)
        return fact.result()


@dataclass(frozen=True, slots=True)
class Check:
    """A question to the machine. `remedy` is what helps where a finding has no better one.

    A start of a run with one of the engines in `starts` asks it as well.
    """

    name: str
    looks_at: str
    remedy: str
    when: When
    run: Callable[[Case], Iterable[Finding]]
    starts: tuple[Engine, ...] = ()
    seconds: float = 12


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with its check."""

    check: Check
    status: Status
    says: str
    remedy: str

    @classmethod
    def of(cls, check: Check, finding: Finding) -> "Result":
        """The finding, with the check's remedy where something is wrong and it has none."""
        remedy = check.remedy if finding.status in ("failure", "warning") else ""
        return cls(check, finding.status, finding.says, finding.remedy or remedy)


def run_together(checks: Sequence[Check], case: Case) -> list[Result]:
    """The results of all checks, in their order; each has at least one.

    An `EquipoiseError` is a failure of the first check that met it, and the others were not
    reached. Any other exception is a bug, and raised.
    """
    started = time.monotonic()
    running = [(check, *_start(check, case)) for check in checks]
    causes: dict[int, Check] = {}  # the error -> the first check that met it
    results = []
    for check, findings, end in running:
        remaining = max(0.0, check.seconds - (time.monotonic() - started))
        why = "it said nothing"
        try:
            error = end.exception(remaining)
        except TimeoutError:
            error, why = None, f"no answer within {check.seconds:g} seconds"
        all_findings = list(findings)  # a late check goes on
        if isinstance(error, EquipoiseError):
            cause = causes.setdefault(id(error), check)
            reached = cause == check
            why = f"not reached: see {cause.name}"
            all_findings += [failure(error.message, error.remedy)] if reached else []
        elif isinstance(error, NotCheckedError):
            why = str(error)
        elif error:
            raise error
        results += [Result.of(check, finding) for finding in all_findings or [unchecked(why)]]
    return results


def _start(check: Check, case: Case) -> tuple[list[Finding], Future[None]]:
    """Start a check; return its findings, which still grow, and its end. The thread is a daemon."""
    findings: list[Finding] = []
    end: Future[None] = Future()

    def look() -> None:
        try:
            for finding in check.run(case):
                findings.append(finding)  # noqa: PERF402  what a late check has said so far counts
            end.set_result(None)
        except Exception as error:  # noqa: BLE001  handed to the thread that waits
            end.set_exception(error)

    Thread(target=look, name=f"check {check.name}", daemon=True).start()
    return findings, end
