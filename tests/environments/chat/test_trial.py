"""One question before all others tells in seconds what is wrong with a server."""

import asyncio
import json
import re
import time
from dataclasses import replace

import pytest
from aiohttp import web

from environments.chat import ChatRequest, try_once
from tests.refusals import refusal

QUESTION = ChatRequest(({"role": "user", "content": "Is anybody there?"},))
PATIENT = {"call_seconds": 1.0, "batch_seconds": 900.0, "retries": 6, "backoff_seconds": 0.5}
#: Far from what a patient model would wait: a minute with its backoff alone.
SOON_SECONDS = 10


def answering(status, body):
    async def answer(request, given):
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    return answer


async def silent(request, body):
    await asyncio.sleep(5)
    return web.Response()


BROKEN = {
    "wrong key": (answering(401, {"error": "Incorrect API key"}), "HTTP 401.*Incorrect API key"),
    "a page": (answering(200, "<html>Welcome to nginx!</html>"), "not a chat completion"),
    "silence": (silent, "^judge: no whole response within limits.call_seconds = 1$"),
    "too busy": (answering(429, "slow down"), "the last attempt: HTTP 429.*slow down"),
}


@pytest.fixture(autouse=True)
def longest_backoff(monkeypatch):
    """Every wait is as long as it can be, so that a message hangs on no chance."""
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)


@pytest.mark.deep
@pytest.mark.parametrize(("behaviour", "told"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_told_in_seconds(server, make, behaviour, told):
    server.behaviour = behaviour
    started = time.monotonic()
    reply = try_once(make(PATIENT), replace(QUESTION, valid=lambda text: text.startswith("{")))
    assert reply.text is None
    assert re.search(told, reply.error.text if reply.error else "")
    assert time.monotonic() - started < SOON_SECONDS


def test_one_lost_attempt_is_no_fault(server, make):
    server.says(502, ...)
    assert try_once(make(PATIENT), QUESTION).text == "re: Is anybody there?"


def test_an_answer_in_the_cache_proves_nothing(server, make):
    model = make()
    assert model.ask([QUESTION])[0].text
    server.says(401)
    assert model.ask([QUESTION])[0].text
    assert "HTTP 401" in try_once(model, QUESTION).error.text


def test_the_question_is_paid_from_the_same_budget(server, make):
    model = make(budget={"tokens": 15})  # one answer of the server
    assert try_once(model, QUESTION).text == "re: Is anybody there?"
    assert model.counters()["calls"] == 1
    with refusal("endpoint.spent-budget"):
        model.ask([QUESTION])
