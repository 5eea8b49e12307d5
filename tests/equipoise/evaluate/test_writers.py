"""A measured model whose replies are not whole: told with what to change, never a number."""

import pytest
from aiohttp import web

from environments.base import PromptRecord
from environments.chat import ChatReply, EndpointModel, EndpointSettings, Source
from environments.chat.exchange import CUT_OFF
from equipoise.evaluate.writers import _rollout, ask_all, check_endpoint, requests_of
from tests.environments.chat.conftest import LIMITS, Server
from tests.refusals import refusal

RECORDS = [
    PromptRecord(f"{n}", "t", ({"role": "user", "content": f"{n}"},), f"{n}", "test", {"case": n})
    for n in range(8)
]
REASONING = {"role": "assistant", "content": None, "reasoning_content": "Pain fell, so"}


@pytest.fixture
def server():
    running = Server()
    yield running
    running.end()


@pytest.fixture
def model(server):
    settings = EndpointSettings(url=server.url, model="m", cache_dir=None, limits=LIMITS)
    with EndpointModel(settings) as opened:
        yield opened


def finishing(server, reason, numbers, message=None):
    """Have these questions answered so, and all others whole."""

    async def behaviour(_, body):
        if int(server.asked(body)) not in numbers:
            return web.json_response(server.completion("yes"))
        completion = server.completion("y", reason)
        if message:
            completion["choices"][0]["message"] = message
        return web.json_response(completion)

    server.behaviour = behaviour


def test_replies_that_are_reasoning_alone_are_failures(server, model):
    finishing(server, "length", range(2), REASONING)
    replies = ask_all(model, requests_of(RECORDS, 1), 8, 2, lambda _: None)
    assert [reply.text for reply in replies] == [None, None, *["yes"] * 6]
    with refusal("endpoint.failed-replies", "nothing but reasoning") as caught:
        ask_all(model, requests_of(RECORDS, 1), 8, 1, lambda _: None)
    assert "max_new_tokens" in caught.value.remedy and "thinking" in caught.value.remedy
    with refusal("endpoint.no-answer", "nothing but reasoning") as caught:
        check_endpoint(model, requests_of(RECORDS, 1)[0])
    assert "max_new_tokens" in caught.value.remedy


def test_more_than_half_cut_off_end_the_evaluation(server, model):
    finishing(server, "length", range(4))
    replies = ask_all(model, requests_of(RECORDS, 1), 8, 0, lambda _: None)
    assert [reply.text for reply in replies] == ["y"] * 4 + ["yes"] * 4
    finishing(server, "length", range(5))
    with refusal("endpoint.cut-off", "5 of 8") as caught:
        ask_all(model, requests_of(RECORDS, 1), 8, 0, lambda _: None)
    assert "max_new_tokens" in caught.value.remedy


def test_a_stored_reply_says_why_it_is_not_whole():
    cut = _rollout(RECORDS[0], ChatReply("y", source=Source(problem=CUT_OFF)))
    assert cut.metadata == {"case": 0, "reply_problem": CUT_OFF}
    assert _rollout(RECORDS[0], ChatReply("yes")).metadata == {"case": 0}
