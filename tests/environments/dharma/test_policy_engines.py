"""rego-cpp, which decides in training, against the real OPA engine."""

import itertools

import pytest
import regopy
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.base import Failure
from environments.dharma.judge import REFERRALS, SCOPES, TIERS
from environments.dharma.policy import SHIPPED, Decision, read_decision
from tests.environments.dharma import opa
from tests.environments.dharma.samples import SHARES, rated

MODULES = opa.read_modules(SHIPPED)


@pytest.fixture(scope="module")
def real():
    return opa.real_engine(MODULES)


def assert_equal(policy, real, given):
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
        given = rated(referral=referral, response_scope=response_scope, out_of_domain_advice=advice)
        assert_equal(shipped, real, given | {"tier": tier, "prompt_scope": scope})


# Rego-cpp knows no subnormal number; one is a failure.
shares = st.one_of(
    st.floats(0, 1, allow_subnormal=False), st.sampled_from([0.0, 0.25, 0.4999999, 0.5, 0.75, 1.0])
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


def in_process():
    rego = regopy.Interpreter()
    for name, text in MODULES.items():
        rego.add_module(name, text)
    return rego.query("x = data.dharma_test").results[0].bindings["x"]


@pytest.mark.parametrize("engine", ["regopy", "opa"])
def test_the_tests_of_the_shipped_policy_hold(real, engine):
    found = real.eval_document("dharma_test", {}) if engine == "opa" else in_process()
    tests = {name: value for name, value in found.items() if name.startswith("test_")}
    assert len(tests) > 15
    assert set(tests.values()) == {True}
