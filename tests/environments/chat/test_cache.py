"""Answers on disk: shared by processes, whole after a kill."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.chat import ChatReply, ChatRequest, Source
from environments.chat.client import ReplyCache, ask_through_cache, request_key
from tests.refusals import refusal


def request(*texts, schema=None):
    return ChatRequest(tuple({"role": "user", "content": text} for text in texts), schema)


def key(number):
    return number.to_bytes(32, "big")


def test_what_is_put_is_got(tmp_path):
    cache = ReplyCache(tmp_path / "deep" / "er")
    texts = ["", "plain", "quote ' \" ; DROP TABLE answers", "null \0 byte", "ünïcode 🩺\u2028"]
    for number, text in enumerate(texts):
        cache.put(key(number), text)
    assert [cache.get(key(n)) for n in range(len(texts))] == [(text, Source()) for text in texts]
    assert cache.get(key(99)) is None
    cache.put(key(0), "newer", Source("judge-2", "fp_1"))
    assert cache.get(key(0)) == ("newer", Source("judge-2", "fp_1"))
    cache.put(key(1), "newer", Source("judge-2"))
    assert cache.get(key(1)) == ("newer", Source("judge-2"))
    assert cache.errors == 0


def test_a_cache_that_another_process_has_locked_costs_the_cache_alone(tmp_path):
    cache = ReplyCache(tmp_path)
    cache.put(key(1), "one")
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    cache.put(key(1), "two")
    assert (cache.get(key(1)), cache.errors) == (("one", Source()), 1)
    other.execute("ROLLBACK")
    other.close()


def test_a_file_that_is_no_cache_is_said_so(tmp_path):
    (tmp_path / "replies.sqlite3").write_text("not a database, but long enough to look at" * 100)
    with refusal("chat.unusable-cache", "replies.sqlite3", "file is not a database; remove it"):
        ReplyCache(tmp_path)


WRITER = """
import sys
from pathlib import Path
from environments.chat.client import ReplyCache
cache = ReplyCache(Path(sys.argv[1]))
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    cache.put(n.to_bytes(32, "big"), f"text {n}")
    print(n, flush=True)
"""


def writer(folder, first, end):
    command = [sys.executable, "-c", WRITER, str(folder), str(first), str(end)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.deep
def test_processes_write_at_once(tmp_path):
    writers = [writer(tmp_path, 500 * n, 500 * n + 500) for n in range(3)]
    for process in writers:
        process.communicate()
    assert [process.returncode for process in writers] == [0, 0, 0]
    cache = ReplyCache(tmp_path)
    assert [cache.get(key(n)) for n in range(1500)] == [
        (f"text {n}", Source()) for n in range(1500)
    ]


def test_nothing_is_lost_by_a_kill(tmp_path):
    """Replies that a writer reported as kept survive SIGKILL, and the cache is whole."""
    process = writer(tmp_path, 0, 10**9)
    assert process.stdout.readline() == "0\n"
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    said = process.stdout.read().splitlines(keepends=True)
    process.wait()
    last = int([line for line in said if line.endswith("\n")][-1])
    cache = ReplyCache(tmp_path)
    assert last > 0
    assert all(cache.get(key(n)) == (f"text {n}", Source()) for n in range(last + 1))
    cache.put(key(0), "goes on")
    with sqlite3.connect(cache.path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    other.close()


TEXTS = st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=3)


@given(TEXTS, TEXTS)
def test_a_key_names_the_conversation(one, other):
    same = request_key("m", request(*one)) == request_key("m", request(*other))
    assert same == (one == other)


@pytest.mark.deep
@given(st.lists(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_each_missing_request_is_asked_for_once(asked, known):
    with TemporaryDirectory() as folder:
        cache = ReplyCache(Path(folder))
        for text in known:
            cache.put(request_key("m", request(text)), text.upper())
        calls = []

        def ask_missing(missing):
            calls.extend(missing)
            return {k: ChatReply(r.messages[0]["content"].upper()) for k, r in missing.items()}

        replies = ask_through_cache(
            [request(text) for text in asked], identity="m", cache=cache, ask_missing=ask_missing
        )
        cache.close()
    assert [reply.text for reply in replies] == [text.upper() for text in asked]
    assert [reply.cached for reply in replies] == [text in known for text in asked]
    assert len(calls) == len(set(asked) - known)
