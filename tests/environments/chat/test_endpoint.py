"""Promises of `EndpointModel.ask` when the server behaves."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web

from environments.chat import ChatReply, ChatRequest, ChatSetupError, Source
from environments.replies import has_text
from tests.refusals import refusal

KEY = "sk-do-not-tell-0123456789"
SCHEMA = {"type": "object", "properties": {"score": {"type": "number"}}}


def request(text, schema=None, valid=has_text):
    return ChatRequest(({"role": "user", "content": text},), schema, valid)


def requests(number):
    return [request(f"question {i}") for i in range(number)]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "chat"]


def test_samples_of_one_question_are_asked_one_by_one_with_seeds_of_their_own(make, server):
    messages = ({"role": "user", "content": "What?"},)
    model = make(parameters={"seed": 40})
    asked = [ChatRequest(messages, sample=n) for n in (0, 1, 1, 2)]
    model.ask(asked)
    assert sorted(body["seed"] for body in server.bodies) == [40, 41, 42]
    assert all(reply.cached for reply in model.ask(asked))
    make(parameters={}).ask(asked)  # a server that takes no seed
    assert [("seed" in body) for body in server.bodies[3:]] == [False] * 3


def test_whatever_a_measured_model_wrote_is_its_reply(make, server):
    cut_off = server.completion("It is", "length")
    refused = server.completion(None)
    refused["choices"][0]["message"]["refusal"] = "I will not."
    bodies = {"long": cut_off, "bad": refused, "none": server.completion("")}

    async def behave(_, body):
        return web.json_response(bodies[server.asked(body)])

    server.behaviour = behave
    model = make()

    def asked(**how):
        return [ChatRequest(({"role": "user", "content": q},), **how) for q in bodies]

    measured = {"valid": lambda _: True, "as_written": True}
    for cached in (False, True):
        replies = model.ask(asked(**measured))
        assert [reply.text for reply in replies] == ["It is", "I will not.", ""]
        assert [reply.cached for reply in replies] == [cached] * 3
    assert len(server.bodies) == 3
    assert [reply.text for reply in model.ask(asked())] == [None] * 3  # no judge's answer


def test_threads_share_the_calls_in_flight(make, server):
    server.says(..., after=0.2)
    model = make(cache_dir=None)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: model.ask([request("a")])[0], range(8)))
    assert found == [ChatReply("re: a")] * 8
    assert len(server.bodies) == 1
    assert model.counters()["shared_calls"] == 7


def test_the_request_is_what_openai_documents(make, server):
    model = make(parameters={"temperature": 0.5, "max_completion_tokens": 9, "seed": None})
    model.ask([ChatRequest(({"role": "system", "content": "s"}, {"role": "user", "content": "u"}))])
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    sent = {"model": "judge", "messages": messages, "temperature": 0.5, "max_completion_tokens": 9}
    assert server.bodies == [sent]


def test_a_program_that_never_closes_ends_quietly(server):
    program = f"""
from environments.chat import ChatRequest, EndpointModel, EndpointSettings
model = EndpointModel(EndpointSettings(url="{server.url}", model="judge", cache_dir=None))
print(model.ask([ChatRequest(({{"role": "user", "content": "a"}},))])[0].text)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "re: a\n", "")


def test_at_most_so_many_are_in_flight(make, server):
    server.says(..., after=0.02)
    make({"concurrency": 7}).ask(requests(50))
    assert server.most_in_flight == 7


def test_an_answer_that_stays_invalid_is_none_and_not_cached(make, server):
    model = make()
    for _ in range(2):
        (reply,) = model.ask([request("a", valid=lambda text: False)])
        assert (reply.text, reply.cached) == (None, False)
        assert "not valid" in reply.error.text
    assert len(server.bodies) == 4
    assert model.counters()["failures/invalid_reply"] == 2


def test_a_check_that_outlasts_the_deadline_is_no_answer(make):
    may_end = threading.Event()
    slow = request("slow", valid=lambda text: may_end.wait(20))
    model = make({"batch_seconds": 0.3})
    failed, answered = model.ask([slow, request("quick")])
    may_end.set()
    assert "not checked within limits.batch_seconds = 0.3" in failed.error.text
    assert answered == ChatReply("re: quick")
    assert model.counters()["failures/transport_timeout"] == 1
    assert make().ask([slow])[0].cached is False


def answering(server, *sources):
    """A server that says of each of its answers what gave it."""
    told = iter(sources)

    async def behave(_, body):
        return web.json_response(server.completion(f"re: {server.asked(body)}", **next(told)))

    server.behaviour = behave


def test_an_answer_keeps_what_gave_it_and_so_it_does_in_the_cache(make, server):
    named = {"model": "judge-2026-05-01"}
    answering(server, named | {"system_fingerprint": "fp_1"}, named, {"system_fingerprint": None})
    expected = [Source("judge-2026-05-01", "fp_1"), Source("judge-2026-05-01"), Source()]
    model = make()
    for cached in (False, True):
        replies = [model.ask([request(text)])[0] for text in "abc"]
        assert [reply.source for reply in replies] == expected
        assert [reply.cached for reply in replies] == [cached] * 3
    counters = model.counters()
    assert counters["answering_model/judge-2026-05-01"] == 4
    assert counters["system_fingerprint/fp_1"] == 2
    assert not [n for n in counters if "/" in n and n.partition("/")[2].startswith("None")]


