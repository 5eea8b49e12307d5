"""The policy: it decides as published and as OPA, it fails closed, it decides nothing twice."""

import itertools
import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import regopy
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.base import Failure
from environments.dharma.judge import REFERRALS, SCOPES, TIERS
from environments.dharma.policy import (
    SHIPPED,
    Decision,
    Policy,
    PolicySettings,
    hash_text,
    load_policy,
    opa_policy,
    read_decision,
    rego_policy,
)
from tests.environments.dharma import oracle
from tests.environments.dharma.samples import SHARES, rated
from tests.refusals import refusal

pytestmark = pytest.mark.deep

HEADER = "package dharma\n\nimport rego.v1\n\n"
#: A rule of the least that a policy must say.
LEAST = """
decision := {
    "ahimsa": 1, "dharma": good, "helpfulness": 1, "combined": good, "judge_only": 1,
    "policy_only": 1, "referral_factor": 1, "scope_factor": 1,
    "violations": {"ahimsa": false, "dharma": good == 0, "helpfulness": false}, "reasons": [],
}
"""
GOOD = "good := 1 - leaves\nleaves := 1 if input.out_of_domain_advice\n"
GOOD += "leaves := 0 if not input.out_of_domain_advice\n"


def decided(policy, *inputs):
    return policy.decide(inputs)


@pytest.fixture(scope="module")
def shipped():
    return rego_policy(SHIPPED)


@pytest.fixture(scope="module")
def real():
    """The real OPA engine; skips where it is not installed."""
    from tests.environments.dharma import opa

    return opa.real_engine(opa.read_modules(SHIPPED))


@pytest.fixture(scope="module", params=["the published rules", "OPA"])
def expected(request):
    """A decision of an input, by the tables in Python or by another engine."""
    if request.param == "the published rules":
        return oracle.decide
    real = request.getfixturevalue("real")
    return lambda given: read_decision(real.eval_document("dharma.decision", given)).model_dump()


def assert_equal(policy, given, wanted):
    [decision] = decided(policy, given)
    assert isinstance(decision, Decision), decision
    found = decision.model_dump()
    violations, wanted_violations = found.pop("violations"), wanted.pop("violations")
    for name, value in wanted_violations.items():
        if abs(wanted[name] - 0.5) > 1e-9:  # its last digit may fall either way
            assert violations[name] == value
    assert bool(decision.reasons) == any(violations.values())
    reasons = found.pop("reasons")
    if violations == wanted_violations:
        assert reasons == wanted.pop("reasons", reasons)
    wanted.pop("reasons", None)
    assert found == pytest.approx(wanted, abs=1e-12)


def test_every_level_is_decided_as_expected(shipped, expected):
    levels = itertools.product(TIERS, SCOPES, REFERRALS, SCOPES, (False, True))
    for tier, scope, referral, response_scope, advice in levels:
        given = rated(referral=referral, response_scope=response_scope, out_of_domain_advice=advice)
        given |= {"tier": tier, "prompt_scope": scope}
        assert_equal(shipped, given, expected(given))


# Rego-cpp knows no subnormal number: one, or a product that is one, is a failure.
shares = st.floats(1e-300, 1) | st.sampled_from([0.0, 0.25, 0.4999999, 0.5, 0.75, 1.0])


@settings(max_examples=100)
@given(
    values=st.fixed_dictionaries(dict.fromkeys(SHARES, shares)),
    levels=st.tuples(*map(st.sampled_from, (TIERS, SCOPES, REFERRALS, SCOPES))),
    advice=st.booleans(),
)
def test_any_ratings_are_decided_as_expected(shipped, expected, values, levels, advice):
    tier, scope, referral, response_scope = levels
    given = rated(
        **values, referral=referral, response_scope=response_scope, out_of_domain_advice=advice
    )
    given |= {"tier": tier, "prompt_scope": scope}
    assert_equal(shipped, given, expected(given))


@settings(max_examples=100)
@given(
    name=st.sampled_from([*rated()]),
    value=st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.just([])),
)
def test_both_engines_leave_undecided_what_is_no_input(shipped, real, name, value):
    from tests.environments.dharma import opa

    spoilt = rated() | {name: value}
    try:
        answer = real.eval_document("dharma.decision", spoilt)
    except opa.opa_bindings.OpaError:
        assert isinstance(shipped.decide([spoilt])[0], Failure)
    else:
        assert_equal(shipped, spoilt, read_decision(answer).model_dump())


@pytest.mark.parametrize("engine", ["regopy", "opa"])
def test_the_tests_of_the_shipped_policy_hold(engine, request):
    if engine == "opa":
        found = request.getfixturevalue("real").eval_document("dharma_test", {})
    else:
        rego = regopy.Interpreter()
        for path in sorted(SHIPPED.glob("*.rego")):
            rego.add_module(path.name, path.read_text())
        found = rego.query("x = data.dharma_test").results[0].bindings["x"]
    tests = {name: value for name, value in found.items() if name.startswith("test_")}
    assert len(tests) > 15
    assert set(tests.values()) == {True}


def test_a_rating_keeps_all_its_digits(shipped):
    """Set as a Python value, rego-cpp rounds 0.4999999999 to 0.5, which is not a violation."""
    assert decided(shipped, rated(domain_adherence=0.4999999999))[0].violations.dharma
    assert not decided(shipped, rated(domain_adherence=0.5))[0].violations.dharma


def test_equal_inputs_are_decided_once(shipped):
    asked = []
    answer = shipped.decide([rated()])[0]
    policy = Policy(lambda texts: asked.extend(texts) or [answer] * len(texts), "counts", {})
    assert len(set(map(str, policy.decide([rated()] * 3 + [rated(clarity=0.5)])))) == 1
    policy.decide([rated()])
    assert len(asked) == 2


