"""Several models at once: while one is asked, the others are; all else is done in turn.

A turn is a generator that yields what can be worked at in a thread of its own, and gets back what
came of it. Everything between two yields happens in the thread that calls, so that nothing else
has to be safe for threads, and a signal ends it at once.
"""

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from equipoise.errors import EquipoiseError
from equipoise.run.usage import Meter
from equipoise.terminal.interrupts import Stopped


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A blocking call; `stop`, called from another thread, ends it soon."""

    run: Callable[[], Any]
    stop: Callable[[], None]


T = TypeVar("T")
Turn = Generator[Work, Any, T]


def in_thread(meter: Meter, run: Callable[[], T], stop: Callable[[], None] | None) -> Turn[T]:
    """Run a blocking call in the pool and return its result; run it inline without a `stop`.

    What is asked of others meanwhile is not for this `meter`.
    """
    if stop is None:
        return run()
    with meter.aside():
        result: T = yield Work(run, stop)
    return result


def run_concurrently(
    turns: Mapping[str, Turn[None]], failed: Callable[[str, EquipoiseError], None]
) -> dict[str, EquipoiseError]:
    """Run all turns to completion. Return the errors by row name.

    An `EquipoiseError` ends its own turn, and `failed` hears of it. Anything else ends all of them:
    the others get `Stopped` where they wait.
    """
    errors: dict[str, EquipoiseError] = {}
    at_work: dict[Future[Any], tuple[str, Work]] = {}
    with ThreadPoolExecutor(max(1, len(turns)), thread_name_prefix="row") as pool:

        def resume_row(name: str, future: Future[Any] | None) -> None:
            try:
                work = _next(turns[name], future)
            except EquipoiseError as error:
                errors[name] = error
                failed(name, error)
                return
            if work:
                at_work[pool.submit(work.run)] = (name, work)

        try:
            for name in turns:
                resume_row(name, None)
            while at_work:
                for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                    name, _ = at_work.pop(future)
                    resume_row(name, future)
        except BaseException:
            _stop(turns, at_work)
            raise
    return errors


def _next(turn: Turn[None], future: Future[Any] | None) -> Work | None:
    """Its next work; None where it has ended."""
    try:
        if future is None:
            return next(turn)
        error = future.exception()
        return turn.throw(error) if error else turn.send(future.result())
    except StopIteration:
        return None


def _stop(turns: Mapping[str, Turn[None]], at_work: Mapping[Future[Any], tuple[str, Work]]) -> None:
    """End what is worked at, and then the turns, which tidy up."""
    for _, work in at_work.values():
        work.stop()
    wait(at_work)
    for name, _ in at_work.values():
        try:
            turns[name].throw(Stopped())
        except (Stopped, StopIteration):
            continue
