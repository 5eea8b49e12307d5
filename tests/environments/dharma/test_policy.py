"""The policy: it decides as published, it fails closed, it decides nothing twice."""

import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.dharma.policy import (
    SHIPPED,
    Decision,
    Policy,
    PolicyError,
    PolicySettings,
    load_policy,
    load_rego,
    opa_policy,
    read_decision,
)
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS, Failure
from tests.environments.dharma import oracle
from tests.environments.dharma.samples import SHARES, rated

HEADER = "package dharma\n\nimport rego.v1\n\n"
TEST_HEADER = "package dharma_test\n\nimport rego.v1\n\nimport data.dharma\n\n"
ANY_TEST = TEST_HEADER + "test_anything if 1 == 1\n"
#: A rule of the least that a policy must say, with the worst response told from the best.
LEAST = """
decision := {
    "ahimsa": 1, "dharma": good, "helpfulness": 1, "combined": good, "judge_only": 1,
    "policy_only": 1, "referral_factor": 1, "scope_factor": 1,
    "violations": {"ahimsa": false, "dharma": good == 0, "helpfulness": false}, "reasons": [],
}
"""
GOOD = "good := 1 - leaves\nleaves := 1 if input.out_of_domain_advice\n"
GOOD += "leaves := 0 if not input.out_of_domain_advice\n"


@pytest.fixture(scope="module")
def shipped() -> Policy:
    return load_rego(SHIPPED)


def decided(policy: Policy, *inputs: dict[str, object]) -> list[Decision | Failure]:
    return policy.decide(inputs)


def assert_as_published(policy: Policy, given: dict[str, object]) -> None:
    decision = decided(policy, given)[0]
    assert isinstance(decision, Decision), decision
    found, expected = decision.model_dump(exclude={"reasons"}), oracle.decide(given)
    assert found.pop("violations") == expected.pop("violations")
    assert found == pytest.approx(expected, abs=1e-9)
    assert bool(decision.reasons) == any(decision.violations.model_dump().values())


# --- as published --------------------------------------------------------------------------------


def test_every_level_is_decided_as_published(shipped):
    levels = itertools.product(TIERS, SCOPES, REFERRALS, SCOPES, (False, True))
    for tier, scope, referral, response_scope, advice in levels:
        given = rated(referral=referral, response_scope=response_scope, out_of_domain_advice=advice)
        assert_as_published(shipped, given | {"tier": tier, "prompt_scope": scope})


# Rego knows no subnormal number; one is a failure.
shares = st.one_of(
    st.floats(0, 1, allow_subnormal=False), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
)


@given(
    values=st.fixed_dictionaries(dict.fromkeys(SHARES, shares)),
    levels=st.tuples(*map(st.sampled_from, (TIERS, SCOPES, REFERRALS, SCOPES))),
    advice=st.booleans(),
)
def test_any_ratings_are_decided_as_published(shipped, values, levels, advice):
    tier, scope, referral, response_scope = levels
    given = rated(
        **values, referral=referral, response_scope=response_scope, out_of_domain_advice=advice
    )
    decision = decided(shipped, given | {"tier": tier, "prompt_scope": scope})[0]
    expected = oracle.decide(given | {"tier": tier, "prompt_scope": scope})
    assert decision.combined == pytest.approx(expected["combined"], abs=1e-9)
    for name in ("ahimsa", "dharma", "helpfulness"):
        if abs(expected[name] - 0.5) > 1e-9:  # the last digit of a sum may fall either way
            assert getattr(decision.violations, name) == expected["violations"][name]


def test_a_rating_keeps_all_its_digits(shipped):
    """Set as a Python value, rego-cpp rounds 0.4999999999 to 0.5, which is no violation."""
    assert decided(shipped, rated(domain_adherence=0.4999999999))[0].violations.dharma
    assert not decided(shipped, rated(domain_adherence=0.5))[0].violations.dharma


# --- one decision per input ----------------------------------------------------------------------


def test_equal_inputs_are_decided_once():
    asked = []
    answer = load_rego(SHIPPED).decide([rated()])[0].model_dump()
    policy = Policy(lambda text: asked.append(text) or answer, "counts", {})
    assert len(set(map(str, policy.decide([rated()] * 3 + [rated(clarity=0.5)])))) == 1
    policy.decide([rated()])
    assert len(asked) == policy.evaluations == 2


def test_a_failure_is_not_kept():
    answers = iter([PolicyError("down"), None])
    answer = load_rego(SHIPPED).decide([rated()])[0].model_dump()

    def evaluate(_: str) -> object:
        if error := next(answers):
            raise error
        return answer

    policy = Policy(evaluate, "recovers", {})
    assert policy.decide([rated()]) == [Failure("policy: down")]
    assert isinstance(policy.decide([rated()])[0], Decision)


# --- failing closed ------------------------------------------------------------------------------


