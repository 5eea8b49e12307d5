"""The asynchronous client: many calls in flight, equal ones shared, failed ones tried again."""

import asyncio
import hashlib
import json
import sqlite3
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from filelock import FileLock

from environments.base import Failure, FailureKind
from environments.chat.accounting import Accounts
from environments.chat.exchange import (
    REASONING_ONLY,
    Answer,
    FailedAttempt,
    backoff_seconds,
    exchange,
)
from environments.chat.model import (
    UNKNOWN,
    ApiKey,
    ChatReply,
    ChatRequest,
    ChatSetupError,
    EndpointSettings,
    Source,
)

# --- cache ----------------------------------------------------------------------------------------
# Answers kept on disk, for several threads and processes, whole after a kill at any moment.


_OPEN_SECONDS, _LOCK_SECONDS = 30.0, 1.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key BLOB PRIMARY KEY, text TEXT NOT NULL, source TEXT NOT NULL) WITHOUT ROWID"
)


def request_key(identity: str, request: ChatRequest) -> bytes:
    """SHA-256 of the model, its parameters, the messages, the schema and the request settings."""
    parts: list[Any] = [identity, request.messages, request.schema]
    if request.sample or request.as_written:
        parts += [request.sample, request.as_written]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


class ReplyCache:
    """Texts by key in SQLite, with a write-ahead log: a reader never waits for a writer.

    A write is one transaction. It survives the end of the process, not every loss of power. The
    folder must lie on a disk of this machine, for SQLite's log does not work over a network.
    Trouble with the file after it was opened costs answers their cache and nothing else: `errors`
    counts it. Raises `ChatSetupError` when the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.expanduser() / "replies.sqlite3"
        self.errors = 0
        self._lock = Lock()
        try:
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            # Its subclasses are about the disk, a lock or the statement.
            remedy = "; remove it to ask anew" if type(error) is sqlite3.DatabaseError else ""
            raise ChatSetupError(
                "chat.unusable-cache", f"the cache {self.path} cannot be used: {error}{remedy}"
            ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for its turn to change the kind of journal.
        with FileLock(self.path.with_suffix(".lock"), timeout=_OPEN_SECONDS):
            connection = sqlite3.connect(
                self.path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
        return connection

    def get(self, key: bytes) -> tuple[str, Source] | None:
        """The text that is kept under a key, and what it came from."""
        row = self._execute("SELECT text, source FROM answers WHERE key = ?", (key,))
        return None if row is None else (row[0], Source(*json.loads(row[1])))

    def put(self, key: bytes, text: str, source: Source = UNKNOWN) -> None:
        """Keep a text and what it came from; an older one under this key is replaced."""
        origin = json.dumps([source.model, source.fingerprint, source.problem])
        self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, text, origin))

    def _execute(self, statement: str, values: tuple[bytes | str, ...]) -> tuple[str, str] | None:
        with self._lock:
            try:
                row: tuple[str, str] | None
                row = self._connection.execute(statement, values).fetchone()
            except sqlite3.Error:
                self.errors += 1
                return None
        return row

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()


Missing = Mapping[bytes, ChatRequest]


def ask_through_cache(
    requests: Sequence[ChatRequest],
    *,
    identity: str,
    cache: ReplyCache | None,
    ask_missing: Callable[[Missing], Mapping[bytes, ChatReply]],
) -> list[ChatReply]:
    """Replies in order: from the cache where it holds a valid one, each other asked for once."""
    keys = [request_key(identity, request) for request in requests]
    unique = dict(zip(keys, requests, strict=True))
    replies = {}
    if cache:
        lookups = ((key, request, cache.get(key)) for key, request in unique.items())
        replies = {
            key: ChatReply(hit[0], cached=True, source=hit[1])
            for key, request, hit in lookups
            if hit is not None and request.valid(hit[0])
        }
    missing = {key: request for key, request in unique.items() if key not in replies}
    if missing:
        replies |= ask_missing(missing)
    return [replies[key] for key in keys]


# --- client ---------------------------------------------------------------------------------------


#: Attempts to get a valid answer.
_ASKED = 2
#: How servers refuse a request that they do not take, such as one with a schema.
_BAD_REQUEST = (400, 422)


class ChatClient:
    """Bound to the event loop in which it is made."""

    def __init__(
        self, settings: EndpointSettings, key: ApiKey, accounts: Accounts, cache: ReplyCache | None
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._key = key
        self._accounts = accounts
        self._cache = cache
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._quiet_until = 0.0  # as a server's Retry-After asks for
        self._in_flight: dict[tuple[bytes, int], asyncio.Task[Answer | FailedAttempt]] = {}
        self.takes_schema = True
        self._url = f"{settings.url}/chat/completions"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.concurrency),
            timeout=aiohttp.ClientTimeout(total=self._limits.call_seconds),
            headers=self._key.headers
            | {"Content-Type": "application/json", "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a few bytes must not become gigabytes
        )
        self._proxy = proxy_for(settings.url)

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, missing: Missing) -> dict[bytes, ChatReply]:
        """One reply for each request, all asked for at once. Raises `BudgetSpentError`.

        Even then the calls in flight are waited for, since their answers are paid for and cached.
        """
        deadline = _now() + self._limits.batch_seconds
        calls = (self._reply(key, missing[key], deadline) for key in missing)
        replies: dict[bytes, ChatReply] = {}
        results = await asyncio.gather(*calls, return_exceptions=True)
        for key, result in zip(missing, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            replies[key] = result
        return replies

    async def _reply(self, key: bytes, request: ChatRequest, deadline: float) -> ChatReply:
        problem = ""
        for number in range(_ASKED):
            outcome = await self._shared_call((key, number), request, deadline)
            if isinstance(outcome, FailedAttempt):
                return self._failed(outcome.kind, outcome.message)
            if request.as_written and outcome.source.problem == REASONING_ONLY:
                return self._failed("invalid_reply", f"the answer is {REASONING_ONLY}")
            try:
                async with asyncio.timeout_at(deadline):
                    problem = await self._problem(request, outcome)
            except TimeoutError:
                return self._failed(
                    "transport_timeout", f"its answer was not checked {self._in_time}"
                )
            if not problem:
                if self._cache:
                    # In a thread: another process's lock must keep no other call waiting.
                    await asyncio.to_thread(self._cache.put, key, outcome.text, outcome.source)
                return ChatReply(outcome.text, source=outcome.source)
            self._accounts.add("invalid_answers")
        return self._failed("invalid_reply", f"{problem} (asked {_ASKED} times)")

    async def _problem(self, request: ChatRequest, answer: Answer) -> str:
        """Say why this is not an answer; empty when it is one.

        It is checked in a thread, so that a slow check keeps no other call waiting.
        """
        if answer.source.problem and not request.as_written:
            return f"the answer is {answer.source.problem}"
        texts = (answer.text, answer.source.model, answer.source.fingerprint)
        if any(map(self._key.appears_in, filter(None, texts))):
            return "the answer repeats the API key"
        valid = await asyncio.to_thread(request.valid, answer.text)
        return "" if valid else "the answer is not valid"

    @property
    def _in_time(self) -> str:
        return f"within limits.batch_seconds = {self._limits.batch_seconds:g}"

    def _failed(self, kind: FailureKind, message: str) -> ChatReply:
        self._accounts.add_failure(kind)
        text = self._key.clip(f"{self._settings.model}: {message}")
        return ChatReply(None, Failure(kind, text))

    async def _shared_call(
        self, flight: tuple[bytes, int], request: ChatRequest, deadline: float
    ) -> Answer | FailedAttempt:
        """Return the call's outcome; equal requests made meanwhile share it."""
        task = self._in_flight.get(flight)
        if task is None:
            task = asyncio.create_task(self._call_until(deadline, request))
            self._in_flight[flight] = task
            task.add_done_callback(lambda _: self._in_flight.pop(flight))
        else:
            self._accounts.add("shared_calls")
        return await asyncio.shield(task)  # cancelling one waiter does not affect the others

    async def _call_until(self, deadline: float, request: ChatRequest) -> Answer | FailedAttempt:
        trail: list[FailedAttempt] = []
        try:
            async with asyncio.timeout_at(deadline):
                return await self._call(request, trail)
        except TimeoutError:
            late = FailedAttempt("transport_timeout", f"no answer {self._in_time}")
            if not trail:
                return late
            # What kept it from being in time: a server that refuses calls for their rate, say.
            message = f"{late.message}; the last attempt: {trail[-1].message}"
            return FailedAttempt(trail[-1].kind, message)

    async def _call(
        self, request: ChatRequest, trail: list[FailedAttempt]
    ) -> Answer | FailedAttempt:
        """Try until an attempt succeeds. A server that is merely busy uses up no retries."""
        self._accounts.add("calls")
        while True:
            schema = request.schema if self.takes_schema else None
            outcome = await self._attempt(request, schema)
            refused = isinstance(outcome, FailedAttempt) and outcome.status in _BAD_REQUEST
            if schema is not None and refused:
                # Servers refuse a schema in words of their own: what goes through without it was
                # refused for it.
                outcome = await self._attempt(request, None)
                if isinstance(outcome, Answer):
                    self.takes_schema = False
            if isinstance(outcome, Answer):
                return outcome
            trail.append(outcome)
            failures = sum(not failure.throttled for failure in trail)
            if not outcome.transient or failures > self._limits.retries:
                return outcome
            if outcome.retry_after and outcome.retry_after > self._limits.batch_seconds:
                return outcome
            self._accounts.add("retries")
            backoff = backoff_seconds(self._limits.backoff_seconds, len(trail))
            await asyncio.sleep(max(backoff, outcome.retry_after or 0.0))

    async def _attempt(
        self, request: ChatRequest, schema: Mapping[str, Any] | None
    ) -> Answer | FailedAttempt:
        async with self._slots:
            while (pause := self._quiet_until - _now()) > 0:
                await asyncio.sleep(pause)
            self._accounts.check_budget()
            self._accounts.add("attempts")
            payload = self._payload(request, schema)
            outcome = await exchange(self._session, self._url, payload, self._limits, self._proxy)
            if isinstance(outcome, Answer):
                self._accounts.spend(outcome.usage)
            elif outcome.throttled:
                self._accounts.add("throttled")
                wait = outcome.retry_after or 0.0
                if wait <= self._limits.batch_seconds:
                    self._quiet_until = max(self._quiet_until, _now() + wait)
            return outcome

    def _payload(self, request: ChatRequest, schema: Mapping[str, Any] | None) -> bytes:
        parameters = dict(self._settings.parameters)
        if request.sample and isinstance(parameters.get("seed"), int):
            parameters["seed"] += request.sample
        body = {"model": self._settings.model, "messages": request.messages, **parameters}
        if schema is not None:
            json_schema = {"name": "reply", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        return json.dumps(body).encode()


def proxy_for(url: str) -> str | None:
    """The proxy that the environment sets for an address."""
    parts = urlsplit(url)
    if parts.hostname is None or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _now() -> float:
    return asyncio.get_running_loop().time()
