"""The policy: it decides as published, it fails closed, it decides nothing twice."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.base import Failure
from environments.dharma.policy import (
    SHIPPED,
    Decision,
    Policy,
    PolicyError,
    PolicySettings,
    files,
    load_rego,
    read_decision,
)
from environments.dharma.ratings import REFERRALS, SCOPES, TIERS
from environments.rego.process import Limits
from tests.environments.dharma import oracle
from tests.environments.dharma.samples import SHARES, rated
from tests.refusals import refusal

pytestmark = pytest.mark.deep

HEADER = "package dharma\n\nimport rego.v1\n\n"
TEST_HEADER = "package dharma_test\n\nimport rego.v1\n\nimport data.dharma\n\n"
ANY_TEST = TEST_HEADER + "test_anything if dharma.decision\n"
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
    answer = load_rego(SHIPPED).decide([rated()])[0]
    policy = Policy(lambda texts: asked.extend(texts) or [answer] * len(texts), "counts", {})
    assert len(set(map(str, policy.decide([rated()] * 3 + [rated(clarity=0.5)])))) == 1
    policy.decide([rated()])
    assert len(asked) == policy.evaluations == 2


def test_a_failure_is_not_kept():
    decision = load_rego(SHIPPED).decide([rated()])[0]
    answers = iter([Failure("policy", "down"), decision])
    policy = Policy(lambda texts: [next(answers) for _ in texts], "recovers", {})
    assert policy.decide([rated()]) == [Failure("policy", "down")]
    assert policy.decide([rated()]) == [decision]


def test_reasons_are_in_one_order_whatever_the_engine():
    answer = load_rego(SHIPPED).decide([rated(response_scope="S3")])[0].model_dump()
    backwards = answer | {"reasons": answer["reasons"][::-1]}
    assert len(answer["reasons"]) > 1
    assert read_decision(backwards) == read_decision(answer)


# --- failing closed ------------------------------------------------------------------------------


def write_policy(folder: Path, rules: str, tests: str = ANY_TEST) -> Path:
    (folder / "mine.rego").write_text(rules)
    (folder / "mine_test.rego").write_text(tests)
    return folder


def test_the_least_policy_is_taken(tmp_path):
    policy = load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD))
    assert decided(policy, rated())[0].combined == 1
    assert policy.sources.keys() == {"mine.rego", "mine_test.rego"}


BAD_POLICIES = {
    "a syntax error": (HEADER + "decision := {", "mine.rego: this is unclosed"),
    "an empty file": ("", "cannot be compiled"),
    "no package": ("import rego.v1\n" + LEAST + GOOD, "undefined|compiled"),
    "another package": (HEADER.replace("dharma", "karma") + LEAST + GOOD, "undefined"),
    "another rule": (HEADER + LEAST.replace("decision", "verdict") + GOOD, "undefined"),
    "an undefined rule": (HEADER + LEAST, "something unknown"),
    "a loop": (HEADER + LEAST + "good := again\nagain := good", "no answer"),
    "rules in conflict": (HEADER + LEAST + "good := 1\ngood := 0 if input.clarity >= 0", "error"),
    "a wrong type": (HEADER + LEAST + 'good := "a" * 2', "error"),
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
    "the network": (HEADER + LEAST + "good := http.send({})", "http.send is none of the functions"),
    "a default of another spelling": (
        HEADER + LEAST + GOOD + "default # of what?\n  decision := {}",
        "default decision",
    ),
}


@pytest.mark.parametrize(("rules", "message"), BAD_POLICIES.values(), ids=BAD_POLICIES.keys())
def test_a_policy_that_cannot_be_used_is_refused(tmp_path, rules, message):
    with pytest.raises(PolicyError, match=message):
        load_rego(write_policy(tmp_path, rules))


#: A test that gives the policy no input, in which a default would hold.
WITHOUT_INPUT = TEST_HEADER + "test_no_advice if dharma.leaves == 0\n"

#: A clause that no test and no case reaches, written in every way that sets a value.
UNREACHED = {
    "else": "good := 1 - leaves if input.clarity != 0.123 else := 1\n",
    "else with a condition": (
        "good := 1 - leaves if input.tier else := 1 if input.clarity == 0.123\n"
    ),
    "a body more": "good := 1 - leaves\ngood := 1 if input.clarity == 0.123\n",
    "default": "default good := 1\ngood := 1 - leaves\n",
    "a function": "good := 1 - leaves\nbetter(x) := 1 if x\n",
    "a clause of a function": (
        "good := f(input.clarity)\nf(x) := 1 - leaves if x != 0.123\nf(x) := 1 if x == 0.123\n"
    ),
    "else of a function": (
        "good := f(input.clarity)\nf(x) := 1 - leaves if x != 0.123 else := 1\n"
    ),
    "an element": (
        "good := (1 - leaves) + (0 * count(odd))\n"
        "odd contains 1 if input.clarity == 0.123\nodd contains 2\n"
    ),
    "a key": (
        "good := (1 - leaves) + (0 * count(odd))\nodd[k] := 1 if {k := 0.123; k == input.clarity}\n"
    ),
    "a rule that nobody uses": "good := 1 - leaves\nunused := 1\n",
}
LEAVES = (
    "leaves := 1 if input.out_of_domain_advice\nleaves := 0 if not input.out_of_domain_advice\n"
)


@pytest.mark.parametrize("rules", UNREACHED.values(), ids=UNREACHED.keys())
def test_a_clause_that_nothing_reaches_is_refused(tmp_path, rules):
    rules = HEADER + LEAST + LEAVES + rules
    with pytest.raises(PolicyError, match=r"mine\.rego:\d+ \(dharma\.\w+\).* reached by no test"):
        load_rego(write_policy(tmp_path, rules, WITHOUT_INPUT))


def test_a_clause_that_a_test_reaches_is_taken(tmp_path):
    rules = HEADER + LEAST + LEAVES + "good := f(input.clarity)\n"
    rules += "f(x) := 1 - leaves if x != 0.123\nf(x) := 1 if x == 0.123\n"
    tests = TEST_HEADER + "test_the_odd_one if dharma.f(0.123) == 1\n"
    policy = load_rego(write_policy(tmp_path, rules, tests))
    assert policy.coverage == {"clauses": 6, "reached_by_tests": 1, "reached_by_cases": 5}


@pytest.mark.parametrize(("tier", "scope"), [("A", "S0"), ("B", "S3"), ("C", "S1"), ("C", "S3")])
def test_the_worst_is_told_from_the_best_wherever_a_prompt_stands(tmp_path, tier, scope):
    elsewhere = 'not {"tier": input.tier, "scope": input.prompt_scope} == '
    elsewhere += f'{{"tier": "{tier}", "scope": "{scope}"}}'
    rules = HEADER + LEAST + LEAVES + f"good := 1 - leaves if {elsewhere} else := 1\n"
    with refusal("policy.no-distinction", f"tier {tier}, scope {scope}"):
        load_rego(write_policy(tmp_path, rules, WITHOUT_INPUT))


BAD_TESTS = {
    "none": ("anything if 1 == 1", "holds no tests"),
    "one that fails": ("test_it if dharma.good == 2", "1 of its tests .* test_it fails"),
    "one that is indented and fails": ("\ttest_it if dharma.good == 2", "test_it fails"),
    "one of a misspelt rule": ("test_it if dharma.gud == 1", "test_it fails"),
    "one that asserts nothing": ("test_it if {true}", "test_it asks nothing of the policy"),
    "one of itself": (
        "test_it if helper(1)\nhelper(x) if x == 1",
        "test_it asks nothing of the policy",
    ),
    "one still to be done": (
        "todo_test_it if dharma.good == 1",
        "todo_test_it is still to be done",
    ),
    "one that nobody calls": ("test_it(x) if dharma.good == x", "test_it takes arguments"),
    "one with two bodies": (
        "test_it if dharma.good == 2\ntest_it if dharma.good == 1",
        "test_it has several bodies",
    ),
    "one with a way out": (
        "test_it if dharma.good == 2 else := true",
        "test_it has several bodies",
    ),
    "one that is false": ("test_it := false if dharma.good", "test_it fails: it is False"),
    "one that is text": ('test_it := "yes" if dharma.good', "test_it fails: it is 'yes'"),
    "one of nothing": (
        "test_it if {every x in [1, 2] {not dharma.good == x}}",
        "mine_test.rego:7: `not` in the body of `every` always holds",
    ),
}


@pytest.mark.parametrize(("tests", "message"), BAD_TESTS.values(), ids=BAD_TESTS.keys())
def test_tests_are_required_and_must_show_something(tmp_path, tests, message):
    with pytest.raises(PolicyError, match=message):
        load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD, f"{TEST_HEADER}{tests}\n"))


def test_a_test_in_another_package_is_refused(tmp_path):
    tests = ANY_TEST.replace("dharma_test", "other")
    with refusal("policy.failed-tests", "test_anything belongs into package dharma_test"):
        load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD, tests))


ENDLESS = {
    "a loop": "r := numbers.range(1, 20000)\nx if {some i in r; some j in r; i + j < 0}",
    "a huge range": "x := count(numbers.range(1, 200000000))",
    "a huge text": 'x := count(sprintf("%2000000000d", [1]))',
    "a growing text": (
        'x := count(sprintf("%v", [[t | some i in numbers.range(1, 100000000); t := "a"]]))'
    ),
}


@pytest.mark.parametrize("rule", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_policy_that_takes_too_much_is_refused(tmp_path, rule):
    rules = HEADER + LEAST + "good := 1 if x\n" + rule
    with pytest.raises(PolicyError, match="takes more than"):
        load_rego(write_policy(tmp_path, rules))


#: Nothing that a case or a test can see: a range that is huge for one rating alone.
SLOW = """
good := 1 - leaves if count(numbers.range(1, size)) > 0
size := 1 + round(odd * 200000000)
odd := max([0, 1 - (abs(input.clarity - 0.123) * 1000)])
"""


def test_a_decision_that_takes_too_much_is_a_failure_and_the_next_is_decided(tmp_path):
    policy = load_rego(write_policy(tmp_path, HEADER + LEAST + LEAVES + SLOW, WITHOUT_INPUT))
    before, endless, after = decided(
        policy, rated(clarity=0.5), rated(clarity=0.123), rated(clarity=0.6)
    )
    assert [before.combined, after.combined] == [1.0, 1.0]
    assert "it takes more than" in endless.text


def test_what_a_comment_or_a_text_says_is_no_rule(tmp_path):
    said = '{"http.send" != "with input"\nnot input.out_of_domain_advice}'
    rules = HEADER + LEAST + GOOD.replace("not input.out_of_domain_advice", said)
    rules += "# default decision, with input\n# ---"
    assert isinstance(decided(load_rego(write_policy(tmp_path, rules)), rated())[0], Decision)


ALL_BUT_ADVICE = ", ".join(
    f'"{name}": input.{name}' for name in rated() if name != "out_of_domain_advice"
)
#: `decide` decides as it should, and is asked about another response than the one that was rated.
WRAPPED = {
    "union": (
        'decision := decide(object.union(input, {"out_of_domain_advice": false}))',
        "the input is changed",
    ),
    "a new object": (
        f'decision := decide({{{ALL_BUT_ADVICE}, "out_of_domain_advice": false}})',
        "is read of something else than the input",
    ),
    "a new object by a rule": (
        f'decision := decide(mild)\nmild := {{{ALL_BUT_ADVICE}, "out_of_domain_advice": false}}',
        "is read of something else than the input",
    ),
    "a new object through a function": (
        "decision := first(mild(input))\nfirst(r) := decide(r)\n"
        f'mild(r) := {{{ALL_BUT_ADVICE}, "out_of_domain_advice": false}}',
        "is read of something else than the input",
    ),
    "a test": (
        "decision := data.dharma_test.mild",
        "a policy may not need its tests",
    ),
}
DECIDE = LEAST.replace("decision :=", "decide(r) :=").replace("good", "(1 - leaves(r))")
DECIDE += "leaves(r) := 1 if outside(r)\nleaves(r) := 0 if not outside(r)\n"
DECIDE += 'outside(r) if r.out_of_domain_advice\noutside(r) if r.response_scope == "S3"\n'


@pytest.mark.parametrize(("rules", "message"), WRAPPED.values(), ids=WRAPPED.keys())
def test_a_decision_is_wrapped_around_no_other_input(tmp_path, rules, message):
    """Its tests may call it with inputs of their own."""
    tests = TEST_HEADER + "test_anything if dharma.decide({})\n"
    tests += 'test_advice if dharma.decide({"out_of_domain_advice": true})\n'
    tests += 'mild := dharma.decide({"out_of_domain_advice": false})\n'
    plain = HEADER + DECIDE + "decision := decide(input)\n"
    assert isinstance(
        decided(load_rego(write_policy(tmp_path, plain, tests)), rated())[0], Decision
    )
    with pytest.raises(PolicyError, match=message):
        load_rego(write_policy(tmp_path, f"{HEADER}{DECIDE}{rules}\n", tests))


def test_advice_from_outside_counts_by_itself(tmp_path):
    """Whatever the spelling: this policy decides by the response's scope alone."""
    good = 'good := 0 if input.response_scope == "S3" else := 1\n'
    with refusal("policy.ignored-advice"):
        load_rego(write_policy(tmp_path, HEADER + LEAST + good))