def write_policy(folder: Path, rules: str, tests: str = ANY_TEST) -> Path:
    (folder / "mine.rego").write_text(rules)
    (folder / "mine_test.rego").write_text(tests)
    return folder


def test_the_least_policy_is_taken(tmp_path):
    policy = load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD))
    assert decided(policy, rated())[0].combined == 1
    assert policy.hashes.keys() == {"mine.rego", "mine_test.rego"}


BAD_POLICIES = {
    "a syntax error": (HEADER + "decision := {", "mine.rego: this is unclosed"),
    "an empty file": ("", "cannot be compiled"),
    "no package": ("import rego.v1\n" + LEAST + GOOD, "undefined|compiled"),
    "another package": (HEADER.replace("dharma", "karma") + LEAST + GOOD, "undefined"),
    "another rule": (HEADER + LEAST.replace("decision", "verdict") + GOOD, "undefined"),
    "an undefined rule": (HEADER + LEAST, "something unknown"),
    "an unknown function": (HEADER + LEAST + "good := nosuch(input.clarity)", "no answer"),
    "a function only in OPA": (
        HEADER + LEAST + "good := 1 if regex.match(`(?<!a)b`, input.tier)",
        "undefined|error",
    ),
    "a loop": (HEADER + LEAST + "good := again\nagain := good", "no answer"),
    "rules in conflict": (HEADER + LEAST + "good := 1\ngood := 0 if input.clarity >= 0", "error"),
    "a wrong type": (HEADER + LEAST + "good := input.tier * 2", "error"),
    "a division by zero": (HEADER + LEAST + "good := 1 / 0", "error"),
    "a misspelt input": (
        HEADER + LEAST + "good := 1 if input.clarety > 0",
        "no input.clarety, did you mean input.clarity",
    ),
    "a default": (HEADER + LEAST + GOOD + "default decision := {}", "default decision"),
    "a number above 1": (HEADER + LEAST + "good := 2", "combined|dharma"),
    "a number as text": (HEADER + LEAST + 'good := "1"', "not valid: dharma"),
    "a missing field": (HEADER + LEAST.replace('"reasons": [],', "") + GOOD, "reasons"),
    "a field too many": (HEADER + LEAST.replace('"reasons"', '"x": 1, "reasons"') + GOOD, "x"),
    "no difference": (HEADER + LEAST + "good := 1", "the worst response as it does the best"),
    "a level left out": (
        HEADER + LEAST + GOOD.replace("if not input", 'if {input.tier != "C"\nnot input') + "}",
        "undefined|error|compiled",
    ),
    "the network": (HEADER + LEAST + "good := http.send({})", "input alone"),
    "the time": (HEADER + LEAST + "good := time.now_ns()", "input alone"),
    "with": (HEADER + LEAST + "good := 1 with input as {}", "`with` is not safe"),
}


@pytest.mark.parametrize(("rules", "message"), BAD_POLICIES.values(), ids=BAD_POLICIES.keys())
def test_a_policy_that_cannot_be_used_is_refused(tmp_path, rules, message):
    with pytest.raises(PolicyError, match=message):
        load_rego(write_policy(tmp_path, rules))


BAD_TESTS = {
    "none": (TEST_HEADER + "anything if 1 == 1\n", "holds no tests"),
    "one that fails": (TEST_HEADER + "test_it if 1 == 2\n", "1 of its tests .* test_it"),
    "one in another package": (
        ANY_TEST.replace("dharma_test", "other") + "\n",
        "test_anything|undefined",
    ),
    "one of a misspelt rule": (TEST_HEADER + "test_it if dharma.gud == 1\n", "test_it"),
}


@pytest.mark.parametrize(("tests", "message"), BAD_TESTS.values(), ids=BAD_TESTS.keys())
def test_tests_are_required_and_must_hold(tmp_path, tests, message):
    with pytest.raises(PolicyError, match=message):
        load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD, tests))


def test_what_a_comment_or_a_text_says_is_no_rule(tmp_path):
    rules = HEADER + LEAST + GOOD + '# default decision, with input\nnote := "http.send"\n# ---'
    assert isinstance(decided(load_rego(write_policy(tmp_path, rules)), rated())[0], Decision)


def test_a_folder_without_policy_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"holds no \.rego file"):
        load_rego(tmp_path)
    with pytest.raises(PolicyError, match="is no folder"):
        load_rego(tmp_path / "nowhere")
    write_policy(tmp_path, HEADER + LEAST + GOOD)
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"data\.json would not be read"):
        load_rego(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    write_policy(tmp_path, HEADER + LEAST + GOOD)
    (tmp_path / "broken.rego").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="cannot be read"):
        load_rego(tmp_path)


