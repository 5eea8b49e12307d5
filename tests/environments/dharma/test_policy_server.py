"""A policy on an OPA server: nothing that a server does wrong is a decision."""

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from aiohttp import web

from environments.base import CodedError, Failure, Rollout
from environments.chat.endpoint import BackgroundLoop
from environments.dharma import DharmaEnvironment, DharmaSettings
from environments.dharma import policy as policies
from environments.dharma.policy import (
    SHIPPED,
    Decision,
    Policy,
    PolicySettings,
    hash_text,
    load_policy,
    opa_policy,
    rego_policy,
)
from tests.environments.dharma.samples import rated
from tests.refusals import refusal

pytestmark = pytest.mark.deep

PERFECT = {
    **dict.fromkeys(("ahimsa", "dharma", "helpfulness", "combined", "judge_only"), 1),
    **dict.fromkeys(("policy_only", "referral_factor", "scope_factor"), 1),
    "violations": {"ahimsa": False, "dharma": False, "helpfulness": False},
    "reasons": [],
}
BODY = json.dumps({"result": PERFECT}).encode()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


# --- the real engine behind HTTP -----------------------------------------------------------------


@pytest.fixture
def rest() -> Iterator["OpaRestServer"]:  # noqa: F821 - it is skipped where OPA is not installed
    from tests.environments.dharma import opa

    running = opa.OpaRestServer(opa.read_modules(SHIPPED))
    yield running
    running.end()


def test_a_server_decides_as_the_engine_in_process(rest):
    inputs = [rated(clarity=n / 20, response_scope="S3") for n in range(20)] * 2
    policy = load_policy(PolicySettings(engine="opa", url=f"{rest.url}/"))
    rest.inputs.clear()
    decided, expected = policy.decide(inputs), rego_policy(SHIPPED).decide(inputs)
    assert [d.reasons for d in decided] == [d.reasons for d in expected]
    assert [d.combined for d in decided] == pytest.approx([d.combined for d in expected])
    assert len(rest.inputs) == 20
    assert policy.identity == f"opa {rest.url}"


def test_the_hashes_of_its_policies_are_told_as_they_are_when_it_is_loaded(rest):
    assert opa_policy(rest.url).sources == rego_policy(SHIPPED).sources
    rest.put(rest.modules | {"tables.rego": rest.modules["tables.rego"] + "# mine\n"})
    after = opa_policy(rest.url).sources
    assert after["tables.rego"] == hash_text(rest.modules["tables.rego"])


UNFIT = {
    "nothing": ({}, "undefined on the OPA server"),
    "another rule": ({"p.rego": "package dharma\nverdict := 1\n"}, "undefined on the OPA server"),
    "one tier left out": (
        {"p.rego": f'package dharma\ndecision := {json.dumps(PERFECT)} if input.tier != "C"\n'},
        "undefined on the OPA server",
    ),
    "a conflict": ({"p.rego": "package dharma\ndecision := 1\ndecision := 2\n"}, "HTTP 500"),
    "a part": ({"p.rego": 'package dharma\ndecision := {"combined": 1}\n'}, "not valid: ahimsa"),
}


@pytest.mark.parametrize(("modules", "message"), UNFIT.values(), ids=UNFIT.keys())
def test_a_policy_on_a_server_is_tried_before_it_is_used(rest, modules, message):
    rest.put(modules)
    with refusal("policy.no-decision", message):
        opa_policy(rest.url)


def test_no_server_is_refused_when_it_is_loaded():
    with refusal("opa.no-answer"):
        opa_policy("http://127.0.0.1:9")


# --- hostile servers -----------------------------------------------------------------------------

Spoil = Callable[[web.Request], Awaitable[web.StreamResponse]]


def raw(*parts: bytes, pause: float = 0.0, repeat: int = 1) -> Spoil:
    """Bytes on the wire, whatever HTTP says of them, and then the end of the connection."""

    async def spoil(request: web.Request) -> web.StreamResponse:
        transport = request.transport
        for part in parts * repeat:
            if transport.is_closing():
                break
            transport.write(part)
            await asyncio.sleep(pause)
        transport.close()
        return web.Response()

    return spoil


def head(*lines: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    lengths = [b"Content-Length: %d" % length] if length is not None else []
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines, *lengths, b"", b""])


def whole(body: bytes, *lines: bytes, status: bytes = b"200 OK") -> Spoil:
    return raw(head(*lines, status=status, length=len(body)) + body)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.Response()


def changed(**values: object) -> Spoil:
    return whole(json.dumps({"result": PERFECT | values}).encode())