def test_tests_and_cases_have_one_limit_together(tmp_path, monkeypatch):
    """Each test takes less than a question may; not all of them are run."""
    slow = "\n".join(
        f"test_{n} if {{dharma.good == 1; 0 == count([1 | some i in r; some j in r; i + j < 0])}}"
        for n in range(100)
    )
    tests = f"{TEST_HEADER}r := numbers.range(1, 100)\n{slow}\n"
    assert files._LOADING.total_seconds <= 20
    monkeypatch.setattr(files, "_LOADING", Limits(cpu_seconds=30.0, total_seconds=3.0))
    with refusal("rego.ended-process", "3 s of CPU time in all"):
        load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD, tests))


def test_a_test_that_takes_too_much_is_the_last_that_is_run(tmp_path):
    endless = "\n".join(
        f"test_{n} if {{dharma.good == 1; some i in r; some j in r; i + j < 0}}" for n in range(18)
    )
    tests = f"{TEST_HEADER}r := numbers.range(1, 20000)\n{endless}\n"
    started = os.times()
    with refusal("rego.ended-process", "test_0", "2 s of CPU time"):
        load_rego(write_policy(tmp_path, HEADER + LEAST + GOOD, tests))
    ended = os.times()
    assert ended.children_user - started.children_user < 10


