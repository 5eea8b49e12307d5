"""Ctrl-C and SIGTERM: training ends its step and keeps a checkpoint, all else stops at once.

NeMo-RL, which has its own handlers, samples before its first step under training's rule: it ends
the batch of replies, which is kept.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = (
    "stopping after this step, with a checkpoint; before the first step, after this batch of "
    "replies, which is kept; again to stop at once"
)


class Stopped(BaseException):
    """The user stopped the run; what is finished is kept.

    Libraries take every `Exception` for one of their own, and would go on.
    """


class StopRequest:
    """Whether a signal has asked training to end after its current step."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """The same as `requested`, as the function that callbacks take."""
        return self.requested


@contextmanager
def raising() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise `Stopped`.

    So does an error after one of them: a library that is left in the middle of its work may fail
    while it tidies up, and that error would hide the signal.
    """
    signalled = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        signalled = True
        raise Stopped

    with _handler(stop):
        try:
            yield
        except Exception as error:
            if signalled:
                raise Stopped(f"stopped, and while stopping: {error}") from error
            raise


@contextmanager
def deferring(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """Inside, the first signal sets the request and says so; a second one raises `Stopped`."""
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request.requested:
            raise Stopped
        request.requested = True
        say(_STOPPING)

    with _handler(ask):
        yield request


@contextmanager
def _handler(function: Any) -> Iterator[None]:
    before = {number: signal.signal(number, function) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
