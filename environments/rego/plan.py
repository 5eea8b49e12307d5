"""A compiled policy: its parts, what it may do, and marks that say what an evaluation reached.

It is OPA's intermediate representation, https://www.openpolicyagent.org/docs/ir. rego-cpp compiles
modules to it: a function per rule with the input and the data as its first two parameters; blocks
of statements; numbers for variables. Names stand in it as the engine calls them, however the text
spells them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_RULE = "g0.data."

Plan = dict[str, Any]
Function = Mapping[str, Any]
Statement = Mapping[str, Any]


def functions(plan: Plan) -> list[Function]:
    """Every function, those of rules and those that the compiler adds."""
    result: list[Function] = plan["funcs"]["funcs"]
    return result


def rule_functions(plan: Plan) -> list[Function]:
    """The functions of rules."""
    return [function for function in functions(plan) if function["name"].startswith(_RULE)]


def path(function: Function) -> str:
    """The path of a rule, without `data.`."""
    return str(function["name"]).removeprefix(_RULE)


def arguments(function: Function) -> int:
    """How many arguments a rule takes."""
    return len(function["params"]) - 2


def blocks(outer: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Blocks, each after those within it."""
    for block in outer:
        for statement in list(block["stmts"]):
            inner = statement["stmt"]
            yield from blocks([*inner.get("blocks", ()), *filter(None, [inner.get("block")])])
        yield block


def statements(function: Function) -> Iterator[Statement]:
    """Every statement of a function."""
    return (statement for block in blocks(function["blocks"]) for statement in block["stmts"])


def calls(function: Function) -> list[str]:
    """The paths of the rules that a function needs."""
    names = (s["stmt"]["func"] for s in statements(function) if s["type"] == "CallStmt")
    return sorted({name.removeprefix(_RULE) for name in names if name.startswith(_RULE)})


def local(operand: Any) -> int | None:
    """The number of a variable; None for a constant."""
    if isinstance(operand, Mapping):
        return operand["value"] if operand["type"] == "local" else None
    return operand if isinstance(operand, int) else None


def location(plan: Plan, block: Mapping[str, Any], function: Function) -> str:
    """`file:line` of a block, else of its rule, for constants have no place."""
    rows = (s["stmt"] for s in (*block["stmts"], *statements(function)) if "row" in s["stmt"])
    first = next(rows, None)
    if first is None:
        return path(function)
    return f"{plan['static']['files'][first['file']]['value']}:{first['row'] + 1}"


# --- what a policy may do ------------------------------------------------------------------------
#
# What is not listed is refused, however it is spelt. OPA calls such a list capabilities
# (https://www.openpolicyagent.org/docs/deployments#capabilities).
#
# The input is taken as it is: its fields are read, and it is handed on whole to the policy's own
# rules alone. A policy that hands it to a built-in function, or puts it into a collection or goes
# through it, could decide another input than the one that it was given.

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
#: What may be done with the whole input, for it leaves it as it is.
_LEAVES_INPUT = (
    "AssignVarStmt",
    "AssignVarOnceStmt",
    "ReturnLocalStmt",
    "IsDefinedStmt",
    "IsUndefinedStmt",
    "ResetLocalStmt",
)
_OPERANDS = ("source", "key", "value", "a", "b")

#: A variable by its function and its number; None stands for any constant.
Variable = tuple[str, int | None]


def excess(plan: Plan) -> str | None:
    """The first thing that a policy may not do, with its place; None if it may do all."""
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
    """Why a statement in the function `name` is refused."""
    kind, inner = statement["type"], statement["stmt"]
    if kind not in _STATEMENTS:
        return _REASONS.get(kind, f"a policy may not use {kind}")
    builtin = kind == "CallStmt" and inner["func"] not in policy_functions
    if builtin and inner["func"] not in BUILTINS:
        return f"{inner['func']} is none of the functions that a policy may call"
    if kind in _LEAVES_INPUT or (kind == "CallStmt" and not builtin):
        return None
    if kind == "NotEqualStmt" and inner["b"] == {"type": "bool", "value": False}:
        return None  # `input` as a condition
    keys = ("key",) if kind == "DotStmt" else _OPERANDS  # of a field only its name
    operands = [*(inner[key] for key in keys if key in inner), *inner.get("args", ())]
    if any((name, local(value)) in inputs for value in operands):
        return (
            "the input is changed or gone through as a whole, so that another input could be "
            "decided: read its fields by name, as in input.tier"
        )
    return None


# --- which clauses an evaluation reached ---------------------------------------------------------
#
# In the function of a rule every clause, be it a body, an `else` or a `default`, is a block that
# ends with setting the rule's value. Before that statement goes one that prints the clause's
# number, so it is printed where all before it has held. A policy cannot print: see BUILTINS.

