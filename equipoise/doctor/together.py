"""Checks at once, each with a limit of time: what does not answer holds up nothing else."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from equipoise.doctor.checks import CHECKS, Check, Result, failure, unchecked
from equipoise.errors import EquipoiseError


@dataclass(frozen=True, slots=True)
class Job:
    """Checks that look one after the other, and how many seconds they may take in all."""

    checks: tuple[Check, ...]
    look: Callable[[], Iterable[Result]]
    seconds: float


def run_together(jobs: Sequence[Job]) -> list[Result]:
    """The results of all jobs in the order of `CHECKS`; each check of a job has at least one.

    An `EquipoiseError` is the failure of the job's first check without a result. Any other
    exception is a bug, and raised.
    """
    started = time.monotonic()
    running = [(job, *_start(job)) for job in jobs]
    results = []
    for job, job_results, ended in running:
        remaining = max(0.0, job.seconds - (time.monotonic() - started))
        results += list(_complete(job, job_results, ended, remaining))
    return sorted(results, key=lambda result: CHECKS.index(result.check))


def _start(job: Job) -> tuple[list[Result], Future[None]]:
    """Start a job; return its results, which still grow, and its end. The thread is a daemon."""
    results: list[Result] = []
    ended: Future[None] = Future()

    def look() -> None:
        try:
            for result in job.look():
                results.append(result)  # noqa: PERF402  what a late job has said so far counts
            ended.set_result(None)
        except Exception as error:  # noqa: BLE001  handed to the thread that waits
            ended.set_exception(error)

    Thread(target=look, name=f"check {job.checks[0].name}", daemon=True).start()
    return results, ended


def _complete(
    job: Job, results: list[Result], ended: Future[None], seconds: float
) -> Iterable[Result]:
    why = f"not reached: see {job.checks[0].name}"
    try:
        error = ended.exception(seconds)
    except TimeoutError:
        error, why = None, f"no answer within {job.seconds:g} seconds"
    if isinstance(error, EquipoiseError):
        check = next((c for c in job.checks if not _has(results, c)), job.checks[-1])
        results.append(failure(check, error.message, error.remedy))
        why = f"not reached: see {check.name}"
    elif error:
        raise error
    snapshot = list(results)  # a late job goes on
    yield from snapshot
    yield from (unchecked(check, why) for check in job.checks if not _has(snapshot, check))


def _has(results: Sequence[Result], check: Check) -> bool:
    return any(result.check == check for result in results)