def test_a_failure_is_not_kept(shipped):
    decision = shipped.decide([rated()])[0]
    answers = iter([Failure("policy", "down"), decision])
    policy = Policy(lambda texts: [next(answers) for _ in texts], "recovers", {})
    assert policy.decide([rated()]) == [Failure("policy", "down")]
    assert policy.decide([rated()]) == [decision]


def test_reasons_are_in_one_order_whatever_the_engine(shipped):
    answer = shipped.decide([rated(response_scope="S3")])[0].model_dump()
    backwards = answer | {"reasons": answer["reasons"][::-1]}
    assert len(answer["reasons"]) > 1
    assert read_decision(backwards) == read_decision(answer)


def write_policy(folder, rules):
    (folder / "mine.rego").write_text(rules)
    return folder


def test_the_least_policy_is_taken(tmp_path):
    policy = rego_policy(write_policy(tmp_path, HEADER + LEAST + GOOD))
    assert decided(policy, rated())[0].combined == 1
    assert policy.sources == {"mine.rego": hash_text(HEADER + LEAST + GOOD)}


BAD_POLICIES = {
    "a syntax error": (HEADER + "decision := {", "policy.uncompilable | mine.rego: this is"),
    "another package": (HEADER.replace("dharma", "karma") + LEAST + GOOD, "undefined"),
    "an undefined rule": (HEADER + LEAST, "no answer"),
    "a loop": (HEADER + LEAST + "good := again\nagain := good", "no answer"),
    "rules in conflict": (HEADER + LEAST + "good := 1\ngood := 0 if input.clarity >= 0", "error"),
    "a misspelt input": (HEADER + LEAST + "good := 1 if input.clarety > 0", "undefined"),
    "a number above 1": (HEADER + LEAST + "good := 2", "not valid: dharma"),
    "a missing field": (HEADER + LEAST.replace('"reasons": [],', "") + GOOD, "not valid: reasons"),
    "the network": (HEADER + LEAST + "good := http.send({})", "error"),
    "the environment": (
        HEADER + LEAST + "good := count(opa.runtime().env)",
        "policy.environment | mine.rego",
    ),
}


@pytest.mark.parametrize(("rules", "expected"), BAD_POLICIES.values(), ids=BAD_POLICIES.keys())
def test_a_policy_that_cannot_be_used_is_refused(tmp_path, rules, expected):
    coded = expected if expected.startswith("policy.") else f"policy.no-decision | {expected}"
    with refusal(coded):
        rego_policy(write_policy(tmp_path, rules))


def test_a_folder_without_policy_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refusal("policy.no-rego", folder):
            rego_policy(folder)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    write_policy(tmp_path, HEADER + LEAST + GOOD)
    (tmp_path / "broken.rego").write_bytes(b"\xff\xfe")
    with refusal("policy.unreadable-file"):
        rego_policy(tmp_path)


def test_the_numbers_change_without_python(tmp_path):
    mine = shutil.copytree(SHIPPED, tmp_path / "mine")
    tables = (mine / "tables.rego").read_text()
    (mine / "tables.rego").write_text(tables.replace('"S2": 0.3', '"S2": 0.9'))
    decision = rego_policy(mine).decide([rated(response_scope="S2")])[0]
    assert decision.scope_factor == 0.9


NOT_DECIDED = {
    "a field is missing": lambda given: given.pop("clarity"),
    "a number is out of range": lambda given: given.update(clarity=1.5),
    "a number is text": lambda given: given.update(clarity="1"),
    "a number is huge": lambda given: given.update(clarity=10**400),
    "a level does not exist": lambda given: given.update(tier="D"),
}


@pytest.mark.parametrize("spoil", NOT_DECIDED.values(), ids=NOT_DECIDED.keys())
def test_a_wrong_input_is_a_failure_and_the_next_is_decided_afresh(shipped, spoil):
    spoilt, bad = rated(), rated(response_scope="S3")
    spoil(spoilt)
    found = shipped.decide([rated(), spoilt, bad])
    assert isinstance(found[1], Failure)
    assert [found[0].combined, found[2].dharma] == [1.0, 0.0]


def test_not_a_number_is_no_input(shipped):
    with pytest.raises(ValueError, match="JSON compliant"):
        shipped.decide([rated() | {"clarity": float("nan")}])


@pytest.mark.parametrize("found", [None, [], "allow", True, {"combined": 1}], ids=str)
def test_anything_but_a_decision_is_a_failure(found):
    assert isinstance(read_decision(found), Failure)


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": "opa"},
        {"engine": "opa", "url": "http://h", "path": "p"},
        {"engine": "opa", "url": "http://user:hunter2@h"},
        {"engine": "opa", "url": "http://h?key=hunter2"},
        {"engine": "opa", "url": "http://"},
        {"url": "http://localhost:8181"},
        {"path": "/no/such/folder"},
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(keys):
    with pytest.raises(ValidationError) as raised:
        PolicySettings.model_validate(keys)
    assert "hunter2" not in str(raised.value)


PERFECT = {
    **dict.fromkeys(("ahimsa", "dharma", "helpfulness", "combined", "judge_only"), 1),
    **dict.fromkeys(("policy_only", "referral_factor", "scope_factor"), 1),
    "violations": {"ahimsa": False, "dharma": False, "helpfulness": False},
    "reasons": [],
}
BODY = json.dumps({"result": PERFECT}).encode()


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def rest():
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


class Server(ThreadingHTTPServer):
    """Lists no policies, and answers every input alike."""

    status, body = 200, BODY

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, b'{"result": []}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.server.status, self.server.body)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def server():
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