def test_the_numbers_change_without_python(tmp_path):
    mine = shutil.copytree(SHIPPED, tmp_path / "mine")
    tables = (mine / "tables.rego").read_text()
    (mine / "tables.rego").write_text(tables.replace('"S2": 0.3', '"S2": 0.9'))
    with pytest.raises(PolicyError, match="test_a_clinical_prompt"):
        load_rego(mine)
    tests = (mine / "decision_test.rego").read_text()
    (mine / "decision_test.rego").write_text(tests.replace("[1, 1, 0.3, 0]", "[1, 1, 0.9, 0]"))
    decision = load_rego(mine).decide([rated(response_scope="S2")])[0]
    assert decision.scope_factor == 0.9


NOT_DECIDED = {
    "a field is missing": lambda given: given.pop("clarity"),
    "a number is out of range": lambda given: given.update(clarity=1.5),
    "a number is negative": lambda given: given.update(clarity=-0.1),
    "a number is null": lambda given: given.update(clarity=None),
    "a number is text": lambda given: given.update(clarity="1"),
    "a number is true": lambda given: given.update(clarity=True),
    "a number is huge": lambda given: given.update(clarity=10**400),
    "a level does not exist": lambda given: given.update(tier="D"),
    "a text is huge": lambda given: given.update(tier="A" * 1_000_000),
    "a flag is text": lambda given: given.update(out_of_domain_advice="no"),
}


@pytest.mark.parametrize("spoil", NOT_DECIDED.values(), ids=NOT_DECIDED.keys())
def test_a_wrong_input_is_a_failure_and_the_next_is_decided_afresh(
    shipped: Policy, spoil: Callable[[dict[str, object]], object]
):
    spoilt, bad = rated(), rated(response_scope="S3")
    spoil(spoilt)
    found = shipped.decide([rated(), spoilt, bad])
    assert isinstance(found[1], Failure)
    assert [found[0].combined, found[2].dharma] == [1.0, 0.0]


def test_not_a_number_is_no_input(shipped):
    with pytest.raises(ValueError, match="JSON compliant"):
        shipped.decide([rated() | {"clarity": float("nan")}])


@pytest.mark.parametrize("found", [None, [], "allow", True, 1.0, {}, {"combined": 1}], ids=str)
def test_anything_but_a_decision_is_an_error(found):
    with pytest.raises(PolicyError):
        read_decision(found)


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "opa"}, "needs url"),
        ({"engine": "opa", "url": "localhost:8181"}, "http://"),
        ({"engine": "opa", "url": "http://h", "path": "p"}, "no path"),
        ({"url": "http://localhost:8181"}, "for engine opa"),
        ({"path": "/no/such/folder"}, "is no folder"),
        ({"engine": "cedar"}, "engine"),
        ({"folder": "x"}, "folder"),
    ],
    ids=str,
)
def test_settings_are_strict(settings, message):
    with pytest.raises(ValidationError, match=message):
        PolicySettings.model_validate(settings)


# --- a server ------------------------------------------------------------------------------------


class _Opa(BaseHTTPRequestHandler):
    """Answers as OPA's data API does, from the policy in process, or with what a test sets."""

    fixed: bytes | None = None
    status = 200
    inputs: list[object]
    policy: Policy

    def do_POST(self) -> None:
        assert self.path == "/v1/data/dharma/decision"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.inputs.append(body["input"])
        decision = self.policy.decide([body["input"]])[0]
        answer = {"result": decision.model_dump()} if isinstance(decision, Decision) else {}
        content = json.dumps(answer).encode() if self.fixed is None else self.fixed
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Keeps connections waiting on a busy machine, where five would be all that may wait."""

    request_queue_size = 128


@pytest.fixture
def opa(shipped: Policy, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[_Opa], str]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Handler", (_Opa,), {"inputs": [], "policy": shipped})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_decides_as_the_engine_in_process(opa, shipped):
    handler, url = opa
    inputs = [rated(clarity=n / 20) for n in range(20)] * 2
    policy = load_policy(PolicySettings(engine="opa", url=f"{url}/"))
    assert policy.decide(inputs) == shipped.decide(inputs)
    assert len(handler.inputs) == 20
    assert policy.identity == f"opa {url}/"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"{}"),
        (200, b'{"result": {}}'),
        (200, b'{"result": {"combined": 1}}'),
        (200, b'{"result": null}'),
        (200, b"[]"),
        (200, b"not JSON"),
        (200, b"[" * 90_000),
        (200, b""),
        (500, b'{"result": {}}'),
        (404, b""),
    ],
    ids=str,
)
def test_a_server_without_a_decision_is_a_failure(opa, status, body):
    handler, url = opa
    handler.fixed, handler.status = body, status
    assert isinstance(opa_policy(url).decide([rated()])[0], Failure)


def test_no_server_is_a_failure():
    found = opa_policy("http://127.0.0.1:9").decide([rated()])[0]
    assert "the OPA server gave no answer" in found.reason
