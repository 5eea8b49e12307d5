"""An event loop in a thread of its own, so that synchronous code can use an async client.

It works where the caller's thread already runs a loop, as in a Ray actor or a notebook.
"""

import asyncio
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """A running event loop. The thread is a daemon: one that is never closed ends no program."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="chat", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; an exception in the waiting thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what still runs, run `last`, end the thread; closing twice does no harm."""
        if self._loop.is_closed():
            last.close()
            return
        self.run(_cancel_siblings())
        self.run(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_siblings() -> None:
    siblings = asyncio.all_tasks() - {asyncio.current_task()}
    for task in siblings:
        task.cancel()
    await asyncio.gather(*siblings, return_exceptions=True)
