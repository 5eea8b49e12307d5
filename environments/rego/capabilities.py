"""Limits on what a policy may do, by the names of statements and functions in its plan.

What is not listed is refused, however it is spelt. OPA calls such a list capabilities
(https://www.openpolicyagent.org/docs/deployments#capabilities).

The input is taken as it is: its fields are read, and it is handed on whole to the policy's own
rules alone. A policy that hands it to a built-in function, or puts it into a collection or goes
through it, could decide another input than the one that it was given.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from environments.rego.plan import Function, Plan, Statement, functions, local, location, statements

# fmt: off
#: Functions of their arguments alone, operators among them, which the real OPA evaluates alike.
BUILTINS = frozenset([
    "plus", "minus", "mul", "div", "rem", "equal", "neq", "lt", "lte", "gt", "gte", "and", "or",
    "internal.member_2", "abs", "ceil", "floor", "round", "numbers.range", "count", "sum",
    "product", "max", "min", "array.concat", "array.reverse", "array.slice", "object.get",
    "object.keys", "object.remove", "object.union", "is_array", "is_boolean", "is_null",
    "is_number", "is_object", "is_set", "is_string", "sprintf",
])

_STATEMENTS = frozenset([
    "ArrayAppendStmt", "AssignVarStmt", "AssignVarOnceStmt", "BlockStmt", "BreakStmt", "CallStmt",
    "DotStmt", "EqualStmt", "IsDefinedStmt", "IsUndefinedStmt", "MakeArrayStmt", "MakeNullStmt",
    "MakeNumberIntStmt", "MakeNumberRefStmt", "MakeObjectStmt", "MakeSetStmt", "NotStmt",
    "NotEqualStmt", "ObjectInsertStmt", "ObjectInsertOnceStmt", "ObjectMergeStmt", "ResetLocalStmt",
    "ResultSetAddStmt", "ReturnLocalStmt", "ScanStmt", "SetAddStmt",
])
# fmt: on

_REASONS = {
    "WithStmt": "`with` is not safe in the in-process engine: make it a function of the input and "
    "call it",
    "CallDynamicStmt": "a rule is named by a value: name the rule, and look up the value in it",
}
#: What may be done with the whole input: it is read, assigned and returned.
_HANDED_ON = ("AssignVarStmt", "AssignVarOnceStmt", "ReturnLocalStmt")
_LOOKED_AT = ("IsDefinedStmt", "IsUndefinedStmt", "ResetLocalStmt")
_OPERANDS = ("source", "key", "value", "a", "b")

#: A variable by its function and its number; None stands for any constant.
Variable = tuple[str, int | None]


def excess(plan: Plan) -> str | None:
    """The first thing that a policy may not do, with its place; None where there is none."""
    flow, names = Flow.of(plan), {function["name"] for function in functions(plan)}
    problems = (
        f"{location(plan, {'stmts': [statement]}, function)}: {problem}"
        for function in functions(plan)
        for statement in statements(function)
        if (problem := _problem(statement, function["name"], flow.inputs, names))
    )
    return next(problems, None)


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow of the input through a plan, and the fields that are read of each variable.

    `inputs` are the variables that hold the whole input. `fields` are the names that are read of
    the value of a variable, wherever it is handed on to.
    """

    plan: Plan
    inputs: frozenset[Variable]
    fields: Mapping[Variable, frozenset[str]]

    @classmethod
    def of(cls, plan: Plan) -> "Flow":
        """By assignments, arguments and results, until nothing is added."""
        by_name = {function["name"]: function for function in functions(plan)}
        steps = [
            step
            for function in functions(plan)
            for statement in statements(function)
            for step in _handed_on(function["name"], statement, by_name)
        ]
        inputs = {(name, function["params"][0]) for name, function in by_name.items()}
        fields: defaultdict[Variable, set[str]] = defaultdict(set)
        for function in functions(plan):
            for statement, name in _reads(plan, function):
                fields[function["name"], local(statement["stmt"]["source"])].add(name)
        count = -1
        while count != (count := len(inputs) + sum(map(len, fields.values()))):
            for source, target in steps:
                if source in inputs:
                    inputs.add(target)
                fields[source] |= fields[target]
        return cls(plan, frozenset(inputs), {v: frozenset(names) for v, names in fields.items()})

    def input_fields(self, function: Function) -> dict[str, str]:
        """The fields of the input that a function reads by name, with their places."""
        return {
            name: self._location(statement, function)
            for statement, name in _reads(self.plan, function)
            if (function["name"], local(statement["stmt"]["source"])) in self.inputs
        }

    def other_fields(self, function: Function) -> dict[str, str]:
        """The fields that are read of what a function hands on and is not the input."""
        by_name = {function["name"]: function for function in functions(self.plan)}
        return {
            name: self._location(statement, function)
            for statement in statements(function)
            for value, parameter in _arguments(function["name"], statement, by_name)
            if value not in self.inputs
            for name in sorted(self.fields.get(parameter, ()))
        }

    def _location(self, statement: Statement, function: Function) -> str:
        return location(self.plan, {"stmts": [statement]}, function)


