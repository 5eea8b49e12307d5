"""How many calls may be in flight: fewer when the server says so, slowly more when it does not."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AdaptiveLimit:
    """Additive increase, multiplicative decrease below a ceiling, as in TCP (RFC 5681, 3.1).

    Begins at the ceiling. Belongs to one event loop.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._limit = float(ceiling)
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._halved_at = 0.0
        self._closed_until = 0.0

    @property
    def current(self) -> int:
        """Calls that may be in flight now."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Inside, one call may be made."""
        await self._acquire()
        try:
            while (pause := self._closed_until - _now()) > 0:
                await asyncio.sleep(pause)
            yield
        finally:
            self._active -= 1
            self._wake()

    def succeeded(self) -> None:
        """A call was answered: one slot more for every full window of answers."""
        self._limit = min(self._ceiling, self._limit + 1 / self._limit)
        self._wake()

    def throttled(self, sent_at: float, pause: float) -> None:
        """The server refused a call for its rate and wants `pause` seconds of silence.

        Refusals of calls that were sent before the last decrease say nothing new.
        """
        self._closed_until = max(self._closed_until, _now() + pause)
        if sent_at >= self._halved_at:
            self._limit = max(1.0, self._limit / 2)
            self._halved_at = _now()

    async def _acquire(self) -> None:
        while self._active >= self.current:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # the turn goes to another waiter
                    self._wake()
                raise
        self._active += 1

    def _wake(self) -> None:
        free = self.current - self._active
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1


def _now() -> float:
    return asyncio.get_running_loop().time()