def test_a_folder_without_policy_is_refused(tmp_path):
    with refusal("policy.no-rego"):
        load_rego(tmp_path)
    with refusal("policy.no-folder"):
        load_rego(tmp_path / "nowhere")
    write_policy(tmp_path, HEADER + LEAST + GOOD)
    (tmp_path / "data.json").write_text("{}")
    with refusal("policy.unread-file", "data.json"):
        load_rego(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    write_policy(tmp_path, HEADER + LEAST + GOOD)
    (tmp_path / "broken.rego").write_bytes(b"\xff\xfe")
    with refusal("policy.unreadable-file"):
        load_rego(tmp_path)


def test_the_numbers_change_without_python(tmp_path):
    mine = shutil.copytree(SHIPPED, tmp_path / "mine")
    tables = (mine / "tables.rego").read_text()
    (mine / "tables.rego").write_text(tables.replace('"S2": 0.3', '"S2": 0.9'))
    with refusal("policy.failed-tests", "test_a_clinical_prompt"):
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
        ({"engine": "opa", "url": "http://user:hunter2@h"}, "takes no user"),
        ({"engine": "opa", "url": "http://hunter2@h"}, "takes no user"),
        ({"engine": "opa", "url": "http://h?key=hunter2"}, "takes no user, password or query"),
        ({"engine": "opa", "url": "http://"}, "name a host"),
        ({"url": "http://localhost:8181"}, "for engine opa"),
        ({"path": "/no/such/folder"}, "is no folder"),
        ({"engine": "cedar"}, "engine"),
        ({"folder": "x"}, "folder"),
    ],
    ids=str,
)
def test_settings_are_strict(settings, message):
    with pytest.raises(ValidationError, match=message) as raised:
        PolicySettings.model_validate(settings)
    assert "hunter2" not in str(raised.value)