def _reads(plan: Plan, function: Function) -> Iterator[tuple[Statement, str]]:
    strings = plan["static"]["strings"]
    for statement in statements(function):
        key = statement["stmt"].get("key")
        if statement["type"] == "DotStmt" and key["type"] == "string_index":
            yield statement, strings[key["value"]]["value"]


def _handed_on(
    name: str, statement: Statement, by_name: Mapping[str, Function]
) -> Iterator[tuple[Variable, Variable]]:
    """From which variable to which other a statement in the function `name` hands a value."""
    inner = statement["stmt"]
    if statement["type"] in ("AssignVarStmt", "AssignVarOnceStmt"):
        yield (name, local(inner["source"])), (name, inner["target"])
    yield from _arguments(name, statement, by_name)
    if statement["type"] == "CallStmt" and inner["func"] in by_name:
        yield (inner["func"], by_name[inner["func"]]["return"]), (name, inner["result"])


def _arguments(
    name: str, statement: Statement, by_name: Mapping[str, Function]
) -> Iterator[tuple[Variable, Variable]]:
    """The arguments of a call of one of the policy's functions, each with its parameter."""
    inner = statement["stmt"]
    if statement["type"] == "CallStmt" and inner["func"] in by_name:
        callee = inner["func"]
        for value, number in zip(inner["args"], by_name[callee]["params"], strict=False):
            yield (name, local(value)), (callee, number)


def _problem(
    statement: Statement, name: str, inputs: frozenset[Variable], policy_functions: set[str]
) -> str | None:
    """Why a statement in the function `name` is refused; `own` are the policy's functions."""
    kind, inner = statement["type"], statement["stmt"]
    if kind not in _STATEMENTS:
        return _REASONS.get(kind, f"a policy may not use {kind}")
    builtin = kind == "CallStmt" and inner["func"] not in policy_functions
    if builtin and inner["func"] not in BUILTINS:
        return f"{inner['func']} is none of the functions that a policy may call"
    if _is_free(statement, builtin=builtin):
        return None
    if any((name, local(value)) in inputs for value in _operands(statement)):
        return (
            "the input is changed or gone through as a whole, so that another input could be "
            "decided: read its fields by name, as in input.tier"
        )
    return None


def _is_free(statement: Statement, *, builtin: bool) -> bool:
    """Whether a statement may have the whole input: it leaves it as it is."""
    kind, inner = statement["type"], statement["stmt"]
    if kind == "CallStmt":
        return not builtin
    if kind == "NotEqualStmt":  # `input` as a condition
        return bool(inner["b"] == {"type": "bool", "value": False})
    return kind in _HANDED_ON or kind in _LOOKED_AT


def _operands(statement: Statement) -> Iterator[Any]:
    """The operands that a statement reads; of a field only its name."""
    inner = statement["stmt"]
    names = ("key",) if statement["type"] == "DotStmt" else _OPERANDS
    yield from (inner[name] for name in names if name in inner)
    yield from inner.get("args", ())
