"""Answers kept on disk, for several threads and processes, whole after a kill at any moment."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from filelock import FileLock
from pydantic import TypeAdapter

from environments.chat.model import UNKNOWN, ChatReply, ChatRequest, ChatSetupError, Source

_LOCK_SECONDS = 30.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key BLOB PRIMARY KEY, text TEXT NOT NULL, digest BLOB NOT NULL, source TEXT) WITHOUT ROWID"
)
#: Tables of before have no such column; an answer in them has no source.
_ADD_SOURCE = "ALTER TABLE answers ADD COLUMN source TEXT"
_GET = (
    "SELECT text, digest, source FROM answers "
    "WHERE key = ? AND typeof(text) = 'text' AND length(CAST(text AS BLOB)) <= ?"
)
_PUT = "INSERT OR REPLACE INTO answers (key, text, digest, source) VALUES (?, ?, ?, ?)"
_SOURCE = TypeAdapter(tuple[str | None, str | None])


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
    counts it. A text that is read was put there and has `longest` bytes at most, as many as an
    answer may have; anything else in the file is passed over. Raises `ChatSetupError` when the file
    cannot be opened.
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
                "chat.unusable-cache", f"the cache {self.path} cannot be used: {error}{remedy}"
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
            columns = connection.execute("PRAGMA table_info(answers)").fetchall()
            if "source" not in {name for _, name, *_ in columns}:
                connection.execute(_ADD_SOURCE)
        return connection

    def get(self, key: bytes) -> tuple[str, Source] | None:
        """The text that is kept under a key, and what it came from."""
        row = self._execute(_GET, (key, self._longest))
        if row is None:
            return None
        text, digest, source = row
        if digest != _digest(key, text, source):
            self.errors += 1
            return None
        return text, Source(*_SOURCE.validate_json(source)) if source else UNKNOWN

    def put(self, key: bytes, text: str, source: Source = UNKNOWN) -> None:
        """Keep a text and what it came from; an older one under this key is replaced."""
        origin = None if source == UNKNOWN else json.dumps([source.model, source.fingerprint])
        values = (key, text, _digest(key, text, origin), origin)
        self._execute(_PUT, values)

    def _execute(
        self, statement: str, values: tuple[bytes | str | int | None, ...]
    ) -> tuple[str, Any, Any] | None:
        with self._lock:
            try:
                row: tuple[str, Any, Any] | None
                row = self._connection.execute(statement, values).fetchone()
            except sqlite3.Error:
                self.errors += 1
                return None
        return row

    def close(self) -> None:
        """Close the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()


def _digest(key: bytes, text: str, source: Any) -> bytes:
    """Of an answer at its place, with what it came from."""
    suffix = f"\0{source}" if source is not None else ""
    return hashlib.sha256(key + f"{text}{suffix}".encode(errors="surrogatepass")).digest()


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
