"""A model behind an OpenAI-compatible HTTP endpoint."""

import asyncio
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from threading import Lock, Thread
from typing import Any, Self, TypeVar

from environments.chat.accounting import Accounts
from environments.chat.client import ChatClient, Missing, ReplyCache, ask_through_cache
from environments.chat.model import (
    ApiKey,
    ChatModel,
    ChatReply,
    ChatRequest,
    EndpointSettings,
    read_key,
)

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a thread of its own, so that synchronous code can use an async client.

    It works where the caller's thread already runs a loop, as in a Ray actor or a notebook. The
    thread is a daemon: one that is never closed keeps no program from ending.
    """

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

        async def end() -> None:
            siblings = asyncio.all_tasks() - {asyncio.current_task()}
            for task in siblings:
                task.cancel()
            await asyncio.gather(*siblings, return_exceptions=True)
            await last

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class EndpointModel:
    """The `ChatModel` over HTTP: cached, limited, retried and accounted for.

    Any number of threads may ask at once, with or without an event loop of their own. All of them
    share one pool of connections in a background thread, which begins with the first call and ends
    with `close` or with the program. Raises `ChatSetupError` without the key that the settings
    name, or with a cache that cannot be used. See `Accounts` for `listed`.
    """

    def __init__(self, settings: EndpointSettings, *, listed: bool = True) -> None:
        self._settings = settings
        self._key = read_key(settings.api_key_env)
        self._cache = ReplyCache(settings.cache_dir) if settings.cache_dir else None
        self._accounts = Accounts(settings.model, settings.budget, listed)
        self._connection: _Connection | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"EndpointModel({self.identity})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._settings.model

    @property
    def identity(self) -> str:
        return self._settings.identity

    def ask(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """See `ChatModel.ask`. Raises `BudgetSpentError` when a call is needed and none is left."""
        with self._accounts.waiting():
            replies = ask_through_cache(
                requests,
                identity=self.identity,
                cache=self._cache,
                ask_missing=lambda missing: self._open().ask(missing),
            )
        self._accounts.add("cache_hits", sum(reply.cached for reply in replies))
        self._accounts.add_sources([reply.source for reply in replies])
        return replies

    def impatient(self) -> "EndpointModel":
        """Return this model for one question: it waits for one attempt or two and reads no cache.

        Its requests count against the same budget.
        """
        limits = self._settings.limits
        # Longer than two attempts and the longest wait between them, so that what ends them is
        # told and not this deadline, which holds for a server that is busy.
        deadline = min(limits.batch_seconds, 3 * (limits.call_seconds + limits.backoff_seconds))
        hasty = limits.model_copy(update={"retries": 1, "batch_seconds": deadline})
        model = EndpointModel(
            self._settings.model_copy(update={"limits": hasty, "cache_dir": None}), listed=False
        )
        model._accounts = self._accounts
        return model

    def counters(self) -> dict[str, float]:
        """Return the counts and costs so far, see docs/judges.md."""
        with self._lock:
            takes_schema = self._connection is None or self._connection.client.takes_schema
        return self._accounts.counters() | {
            "cache_errors": float(self._cache.errors if self._cache else 0),
            "schema_refused": float(not takes_schema),
        }

    def close(self) -> None:
        """End calls in flight, connections and thread. A later `ask` opens them again."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _open(self) -> "_Connection":
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(
                    self._settings, self._key, self._accounts, self._cache
                )
                # It knows nothing of this object, which can therefore be collected, and closed.
                weakref.finalize(self, self._connection.close)
            return self._connection


class _Connection:
    """The asynchronous client with the thread in which it runs."""

    def __init__(
        self, settings: EndpointSettings, key: ApiKey, accounts: Accounts, cache: ReplyCache | None
    ) -> None:
        async def connect() -> ChatClient:
            return ChatClient(settings, key, accounts, cache)

        self._background = BackgroundLoop()
        self.client = self._background.run(connect())

    def ask(self, missing: Missing) -> Mapping[bytes, ChatReply]:
        return self._background.run(self.client.ask(missing))

    def close(self) -> None:
        self._background.close(self.client.close())


def try_once(model: ChatModel, request: ChatRequest) -> ChatReply:
    """Ask one question and wait seconds for its answer, which is never an endpoint's cached one.

    Raises `BudgetSpentError`.
    """
    if not isinstance(model, EndpointModel):
        return model.ask([request])[0]
    with model.impatient() as hasty:
        return hasty.ask([request])[0]
