"""A compiled policy: OPA's intermediate representation, https://www.openpolicyagent.org/docs/ir.

rego-cpp compiles modules to it: a function per rule, whose first two parameters are the input and
the data; blocks of statements; numbers for variables. Names stand in it as the engine calls them,
however the text spells them.
"""

from collections.abc import Iterator, Mapping, Sequence
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
