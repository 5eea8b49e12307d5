"""Which clauses of a policy an evaluation reached: the compiled plan, with marks in it.

rego-cpp compiles modules to OPA's intermediate representation
(https://www.openpolicyagent.org/docs/ir): a function per rule, in which every clause, be it a body,
an `else` or a `default`, is a block that ends with setting the rule's value. Before that statement
goes one that prints the clause's number, so it is printed where all before it has held.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_RULE = "g0.data."
_SETS_VALUE = ("AssignVarOnceStmt", "SetAddStmt", "ObjectInsertOnceStmt", "ObjectInsertStmt")
_MARK = re.compile(rb"^reached-(\d+)$", re.MULTILINE)

Plan = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its path without `data.`, how many arguments it takes, and its marks.

    `entered` is the mark that it was asked at all; `clauses` has the place of each clause by mark.
    """

    path: str
    arguments: int
    entered: str
    clauses: Mapping[str, str]


def mark(plan: Plan) -> list[Rule]:
    """The rules of a plan, which is changed: each of their clauses says when it is reached."""
    free = max(_integers(plan["funcs"])) + 1  # variables have numbers
    return [_mark_rule(plan, function, free) for function in _rule_functions(plan)]


def marks_in(printed: bytes) -> list[str]:
    """The marks that were printed."""
    return sorted({number.decode() for number in _MARK.findall(printed)})


def vacuous(plan: Plan) -> list[str]:
    """The places of each `every` with a `not` in its body, which rego-cpp takes to hold always."""
    files = plan["static"]["files"]
    return [
        _place({"stmts": [statement]}, function, files)
        for function in _rule_functions(plan)
        for block in _blocks(function["blocks"])
        for statement in block["stmts"]
        if _is_every(statement) and "NotStmt" in _kinds([statement["stmt"]["block"]])
    ]


def names(plan: Plan) -> list[str]:
    """What can be asked for: the paths of the rules without arguments."""
    return [_path(f) for f in _rule_functions(plan) if not _arguments(f)]


def _rule_functions(plan: Plan) -> list[dict[str, Any]]:
    return [f for f in plan["funcs"]["funcs"] if f["name"].startswith(_RULE)]


def _path(function: Mapping[str, Any]) -> str:
    return str(function["name"]).removeprefix(_RULE)


def _arguments(function: Mapping[str, Any]) -> int:
    return len(function["params"]) - 2  # the first two are the input and the data


def _mark_rule(plan: Plan, function: Mapping[str, Any], free: int) -> Rule:
    files = plan["static"]["files"]
    clauses = [block for block in _blocks(function["blocks"]) if _is_clause(block, function)]
    places = {}
    for block in clauses:
        place = _place(block, function, files)
        places[_insert_mark(plan, block, len(block["stmts"]) - 1, free)] = place
    entered = _insert_mark(plan, function["blocks"][0], 0, free)
    return Rule(_path(function), _arguments(function), entered, places)


def _insert_mark(plan: Plan, block: dict[str, Any], at: int, free: int) -> str:
    strings = plan["static"]["strings"]
    number = len(strings)
    strings.append({"value": f"reached-{number}"})
    block["stmts"][at:at] = _print_statements(number, free)
    return str(number)


def _blocks(blocks: list[Any]) -> Iterator[dict[str, Any]]:
    for block in blocks:
        for statement in list(block["stmts"]):
            inner = statement["stmt"]
            yield from _blocks([*inner.get("blocks", ()), *filter(None, [inner.get("block")])])
        yield block


def _is_every(statement: Mapping[str, Any]) -> bool:
    """Whether a statement goes through a collection for an element whose block does not hold."""
    if statement["type"] != "ScanStmt":
        return False
    kinds = [inner["type"] for inner in statement["stmt"]["block"]["stmts"]]
    return "BlockStmt" in kinds and "IsUndefinedStmt" in kinds


def _kinds(blocks: list[Any]) -> set[str]:
    return {statement["type"] for block in _blocks(blocks) for statement in block["stmts"]}


def _is_clause(block: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
    """Whether a block ends with a value of the rule, and not with one of a comprehension in it."""
    if not block["stmts"] or block["stmts"][-1]["type"] not in _SETS_VALUE:
        return False
    statement = block["stmts"][-1]["stmt"]
    collection = statement.get("set", statement.get("object"))
    return collection in (None, function["return"]) and not _joins_else(block)


def _joins_else(block: Mapping[str, Any]) -> bool:
    """Whether a block hands on the value that one clause of an `else` chain has set."""
    kinds = [statement["type"] for statement in block["stmts"]]
    return kinds == ["IsDefinedStmt", "AssignVarOnceStmt"]


def _place(block: Mapping[str, Any], function: Mapping[str, Any], files: list[Any]) -> str:
    """`file:line` of a block, else of its rule, for constants have no place."""
    statements = [*block["stmts"], *function["blocks"][0]["stmts"]]
    place = next(s["stmt"] for s in statements if "row" in s["stmt"])
    return f"{files[place['file']]['value']}:{place['row'] + 1}"


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
