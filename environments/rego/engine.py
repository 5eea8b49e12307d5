"""Modules compiled and asked with regopy; faults that regopy lets pass are refused.

- an error within a built-in function makes the rule undefined: strict errors, `Output.ok()`
- a number that is set as a Python value is rounded to six decimals: the input is set as JSON
- input that cannot be read leaves the input before it in place: that raises, nothing is asked
- `not` in the body of `every` always holds: refused where rules are marked
- functions and statements that are none of `capabilities.py`: refused in the compiled plan
- recursion, a number beyond a double: an answer that is no JSON
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regopy  # type: ignore[import-untyped]

from environments.rego.capabilities import excess
from environments.rego.marks import Rule, mark, names, vacuous
from environments.rego.plan import Plan

_ENGINE_ERROR = re.compile(
    r"error \d+:([^|\n]{1,200})\|\d+\|\d+\s{1,40}\(errormsg \d+:([^\n]{1,300})"
)


class RegoError(ValueError):
    """Rego that gives no answer; the message says why."""


class Engine:
    """Compiled modules, whose rules without arguments can be asked."""

    def __init__(self, rego: regopy.Interpreter, bundle: regopy.Bundle) -> None:
        self._rego = rego
        self._bundle = bundle

    def ask(self, rule: str, input_json: str) -> Any:
        """Evaluate a rule, such as `dharma.decision`, for an input in JSON."""
        try:
            self._rego.set_input_term(input_json)
            output = self._rego.query_bundle_entrypoint(self._bundle, _entrypoint(rule))
        except (regopy.RegoError, ValueError, RecursionError):
            raise RegoError(f"{rule} has no answer: it names something unknown, or loops") from None
        if not output.ok():
            raise RegoError(f"{rule} ended with an error: a wrong type or rules in conflict")
        if len(output) != 1 or len(output[0].expressions) != 1:
            raise RegoError(f"{rule} is undefined")
        return output[0].expressions[0]


def compile_modules(modules: Mapping[str, str], rules: Sequence[str]) -> Engine:
    """Modules by file name, of which these rules will be asked. Raises `RegoError`."""
    with tempfile.TemporaryDirectory() as name:
        _plan(modules, rules, Path(name))
        return _load(Path(name))


def compile_marked(modules: Mapping[str, str]) -> tuple[Engine, list[Rule]]:
    """The same with every rule, and every clause printing its mark when it is reached."""
    with tempfile.TemporaryDirectory() as name:
        rules = names(_plan(modules, (), Path(name) / "names"))
        folder = Path(name) / "marked"
        plan = _plan(modules, rules, folder)
        if places := vacuous(plan):
            raise RegoError(
                f"{places[0]}: `not` in the body of `every` always holds in the in-process engine: "
                "put it into a rule of its own, or collect what is wrong and compare it with []"
            )
        marked = mark(plan)
        (folder / "plan.json").write_text(json.dumps(plan))
        return _load(folder), marked


def _plan(modules: Mapping[str, str], rules: Sequence[str], folder: Path) -> Plan:
    """The plan of a bundle that is saved in a folder. Raises `RegoError` for what it may not do."""
    rego = _interpreter()
    rego.save_bundle(str(folder), _build(rego, modules, rules))
    plan: Plan = json.loads((folder / "plan.json").read_text())
    if problem := excess(plan):
        raise RegoError(problem)
    return plan


def _load(folder: Path) -> Engine:
    rego = _interpreter()
    return Engine(rego, rego.load_bundle(str(folder)))


def _interpreter() -> regopy.Interpreter:
    rego = regopy.Interpreter()
    rego.strict_built_in_errors = True
    return rego


def _build(
    rego: regopy.Interpreter, modules: Mapping[str, str], rules: Sequence[str]
) -> regopy.Bundle:
    try:
        for name, text in modules.items():
            # A comment that ends the file without a line end is no comment to rego-cpp.
            rego.add_module(name, f"{text}\n")
        bundle = rego.build("true", [_entrypoint(rule) for rule in rules])
    except (regopy.RegoError, ValueError) as error:
        raise RegoError(f"cannot be compiled: {_reason(str(error))}") from None
    if not bundle.ok():
        raise RegoError("cannot be compiled")
    return bundle


def _entrypoint(rule: str) -> str:
    return rule.replace(".", "/")


def _reason(dump: str) -> str:
    match = _ENGINE_ERROR.search(dump)
    return f"{match[1]}: {match[2].rstrip(')')}" if match else dump[:200]
