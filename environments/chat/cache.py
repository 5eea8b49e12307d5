"""Answers kept on disk, for several threads and processes, whole after a kill at any moment."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from filelock import FileLock

from environments.chat.errors import ChatSetupError
from environments.chat.model import ChatReply, ChatRequest

_LOCK_SECONDS = 30.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key BLOB PRIMARY KEY, text TEXT NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID"
)
_GET = (
    "SELECT text, digest FROM answers "
    "WHERE key = ? AND typeof(text) = 'text' AND length(CAST(text AS BLOB)) <= ?"
)


def request_key(identity: str, request: ChatRequest) -> bytes:
    """SHA-256 of the model, its parameters, the messages, the schema and how it is asked."""
    parts: list[Any] = [identity, request.messages, request.schema]
    if request.sample or request.as_written:
        parts += [request.sample, request.as_written]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


class ReplyCache:
    """Texts by key in SQLite, with a write-ahead log: a reader never waits for a writer.

    A write is one transaction. It survives the end of the process, not every loss of power. The
    folder must lie on a disk of this machine, for SQLite's log does not work over a network.
    Trouble with the file after it was opened costs answers their cache and nothing else: `errors`
    counts it. What is read is a text that was put there, of `longest` bytes at most, as long as an
    answer may be, whatever else the file holds. Raises `ChatSetupError` when the file cannot be
    opened.
    """

    def __init__(self, folder: Path, longest: int = 1_000_000) -> None:
        self.path = folder.expanduser() / "replies.sqlite3"
        self.errors = 0
        self._longest = longest
        self._lock = Lock()
        try:
            self._connection = self._open()
        except (sqlite3.Error, OSError) as error:
            # Its subclasses are about the disk, a lock or the statement.
            remedy = "; remove it to ask anew" if type(error) is sqlite3.DatabaseError else ""
            raise ChatSetupError(
                f"the cache {self.path} cannot be used: {error}{remedy}"
            ) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for its turn to change the kind of journal.
        with FileLock(self.path.with_suffix(".lock"), timeout=_LOCK_SECONDS):
            connection = sqlite3.connect(
                self.path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
        return connection

    def get(self, key: bytes) -> str | None:
        """The text that is kept under a key."""
        row = self._execute(_GET, (key, self._longest))
        if row is None:
            return None
        text, digest = row
        if digest != _digest(key, text):
            self.errors += 1
            return None
        return text

    def put(self, key: bytes, text: str) -> None:
        """Keep a text; an older one under this key is replaced."""
        values = (key, text, _digest(key, text))
        self._execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", values)

    def _execute(
        self, statement: str, values: tuple[bytes | str | int, ...]
    ) -> tuple[str, Any] | None:
        with self._lock:
            try:
                row: tuple[str, Any] | None
                row = self._connection.execute(statement, values).fetchone()
            except sqlite3.Error:
                self.errors += 1
                return None
        return row

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()


def _digest(key: bytes, text: str) -> bytes:
    """Of an answer at its place."""
    return hashlib.sha256(key + text.encode(errors="surrogatepass")).digest()


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
        kept = ((key, request, cache.get(key)) for key, request in unique.items())
        replies = {
            key: ChatReply(text, cached=True)
            for key, request, text in kept
            if text is not None and request.valid(text)
        }
    missing = {key: request for key, request in unique.items() if key not in replies}
    if missing:
        replies |= ask_missing(missing)
    return [replies[key] for key in keys]
