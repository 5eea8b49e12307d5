"""Everything that can go wrong on the way: a fault is not an answer, and what can succeed does."""

import asyncio
import os
import random
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from environments.base import Failure
from environments.chat import ChatReply, ChatRequest

pytestmark = pytest.mark.deep

PATIENT = {"retries": 100, "batch_seconds": 300.0}


def requests(number):
    return [ChatRequest(({"role": "user", "content": f"q{i}"},)) for i in range(number)]


def answers(number):
    return [ChatReply(f"re: q{i}") for i in range(number)]


def texts(replies):
    return [reply.text for reply in replies]


def sometimes(server, share, fault):
    """Each response is with a written chance the fault instead."""
    rng = random.Random(0)

    async def behaviour(http, body):
        return await (fault if rng.random() < share else server.echo)(http, body)

    return behaviour


async def status_500(http, body):
    return web.Response(status=500, text="out of memory")


async def hang(http, body):
    await asyncio.sleep(60)
    return web.Response()


async def reset(http, body):
    http.transport.abort()
    return web.Response()


async def close_without_a_word(http, body):
    http.transport.close()
    return web.Response()


async def truncated(http, body):
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(http)
    await response.write(b'{"choices": [{"message": {"content": "9')
    http.transport.close()
    return response


async def truncated_chunks(http, body):
    response = web.StreamResponse()
    response.enable_chunked_encoding()
    await response.prepare(http)
    await response.write(b'{"choices": [{"message": {"content": "9"}}]}')
    http.transport.abort()
    return response


async def drip(http, body):
    """Never silent for long, never done."""
    response = web.StreamResponse()
    await response.prepare(http)
    for _ in range(1000):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def no_http(http, body):
    http.transport.write(b"\x00\xff garbage\r\n\r\n")
    http.transport.close()
    return web.Response()


def says(text, **more):
    async def behaviour(http, body):
        return web.Response(text=text, content_type="application/json", **more)

    return behaviour