_SETS_VALUE = ("AssignVarOnceStmt", "SetAddStmt", "ObjectInsertOnceStmt", "ObjectInsertStmt")
_MARK = re.compile(rb"^reached-(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its path without `data.`, how many arguments it takes, and its marks.

    `entered` is the mark that it was asked at all; `clauses` has the place of each clause by mark.
    `input_fields` has the place where it reads each field of the input, `other_fields` the place of
    each that is read of what it hands on and is not the input. `calls` are the rules that it needs.
    """

    path: str
    arguments: int
    entered: str
    clauses: Mapping[str, str]
    has_default: bool
    input_fields: Mapping[str, str]
    other_fields: Mapping[str, str]
    calls: Sequence[str]


def mark(plan: Plan) -> list[Rule]:
    """The rules of a plan, which is changed: each of their clauses says when it is reached."""
    free = max(_integers(plan["funcs"])) + 1  # variables have numbers
    flow = Flow.of(plan)
    rules = []
    for function in rule_functions(plan):
        has_default = any(_is_default(block, function) for block in function["blocks"])
        read = flow.input_fields(function), flow.other_fields(function), calls(function)
        clauses = [block for block in blocks(function["blocks"]) if _is_clause(block, function)]
        places = {}
        for block in clauses:
            position = location(plan, block, function)
            places[_insert_mark(plan, block, len(block["stmts"]) - 1, free)] = position
        entered = _insert_mark(plan, function["blocks"][0], 0, free)
        rules.append(Rule(path(function), arguments(function), entered, places, has_default, *read))
    return rules


def marks_in(printed: bytes) -> list[str]:
    """The marks that were printed."""
    return sorted({number.decode() for number in _MARK.findall(printed)})


def vacuous(plan: Plan) -> list[str]:
    """The places of each `every` with a `not` in its body, which rego-cpp takes to hold always."""
    return [
        location(plan, {"stmts": [statement]}, function)
        for function in rule_functions(plan)
        for statement in statements(function)
        if _is_every(statement)
        and any(
            s["type"] == "NotStmt" for s in statements({"blocks": [statement["stmt"]["block"]]})
        )
    ]


def names(plan: Plan) -> list[str]:
    """The paths of the rules without arguments, which can be asked for."""
    return [path(f) for f in rule_functions(plan) if not arguments(f)]


def _insert_mark(plan: Plan, block: dict[str, Any], index: int, free: int) -> str:
    """`print` of a mark, as it is compiled: of an array of a set of what is printed."""
    strings = plan["static"]["strings"]
    number = len(strings)
    strings.append({"value": f"reached-{number}"})
    a_set, an_array = ({"type": "local", "value": free + n} for n in range(2))
    add = {"value": {"type": "string_index", "value": number}, "set": free}
    call = {"func": "internal.print", "args": [an_array], "result": free + 2}
    block["stmts"][index:index] = [
        {"type": "MakeSetStmt", "stmt": {"target": free}},
        {"type": "SetAddStmt", "stmt": add},
        {"type": "MakeArrayStmt", "stmt": {"capacity": 1, "target": free + 1}},
        {"type": "ArrayAppendStmt", "stmt": {"array": free + 1, "value": a_set}},
        {"type": "CallStmt", "stmt": call},
    ]
    return str(number)


def _is_every(statement: Statement) -> bool:
    """Whether a statement looks in a collection for an element that its block does not hold for."""
    if statement["type"] != "ScanStmt":
        return False
    kinds = [inner["type"] for inner in statement["stmt"]["block"]["stmts"]]
    return "BlockStmt" in kinds and "IsUndefinedStmt" in kinds


def _is_clause(block: Mapping[str, Any], function: Function) -> bool:
    """Whether a block ends with a value of the rule, and not with one of a comprehension in it."""
    if not block["stmts"] or block["stmts"][-1]["type"] not in _SETS_VALUE:
        return False
    if [s["type"] for s in block["stmts"]] == ["IsDefinedStmt", "AssignVarOnceStmt"]:
        return False  # it hands on the value that one clause of an `else` chain has set
    statement = block["stmts"][-1]["stmt"]
    collection = statement.get("set", statement.get("object"))
    return collection in (None, function["return"])


def _is_default(block: Mapping[str, Any], function: Function) -> bool:
    """Whether a block sets the rule's value where nothing else has."""
    if not block["stmts"] or block["stmts"][0]["type"] != "IsUndefinedStmt":
        return False
    return bool(block["stmts"][0]["stmt"]["source"] == function["return"])


def _integers(tree: Any) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    elif isinstance(tree, list | dict):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _integers(below)