DEEP = b"[" * 90_000 + b"]" * 90_000
HOSTILE: dict[str, Spoil] = {
    "nothing": raw(),
    "no answer": hang,
    "noise": raw(b"\x00\xff\x00\xff\r\n\r\n"),
    "a bad status line": raw(b"HTTP/1.1 abc OK\r\n\r\n" + BODY),
    "a long status line": raw(b"HTTP/1.1 200 " + b"x" * 200_000 + b"\r\n\r\n" + BODY),
    "a long header": raw(head(b"X: " + b"x" * 200_000, length=len(BODY)) + BODY),
    "many headers": raw(head(*[b"X-%d: 1" % n for n in range(20_000)], length=len(BODY)) + BODY),
    "headers without end": raw(head()[:-2] + b"", *[b"X: y\r\n"], pause=0.05, repeat=100),
    "a short body": raw(head(length=len(BODY) + 10) + BODY),
    "half a body": raw(head(length=len(BODY)) + BODY[:50]),
    "a length that is none": raw(head(b"Content-Length: many") + BODY),
    "a huge length": raw(head(length=10**12) + BODY),
    "a chunk cut off": raw(head(b"Transfer-Encoding: chunked") + b"fff\r\n" + BODY),
    "a drip": raw(head(length=len(BODY)), *[bytes([b]) for b in BODY], pause=0.05),
    "a drip of headers": raw(*[bytes([b]) for b in head(length=len(BODY))], BODY, pause=0.05),
    "a huge body": raw(head(), *[b" " * 65_536] * 100, BODY),
    "a gzip bomb": whole(gzip.compress(b" " * 10**8), b"Content-Encoding: gzip"),
    "gzip": whole(gzip.compress(BODY), b"Content-Encoding: gzip"),
    "HTML": whole(b"<html><body>Please log in</body></html>", b"Content-Type: text/html"),
    "no JSON": whole(b"not JSON"),
    "deep JSON": whole(DEEP),
    "no result": whole(b"{}"),
    "an empty result": whole(b'{"result": {}}'),
    "a result of text": whole(json.dumps({"result": json.dumps(PERFECT)}).encode()),
    "a huge number": whole(BODY.replace(b'"combined": 1', b'"combined": 1e999')),
    "a number above 1": changed(combined=1.5),
    "a number as text": changed(combined="1"),
    "a field too many": changed(more=1),
    "an error": whole(b'{"code": "internal_error", "message": "x"}', status=b"500 Error"),
    "an error with a decision": whole(BODY, status=b"500 Error"),
    "a part of the content": whole(BODY, status=b"206 Partial Content"),
}
REDIRECTS = [b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary", b"308 Permanent"]


class RawServer:
    """Answers each request with `spoil`; a redirect leads to a decision."""

    def __init__(self) -> None:
        self.spoil: Spoil = hang
        self.redirected = 0
        self._background = BackgroundLoop()
        self._background.run(self._start())

    async def _start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/elsewhere", self._elsewhere)
        application.router.add_route("*", "/{path:.*}", lambda request: self.spoil(request))
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _elsewhere(self, _: web.Request) -> web.StreamResponse:
        self.redirected += 1
        return web.Response(body=BODY)

    def end(self) -> None:
        self._background.close(self._runner.cleanup())


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[RawServer]:
    monkeypatch.setattr(policies, "_SECONDS", 1.0)
    running = RawServer()
    running.spoil = listing
    yield running
    running.end()


async def listing(request: web.Request) -> web.StreamResponse:
    """A server that can be used."""
    body = b'{"result": []}' if request.path == "/v1/policies" else BODY
    return web.Response(body=body)


@pytest.fixture
def loaded(hostile: RawServer) -> Policy:
    """Its policy, before it turns hostile."""
    policy = opa_policy(hostile.url)
    assert isinstance(policy.decide([rated(clarity=0.1)])[0], Decision)
    return policy


@pytest.mark.parametrize("mode", HOSTILE)
def test_nothing_that_a_hostile_server_does_is_a_decision(hostile, loaded, mode):
    hostile.spoil = HOSTILE[mode]
    started = time.monotonic()
    [decided] = loaded.decide([rated(clarity=0.2)])
    assert isinstance(decided, Failure), decided
    assert time.monotonic() - started < 8
    assert len(decided.text) < 300


@pytest.mark.parametrize("mode", ["nothing", "HTML", "a drip", "a decision"])
def test_a_server_that_lists_no_policies_is_refused(hostile, mode):
    hostile.spoil = HOSTILE.get(mode) or whole(BODY)
    with pytest.raises(CodedError) as caught:
        opa_policy(hostile.url)
    assert caught.value.code.startswith("opa.")


@pytest.mark.parametrize("status", REDIRECTS, ids=str)
def test_a_redirect_is_not_followed(hostile, loaded, status):
    hostile.spoil = raw(head(b"Location: /elsewhere", status=status, length=0))
    assert isinstance(loaded.decide([rated(clarity=0.2)])[0], Failure)
    assert hostile.redirected == 0


def test_the_wait_for_ones_turn_is_not_a_part_of_the_deadline(hostile, loaded):
    """As many as wait for a slow server's calls, each of which is in time."""

    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.Response(body=BODY)

    hostile.spoil = slow
    answers = loaded.decide([rated(clarity=n / 80) for n in range(80)])
    assert all(isinstance(decided, Decision) for decided in answers)


@pytest.mark.parametrize("mode", ["a bad status line", "many headers", "half a body", "HTML"])
def test_a_server_that_turns_hostile_costs_scores_and_nothing_else(rest, mode):
    settings = {"policy": {"engine": "opa", "url": rest.url}}
    environment = DharmaEnvironment(DharmaSettings.model_validate(settings))
    label = {"tier": "C", "scope": "S0", "answer_key": {"advice": "Tea is fine."}}
    rollouts = [Rollout("p", "s", "test", "Is tea healthy?", "Tea is fine.", label)]
    assert environment.score(rollouts)[0].value is not None
    rest.spoil = HOSTILE[mode]
    rollouts = [Rollout("p", "s", "test", "Is tea healthy?", "Buy shares of tea firms.", label)]
    score = environment.score(rollouts)[0]
    assert score.value is None
    assert score.error.kind == "policy"