FAULTS = {
    "500": status_500,
    "hang": hang,
    "reset": reset,
    "close": close_without_a_word,
    "truncated": truncated,
    "truncated chunks": truncated_chunks,
    "drip": drip,
    "no http": no_http,
    "no json": says("<html>gateway</html>"),
    "half a character": says('{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "deep": says('{"choices":' + "[" * 100_000),
    "long number": says('{"choices":' + "9" * 100_000 + "}"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_no_answer(make, server, fault):
    server.behaviour = fault
    model = make({"retries": 1, "call_seconds": 0.2})
    replies = model.ask(requests(3))
    assert texts(replies) == [None] * 3
    assert all(reply.error and len(reply.error.text) < 400 for reply in replies)
    assert model.counters()["failures"] == 3
    assert model.counters()["attempts"] == 6
    server.behaviour = server.echo
    assert make().ask(requests(3)) == answers(3)  # nothing of it was cached


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_can_succeed_does(make, server, fault):
    server.behaviour = sometimes(server, 0.3, fault)
    # Shorter than the faults that hang, and longer than a loaded machine takes for an answer.
    model = make(PATIENT | {"call_seconds": 2.0})
    assert model.ask(requests(30)) == answers(30)


def test_a_huge_body_is_refused_without_being_read(make, server):
    written = []

    async def huge(http, body):
        response = web.StreamResponse()
        await response.prepare(http)
        for _ in range(1000):
            await response.write(b" " * 100_000)
            written.append(100_000)
        return response

    server.behaviour = huge
    (reply,) = make({"response_bytes": 10_000, "call_seconds": 5}).ask(requests(1))
    assert reply.text is None
    assert "exceeds 10,000 bytes" in reply.error.text
    assert sum(written) < 20_000_000
    assert len(server.bodies) == 1  # the same again would be as large


def test_a_huge_error_is_clipped(make, server):
    server.behaviour = says("no " * 10**6, status=400)
    (reply,) = make().ask(requests(1))
    assert len(reply.error.text) < 400


def test_compressed_bodies_are_not_unpacked(make, server):
    async def bomb(http, body):
        response = web.json_response(server.completion("x" * 10**7))
        response.enable_compression(web.ContentCoding.gzip)
        return response

    server.behaviour = bomb
    assert texts(make({"retries": 0}).ask(requests(1))) == [None]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_a_refusal_is_not_tried_again(make, server, status):
    server.behaviour = says("no such thing", status=status)
    (reply,) = make().ask(requests(1))
    assert reply.error == Failure("rejected", f"judge: HTTP {status}: no such thing")
    assert len(server.bodies) == 1


def storm(server, seconds, retry_after):
    """429 for so long, counted from the first request."""
    begun = []

    async def behaviour(http, body):
        begun.append(time.monotonic())
        if time.monotonic() - begun[0] < seconds:
            headers = {"Retry-After": retry_after()} if retry_after else {}
            return web.Response(status=429, headers=headers)
        return await server.echo(http, body)

    return behaviour


def in_a_second():
    return format_datetime(datetime.now(UTC) + timedelta(seconds=1.5), usegmt=True)


@pytest.mark.parametrize("retry_after", [None, lambda: "1", in_a_second, lambda: "soon"])
def test_a_storm_of_429_is_waited_for(make, server, retry_after):
    server.behaviour = storm(server, 0.5, retry_after)
    # A busy server uses up no retries, and a busy machine no time for a call.
    model = make({"retries": 0, "call_seconds": 10.0, "batch_seconds": 60.0})
    assert model.ask(requests(50)) == answers(50)
    assert model.counters()["throttled"] > 0


def test_retry_after_keeps_everybody_quiet(make, server):
    times = []

    async def first_asks_for_silence(http, body):
        times.append(time.monotonic())
        if len(times) <= 4:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return await server.echo(http, body)

    server.behaviour = first_asks_for_silence
    assert make({"concurrency": 4, "call_seconds": 10.0}).ask(requests(20)) == answers(20)
    assert times[4] - times[3] > 0.95


def test_no_quota_left_is_not_waited_for(make, server):
    server.behaviour = says('{"error": {"code": "insufficient_quota"}}', status=429)
    (reply,) = make().ask(requests(1))
    assert "insufficient_quota" in reply.error.text
    assert reply.error.kind == "rate_limit"
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "wait", ["86400", "1000000000", "9" * 400, "Wed, 21 Oct 9999 07:28:00 GMT"]
)
def test_a_wait_longer_than_the_deadline_is_not_begun(make, server, wait):
    server.behaviour = storm(server, 60, lambda: wait)
    started = time.perf_counter()
    assert texts(make({"batch_seconds": 60}).ask(requests(10))) == [None] * 10
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (hang, "transport_timeout"),
        (drip, "transport_timeout"),
        (status_500, "server_error"),
        (reset, "transport_unreachable"),
        (says("", status=429), "rate_limit"),
    ],
)
def test_the_deadline_of_a_batch_holds(make, server, fault, kind):
    server.behaviour = fault
    model = make({"batch_seconds": 2.0, "call_seconds": 60, "retries": 100, "concurrency": 2})
    started = time.perf_counter()
    replies = model.ask(requests(20))
    assert time.perf_counter() - started < 30
    assert texts(replies) == [None] * 20
    assert all("batch_seconds = 2" in reply.error.text for reply in replies)
    # Of a call that had its turn, the kind says what kept it from being in time.
    assert {reply.error.kind for reply in replies} <= {kind, "transport_timeout"}
    assert kind in {reply.error.kind for reply in replies}


def test_what_came_before_the_deadline_is_kept(make, server):
    async def every_other_hangs(http, body):
        return await (hang if int(server.asked(body)[1:]) % 2 else server.echo)(http, body)

    server.behaviour = every_other_hangs
    replies = make({"batch_seconds": 3.0, "call_seconds": 60}).ask(requests(20))
    assert texts(replies)[::2] == texts(answers(20))[::2]
    assert texts(replies)[1::2] == [None] * 10
    server.behaviour = server.echo
    assert [reply.cached for reply in make().ask(requests(20))] == [True, False] * 10


def test_a_restart_in_the_middle(make, server):
    def restart():
        time.sleep(0.2)
        server.stop()
        time.sleep(0.2)
        server.start()

    server.says(..., after=0.3)
    model = make(PATIENT | {"concurrency": 8, "backoff_seconds": 0.1})
    restarting = threading.Thread(target=restart)
    restarting.start()
    replies = model.ask(requests(100))
    restarting.join()
    assert replies == answers(100)
    assert model.counters()["retries"] > 0


@pytest.fixture
def heard():
    """Ctrl-C raises, also in a background job, for which a shell has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_an_interruption_ends_the_wait(make, server):
    """Ctrl-C while everything hangs: the caller goes on at once, and so does the next batch."""
    server.behaviour = hang
    model = make({"call_seconds": 60})

    def interrupt():
        while not server.bodies:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        model.ask(requests(3))
    assert time.perf_counter() - started < 30
    server.behaviour = server.echo
    assert texts(model.ask(requests(5)[3:])) == ["re: q3", "re: q4"]