HOSTILE_NAMES = {
    "lines and escapes": ("a\n\x1b[31mb", "a [31mb"),
    "length": ("m" * 1_000_000, "m" * 120),
    "a number": (7, None),
    "a list": (["m"], None),
    "blanks": ("  ", None),
}


@pytest.mark.parametrize(("told", "kept"), HOSTILE_NAMES.values(), ids=HOSTILE_NAMES.keys())
def test_a_name_from_a_server_is_a_short_line(make, server, told, kept):
    answering(server, {"model": told, "system_fingerprint": told})
    (reply,) = make({"response_bytes": 10_000_000}).ask([request("a")])
    assert reply.source == Source(kept, kept)


def test_a_server_that_makes_up_names_fills_no_table(make, server):
    answering(server, *({"model": f"judge-{n}"} for n in range(60)))
    model = make()
    model.ask([request(f"{n}") for n in range(60)])
    names = [name for name in model.counters() if name.startswith("answering_model/")]
    assert len(names) == 21
    assert model.counters()["answering_model/others"] == 40


def test_a_name_that_repeats_the_key_is_no_answer(make, server, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    answering(server, *[{"model": f"judge of {KEY}"}] * 2)
    model = make(api_key_env="JUDGE_KEY")
    (reply,) = model.ask([request("a")])
    assert reply.text is None
    assert KEY not in f"{reply} {model.counters()}"


def test_a_cached_answer_that_is_no_longer_valid_is_asked_for_again(make, server):
    model = make()
    model.ask([request("a")])
    changed = request("a", valid=lambda text: len(server.bodies) == 2)
    assert model.ask([changed])[0].cached is False


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_schemas_is_asked_without(make, server, status):
    async def refuses(http, body):
        if "response_format" in body:
            return web.json_response({"error": "unknown: response_format"}, status=status)
        return await server.echo(http, body)

    server.behaviour = refuses
    model = make({"retries": 0})
    assert model.ask([request("a", SCHEMA)]) == [ChatReply("re: a")]
    assert model.ask([request("b", SCHEMA)]) == [ChatReply("re: b")]
    assert ["response_format" in body for body in server.bodies] == [True, False, False]
    assert model.counters()["schema_refused"] == 1


def test_a_budget_of_tokens_ends_the_asking(make, server):
    model = make({"concurrency": 1}, budget={"tokens": 45})
    with refusal("endpoint.spent-budget", "judge", "45", "budget.tokens"):
        model.ask(requests(20))
    assert len(server.bodies) == 3
    assert model.counters()["prompt_tokens"] + model.counters()["completion_tokens"] == 45


def test_what_was_paid_for_is_cached_when_the_budget_is_used_up(make, server):
    model = make({"concurrency": 4}, budget={"tokens": 100})
    with refusal("endpoint.spent-budget"):
        model.ask(requests(50))
    answered = len(server.bodies)
    assert 7 <= answered <= 7 + 3
    hits = [reply.cached for reply in make().ask(requests(50))]
    assert sum(hits) == answered


@pytest.mark.parametrize("usage", [None, "many", {"prompt_tokens": -1, "completion_tokens": 2}])
def test_a_server_that_counts_no_tokens_does_not_escape_the_budget(make, server, usage):
    server.says(server.completion("x" * 300, usage=usage))
    model = make({"concurrency": 1}, budget={"tokens": 200})
    with refusal("endpoint.spent-budget"):
        model.ask(requests(20))
    assert model.counters()["answers_without_usage"] == len(server.bodies) < 5


def test_the_key_is_sent_and_shown_nowhere(make, server, monkeypatch, tmp_path, caplog):
    async def tells_it(http, body):
        told = http.headers["Authorization"]
        if server.asked(body) == "fail":
            return web.json_response({"error": f"bad key {told}"}, status=401)
        return web.json_response(server.completion(f"the key is {told}"))

    monkeypatch.setenv("JUDGE_KEY", KEY)
    server.behaviour = tells_it
    model = make(api_key_env="JUDGE_KEY")
    failed, told = model.ask([request("fail"), request("tell")])
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert "bad key Bearer ***" in failed.error.text
    assert "repeats the API key" in told.error.text
    shown = repr([failed, told, model, vars(model), model.identity, model.counters()])
    model.close()
    kept = b"".join(file.read_bytes() for file in (tmp_path / "cache").iterdir())
    assert KEY not in shown + caplog.text
    assert KEY.encode() not in kept


@pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "two words", "schlüssel"])
def test_without_a_usable_key_nothing_begins(make, monkeypatch, value):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(ChatSetupError, match="JUDGE_KEY") as caught:
        make(api_key_env="JUDGE_KEY")
    assert not (value or "").strip() or value not in str(caught.value)


def test_a_redirection_does_not_take_the_key_along(make, server, monkeypatch):
    async def elsewhere(http, body):
        raise web.HTTPTemporaryRedirect("/v1/chat/completions?again")

    monkeypatch.setenv("JUDGE_KEY", KEY)
    server.behaviour = elsewhere
    assert "HTTP 307" in make(api_key_env="JUDGE_KEY").ask([request("a")])[0].error.text
    assert len(server.bodies) == 1
