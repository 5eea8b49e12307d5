"""rego-cpp, which decides in training, against the real OPA engine."""

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.base import Failure
from environments.dharma.policy import SHIPPED, Decision, Policy, read_decision
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS
from environments.rego.process import RegoProcess
from tests.environments.dharma import opa
from tests.environments.dharma.samples import SHARES, rated

MODULES = opa.read_modules(SHIPPED)


@pytest.fixture(scope="module")
def real() -> object:
    return opa.real_engine(MODULES)


def assert_equal(policy: Policy, real: opa.opa_bindings.OpaEngine, given: dict) -> None:
    decided = policy.decide([given])[0]
    expected = read_decision(real.eval_document("dharma.decision", given))
    assert isinstance(decided, Decision)
    ours, theirs = decided.model_dump(), expected.model_dump()
    violations = [(ours.pop(name), theirs.pop(name)) for name in ("violations", "reasons")]
    assert ours == pytest.approx(theirs, abs=1e-12)
    scores = (expected.ahimsa, expected.dharma, expected.helpfulness)
    if all(abs(score - 0.5) > 1e-9 for score in scores):  # its last digit may fall either way
        assert all(one == other for one, other in violations)


def test_both_engines_decide_every_level_alike(shipped, real):
    levels = itertools.product(TIERS, SCOPES, REFERRALS, SCOPES, (False, True))
    for tier, scope, referral, response_scope, advice in levels:
        given = rated(
            referral=referral,
            response_scope=response_scope,
            out_of_domain_advice=advice,
        )
        assert_equal(shipped, real, given | {"tier": tier, "prompt_scope": scope})


# Rego-cpp knows no subnormal number; one is a failure.
shares = st.one_of(
    st.floats(0, 1, allow_subnormal=False),
    st.sampled_from([0.0, 0.25, 0.4999999, 0.5, 0.75, 1.0]),
)


@settings(max_examples=100)
@given(
    values=st.fixed_dictionaries(dict.fromkeys(SHARES, shares)),
    levels=st.tuples(*map(st.sampled_from, (TIERS, SCOPES, REFERRALS, SCOPES))),
    advice=st.booleans(),
)
def test_both_engines_decide_any_ratings_alike(shipped, real, values, levels, advice):
    tier, scope, referral, response_scope = levels
    case = rated(
        **values, referral=referral, response_scope=response_scope, out_of_domain_advice=advice
    )
    assert_equal(shipped, real, case | {"tier": tier, "prompt_scope": scope})


@settings(max_examples=100)
@given(
    name=st.sampled_from([*rated()]),
    value=st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.just([])),
)
def test_both_engines_leave_undecided_what_is_no_input(shipped, real, name, value):
    spoilt = rated() | {name: value}
    try:
        real.eval_document("dharma.decision", spoilt)
    except opa.opa_bindings.OpaError:
        assert isinstance(shipped.decide([spoilt])[0], Failure)
    else:
        assert_equal(shipped, real, spoilt)


def test_the_tests_of_the_shipped_policy_hold_in_opa(real):
    found = real.eval_document("dharma_test", {})
    tests = {name: value for name, value in found.items() if name.startswith("test_")}
    assert len(tests) > 15
    assert set(tests.values()) == {True}


#: Everything that a rule can be made of.
CLAUSES = """package p

import rego.v1

value := 1 if {
	input.n == 1
} else := 2 if {
	input.n == 2
} else := 3

twice(x) := 2 * x if {
	x > 1
}

twice(x) := 0 if {
	x <= 1
}

default named := "other"

named := "one" if {
	input.n == 1
}

some_of contains "two" if {
	input.n == 2
}

some_of contains "any" if {
	input.n
}

by_key[k] := 1 if {
	some k in input.keys
}

all := [value, twice(input.n), named, some_of, by_key]
"""


@pytest.fixture(scope="module")
def marked() -> Iterator[RegoProcess]:
    with closing(RegoProcess({"p.rego": CLAUSES})) as process:
        yield process


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("keys", [[], ["a"], ["a", "b"]], ids=str)
def test_the_clauses_that_are_reached_are_those_of_opas_coverage(marked, number, keys):
    """OPA covers a head when its body has held."""
    case = {"n": number, "keys": keys}
    value, reached = marked.ask("p.all", json.dumps(case))
    places = {place for rule in marked.rules for m, place in rule.clauses.items() if m in reached}
    engine = opa.real_engine({"p.rego": CLAUSES})
    assert engine.eval_document("p.all", case, coverage=True) == value
    assert {head_at(int(place.partition(":")[2])) for place in places} == covered_heads(engine)


def test_every_clause_has_a_mark(marked):
    marks = [head_at(int(p.partition(":")[2])) for r in marked.rules for p in r.clauses.values()]
    assert sorted(marks) == HEADS


#: The lines on which a clause begins.
HEADS = [
    number
    for number, line in enumerate(CLAUSES.splitlines(), 1)
    if re.match(r"[a-z].*(:=|contains)|\} else", line)
]


def head_at(line: int) -> int:
    return max(head for head in HEADS if head <= line)


def covered_heads(engine: opa.opa_bindings.OpaEngine) -> set[int]:
    covered = engine.last_coverage["files"]["p.rego"]["covered"]
    return {span["start"]["row"] for span in covered} & set(HEADS)
