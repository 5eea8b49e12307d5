"""What a policy may do is looked up in the compiled plan, where no spelling hides it.

Some of what is compiled here ends the engine, and with it the process in which it runs.
"""

from contextlib import closing

import pytest

from environments.rego.plan import BUILTINS
from environments.rego.process import RegoProcess
from environments.rego.worker import RegoError
from tests.refusals import refusal

pytestmark = pytest.mark.deep

HEADER = "package p\n\nimport rego.v1\n\n"


def value_of(rules, given="{}"):
    """The value of `x`. Raises `RegoError` for rules that are refused."""
    with closing(RegoProcess({"p.rego": HEADER + rules}, ["p.x"])) as process:
        return process.ask("p.x", given)[0]


#: Names of one function, however they are written.
SPELLINGS = {
    "plain": "{0}.{1}",
    "spaces": "{0} . {1}",
    "a tab": "{0}\t.\t{1}",
    "brackets": '{0}["{1}"]',
    "raw brackets": "{0}[`{1}`]",
    "a line break": "{0}.\n\t{1}",
    "a comment": "{0}. # of what?\n\t{1}",
}
#: What tells of the machine, of time or of chance, or goes out.
REACHING_OUT = {
    "opa.runtime": "",
    "time.now_ns": "",
    "rand.intn": '"a", 3',
    "uuid.rfc4122": '"a"',
    "http.send": "{}",
    "net.lookup_ip_addr": '"localhost"',
    "rego.metadata.rule": "",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
@pytest.mark.parametrize("name", REACHING_OUT)
def test_no_spelling_of_a_function_that_reaches_out_is_value_of(name, spelling):
    *package, last = name.split(".")
    called = f"{spelling.format('.'.join(package), last)}({REACHING_OUT[name]})"
    for rules in (["p.x"], None):
        with pytest.raises(RegoError):
            RegoProcess({"p.rego": f"{HEADER}x := {called}"}, rules)


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_it_is_refused_by_name_and_place(spelling):
    called = spelling.format("opa", "runtime")
    with refusal("rego.excess", "p.rego:", ": opa.runtime"):
        value_of(f"y := 1\n\nx := {called}().env.HF_TOKEN")


IN_OTHER_PLACES = {
    "a function": "x := f(1)\nf(n) := time.now_ns() + n",
    "a comprehension": "x := [t | t := time.now_ns()]",
    "a rule that nobody asks": "x := 1\ny := time.now_ns()",
    "every": "x if {\n\tevery n in [1] { time.now_ns() > n }\n}",
    "a key": "x := {time.now_ns(): 1}",
    "a default": "default x := 1\nx := 2 if time.now_ns() > 0",
    "else": "x := 1 if input.a else := 2 if time.now_ns() > 0",
    "an argument": "x := abs(time.now_ns())",
    "what is denied": "x if not time.now_ns() > 0",
}


@pytest.mark.parametrize("rules", IN_OTHER_PLACES.values(), ids=IN_OTHER_PLACES.keys())
def test_it_is_refused_wherever_it_stands(rules):
    with refusal("rego.excess", "time.now_ns"):
        value_of(rules)


@pytest.mark.parametrize("called", ["print(1)", 'trace("a")', "nosuch(1)", "walk(1, y)"])
def test_what_is_not_listed_is_refused_whether_or_not_the_engine_knows_it(called):
    """What a policy prints could be taken for the mark of a clause."""
    with refusal("rego.excess", "is none of the functions"):
        value_of(f"x if {called}")


REPLACED = {
    "the input": "input as {}",
    "after a line break": "\n\tinput as {}",
    "after a comment": "# what else\n\tinput as {}",
    "in brackets": 'input["a"] as 1',
    "a field": "input.a as 1",
    "a rule": "data.p.y as 1",
    "a function": "count as 1",
}


@pytest.mark.parametrize("replaced", REPLACED.values(), ids=REPLACED.keys())
def test_nothing_is_replaced_by_with(replaced):
    """In this engine it ends the process, at the latest when it is asked."""
    rules = f"{HEADER}x if {{\n\ty == 1 with {replaced}\n}}\n\ny := count([input.a])"
    with pytest.raises(RegoError, match=r"`with` is not safe|it ends the engine|Invalid with"):
        RegoProcess({"p.rego": rules}, ["p.x"])


def test_no_rule_is_named_by_a_value():
    with refusal("rego.excess", "a rule is named by a value"):
        value_of("x := data.p[input.name]\ny := 1")


CHANGED = {
    "union": 'object.union(input, {"a": 1})',
    "union, input last": 'object.union({"a": 1}, input)',
    "remove": 'object.remove(input, ["a"])',
    "get with a default": 'object.get(input, "a", 1)',
    "a comprehension": '{k: v | some k, v in input; k != "a"}',
    "every field": "[v | v := input[_]]",
    "in an object": '{"given": input}',
    "in an array": "[input]",
    "in a set": "{input}",
    "as a key": "{input: 1}",
    "compared": "input == {}",
    "by another name": 'object.union(same, {"a": 1})',
    "through a function": "joined(input)",
    "through a rule and a function": "joined(handed(same))",
}


@pytest.mark.parametrize("value", CHANGED.values(), ids=CHANGED.keys())
def test_the_input_is_changed_nowhere(value):
    rules = 'same := input\nhanded(n) := n\njoined(n) := object.union(n, {"a": 1})\n'
    with refusal("rego.excess", "read its fields by name"):
        value_of(f"{rules}\nx := {value}")


def test_the_input_is_changed_under_no_alias():
    rules = 'package p\n\nimport rego.v1\nimport input as i\n\nx := object.union(i, {"a": 1})'
    with refusal("rego.excess", "read its fields by name"):
        RegoProcess({"p.rego": rules}, ["p.x"])


TAKEN_AS_IT_IS = {
    "a field": "input.a",
    "a field that a value names": 'input[name]\nname := "a"',
    "handed to a function": "f(input)\nf(n) := n.a",
    "handed on twice": "f(input)\nf(n) := g(n)\ng(n) := n.a",
    "by a rule's name": "f(same)\nsame := input\nf(n) := n.a",
    "a condition": "1 if input",
}


@pytest.mark.parametrize("rules", TAKEN_AS_IT_IS.values(), ids=TAKEN_AS_IT_IS.keys())
def test_the_input_is_read(rules):
    assert value_of(f"x := {rules}", '{"a": 1}') == 1


def test_a_rule_says_what_it_reads_of_the_input_and_of_anything_else():
    rules = """
x := f(input)

f(n) := g(n.a) + n.b

g(n) := n.c

other := f({"b": 1})

asked_of_a_rule := table.d

table := {"d": 1}
"""
    with closing(RegoProcess({"p.rego": HEADER + rules})) as process:
        found = {rule.path: rule for rule in process.rules}
    assert found["p.f"].input_fields == {"a": "p.rego:8", "b": "p.rego:8"}
    assert found["p.f"].other_fields == {"c": "p.rego:8"}
    assert found["p.other"].other_fields == {"a": "p.rego:12", "b": "p.rego:12"}
    assert not found["p.x"].other_fields
    assert not found["p.asked_of_a_rule"].other_fields
    assert found["p.other"].calls == ["p.f"]


#: Each function that a policy may call, by an example.
EXAMPLES = {
    "plus": "1.5 + 2",
    "minus": "{1, 2} - {2}",
    "mul": "0.1 * 3",
    "div": "1 / 3",
    "rem": "-7 % 3",
    "equal": "[n | n := 1; n == 1]",
    "neq": "1 != 2",
    "lt": '"a" < "b"',
    "lte": "1 <= 1.0",
    "gt": "2 > 1",
    "gte": "[n | n := 2; n >= 2]",
    "and": "{1, 2} & {2, 3}",
    "or": "{1} | {2}",
    "internal.member_2": "2 in [1, 2]",
    "abs": "abs(-1.5)",
    "ceil": "ceil(1.2)",
    "floor": "floor(-1.2)",
    "round": "[round(2.5), round(-2.5), round(1.4)]",
    "numbers.range": "numbers.range(3, 1)",
    "count": '[count("äb"), count({1}), count({"a": 1}), count([])]',
    "sum": "sum([0.1, 0.2, 0.3])",
    "product": "product([2, 3.5])",
    "max": "max([1, 3.5, 2])",
    "min": "min({1, 0.5})",
    "array.concat": "array.concat([1], [2])",
    "array.reverse": "array.reverse([1, 2])",
    "array.slice": "array.slice([1, 2, 3], -1, 2)",
    "object.get": '[object.get({"a": 1}, "b", 2), object.get({"a": {"b": 3}}, ["a", "b"], 2)]',
    "object.keys": 'object.keys({"a": 1})',
    "object.remove": 'object.remove({"a": 1, "b": 2}, ["a"])',
    "object.union": 'object.union({"a": 1, "b": 1}, {"b": 2})',
    "is_array": "[is_array([]), is_array({})]",
    "is_boolean": "[is_boolean(false), is_boolean(0)]",
    "is_null": "[is_null(null), is_null(false)]",
    "is_number": '[is_number(1), is_number("1")]',
    "is_object": "[is_object({}), is_object([])]",
    "is_set": "[is_set(set()), is_set([])]",
    "is_string": '[is_string(""), is_string(1)]',
    "sprintf": 'sprintf("%d %s %v %.3f %5.2f %d%%", [1, "a", 1.5, 0.12345, 2.5, 50])',
}


def test_every_function_has_an_example():
    assert EXAMPLES.keys() == BUILTINS


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_real_opa_evaluates_it_alike(name):
    from tests.environments.dharma import opa

    rule = f"x := {EXAMPLES[name]}\n"
    expected = opa.real_engine({"p.rego": HEADER + rule}).eval_document("p.x", {})
    assert value_of(rule) == expected
