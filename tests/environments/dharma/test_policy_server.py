"""A policy on an OPA server: what is not a decision is a failure."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from environments.base import Failure
from environments.dharma.policy import (
    SHIPPED,
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


# --- servers that are not OPA, or fail -----------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Lists no policies, and answers every input alike."""

    status, body = 200, BODY

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.answer(200, b'{"result": []}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.server.status, self.server.body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"code": "internal_error"}'),
        (200, b"<html>Please log in</html>"),
        (200, b"[]"),
        (200, b'{"result": {}}'),
        (200, BODY.replace(b'"combined": 1', b'"combined": 1.5')),
        (200, BODY[:50]),
    ],
    ids=["error", "HTML", "a list", "empty", "above 1", "half"],
)
def test_what_is_not_a_decision_costs_a_score_and_nothing_else(server, status, body):
    policy = opa_policy(server.url)
    assert policy.decide([rated(clarity=n / 80) for n in range(80)])[0].combined == 1
    server.status, server.body = status, body
    [decided] = policy.decide([rated(clarity=0.999)])
    assert isinstance(decided, Failure)
    assert decided.kind == "policy"
    with refusal("policy.no-decision"):
        opa_policy(server.url)


def test_no_server_is_refused_when_it_is_loaded():
    with refusal("opa.no-answer"):
        opa_policy("http://127.0.0.1:9")
