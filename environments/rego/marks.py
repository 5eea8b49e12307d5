"""Which clauses of a policy an evaluation reached: the compiled plan, with marks in it.

In the function of a rule every clause, be it a body, an `else` or a `default`, is a block that ends
with setting the rule's value. Before that statement goes one that prints the clause's number, so it
is printed where all before it has held. A policy cannot print by itself, see `capabilities.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.rego.capabilities import Flow
from environments.rego.plan import (
    Function,
    Plan,
    Statement,
    arguments,
    blocks,
    calls,
    location,
    path,
    rule_functions,
)

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
    return [_mark_rule(plan, function, free, flow) for function in rule_functions(plan)]


def marks_in(printed: bytes) -> list[str]:
    """The marks that were printed."""
    return sorted({number.decode() for number in _MARK.findall(printed)})


def vacuous(plan: Plan) -> list[str]:
    """The places of each `every` with a `not` in its body, which rego-cpp takes to hold always."""
    return [
        location(plan, {"stmts": [statement]}, function)
        for function in rule_functions(plan)
        for block in blocks(function["blocks"])
        for statement in block["stmts"]
        if _is_every(statement) and "NotStmt" in _kinds([statement["stmt"]["block"]])
    ]


def names(plan: Plan) -> list[str]:
    """The paths of the rules without arguments, which can be asked for."""
    return [path(f) for f in rule_functions(plan) if not arguments(f)]


def _mark_rule(plan: Plan, function: Function, free: int, flow: Flow) -> Rule:
    has_default = any(_is_default(block, function) for block in function["blocks"])
    read = flow.input_fields(function), flow.other_fields(function), calls(function)
    clauses = [block for block in blocks(function["blocks"]) if _is_clause(block, function)]
    places = {}
    for block in clauses:
        position = location(plan, block, function)
        places[_insert_mark(plan, block, len(block["stmts"]) - 1, free)] = position
    entered = _insert_mark(plan, function["blocks"][0], 0, free)
    return Rule(path(function), arguments(function), entered, places, has_default, *read)


def _insert_mark(plan: Plan, block: dict[str, Any], index: int, free: int) -> str:
    strings = plan["static"]["strings"]
    number = len(strings)
    strings.append({"value": f"reached-{number}"})
    block["stmts"][index:index] = _print_statements(number, free)
    return str(number)


def _is_every(statement: Statement) -> bool:
    """Whether a statement goes through a collection for an element whose block does not hold."""
    if statement["type"] != "ScanStmt":
        return False
    kinds = [inner["type"] for inner in statement["stmt"]["block"]["stmts"]]
    return "BlockStmt" in kinds and "IsUndefinedStmt" in kinds


def _kinds(outer: list[Any]) -> set[str]:
    return {statement["type"] for block in blocks(outer) for statement in block["stmts"]}


def _is_clause(block: Mapping[str, Any], function: Function) -> bool:
    """Whether a block ends with a value of the rule, and not with one of a comprehension in it."""
    if not block["stmts"] or block["stmts"][-1]["type"] not in _SETS_VALUE:
        return False
    statement = block["stmts"][-1]["stmt"]
    collection = statement.get("set", statement.get("object"))
    return collection in (None, function["return"]) and not _joins_else(block)


def _is_default(block: Mapping[str, Any], function: Function) -> bool:
    """Whether a block sets the rule's value where nothing else has."""
    if not block["stmts"] or block["stmts"][0]["type"] != "IsUndefinedStmt":
        return False
    return bool(block["stmts"][0]["stmt"]["source"] == function["return"])


def _joins_else(block: Mapping[str, Any]) -> bool:
    """Whether a block hands on the value that one clause of an `else` chain has set."""
    kinds = [statement["type"] for statement in block["stmts"]]
    return kinds == ["IsDefinedStmt", "AssignVarOnceStmt"]


def _print_statements(text: int, free: int) -> list[dict[str, Any]]:
    """`print` of a text, as it is compiled: of an array of a set of what is printed."""
    a_set, an_array = ({"type": "local", "value": free + n} for n in range(2))
    add = {"value": {"type": "string_index", "value": text}, "set": free}
    call = {"func": "internal.print", "args": [an_array], "result": free + 2}
    return [
        {"type": "MakeSetStmt", "stmt": {"target": free}},
        {"type": "SetAddStmt", "stmt": add},
        {"type": "MakeArrayStmt", "stmt": {"capacity": 1, "target": free + 1}},
        {"type": "ArrayAppendStmt", "stmt": {"array": free + 1, "value": a_set}},
        {"type": "CallStmt", "stmt": call},
    ]


def _integers(tree: Any) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    elif isinstance(tree, list | dict):
        for below in tree.values() if isinstance(tree, dict) else tree:
            yield from _integers(below)
