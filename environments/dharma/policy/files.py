"""A policy in .rego files: read, refused where it could fail open, tested, tried, and run.

What rego-cpp would let pass beside what `environments.rego.worker` refuses:

- a misspelt rule, input or variable is undefined, and a default would hide it: no default for the
  decision, only known inputs, tests in Rego that are required and run when a policy is loaded
- `else` is a default by another name: a clause that neither tests nor cases reach is refused
- conflicting rules, a package or a rule with another name: an answer that is not ok, or undefined
- a decision on an input of the policy's own making: nothing else may be handed on in its place

All of this is looked up in the compiled plan or shows in what is decided; the text is not searched.
"""

import difflib
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import regopy  # type: ignore[import-untyped]

from environments.base import Failure
from environments.dharma.policy.decision import (
    RULE,
    Decided,
    Policy,
    PolicyError,
    hash_text,
    input_text,
    read_decision,
    refuse_unfit,
    try_cases,
)
from environments.dharma.ratings import Ratings
from environments.rego.plan import Rule
from environments.rego.process import Limits, ProcessEndedError, RegoProcess
from environments.rego.worker import RegoError

_INPUTS = frozenset({"tier", "prompt_scope", *Ratings.model_fields})
_TEST_PACKAGE = "dharma_test."
#: A default of these would decide: the rule, and the function by which a test calls it.
_DECIDING = (RULE, "dharma.decide")
#: For compiling, all tests and all cases together; the shipped policy takes a second.
_LOADING = Limits(total_seconds=20.0)


def load_rego(folder: Path) -> Policy:
    """The policy in the .rego files of a folder, once it has passed `check_rego`."""
    sources = _read_sources(folder)
    coverage = _check(tuple(sources.items()))
    process = RegoProcess(sources, [RULE])

    def evaluate(texts: Sequence[str]) -> list[Decided]:
        return [_decide(process, text)[0] for text in texts]

    hashes = {name: hash_text(text) for name, text in sources.items()}
    return Policy(evaluate, f"regopy {regopy.__version__}", hashes, coverage)


def check_rego(folder: Path) -> None:
    """Raise `PolicyError` for a folder, a file, a test or a decision that cannot be used."""
    _check(tuple(_read_sources(folder).items()))


def _decide(process: RegoProcess, text: str) -> tuple[Decided, Sequence[str]]:
    try:
        answer, reached = process.ask(RULE, text)
        return read_decision(answer), reached
    except (RegoError, PolicyError) as error:
        return Failure("policy", str(error)), ()


def _read_sources(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PolicyError("policy.no-folder", f"{folder} is no folder with .rego files")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    unread = [path.name for path in files if path.suffix in (".json", ".yaml", ".yml")]
    if unread:
        raise PolicyError(
            "policy.unread-file", f"{unread[0]} would not be read: write tables into a .rego file"
        )
    sources = [path for path in files if path.suffix == ".rego"]
    if not sources:
        raise PolicyError("policy.no-rego", f"{folder} holds no .rego file")
    try:
        return {str(path.relative_to(folder)): path.read_text("utf-8") for path in sources}
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            "policy.unreadable-file", f"a file of {folder} cannot be read: {error}"
        ) from None


@lru_cache(8)
def _check(files: tuple[tuple[str, str], ...]) -> Mapping[str, int]:
    """The coverage of a policy that can be used, else `PolicyError`; equal files once."""
    try:
        with closing(RegoProcess(dict(files), limits=_LOADING)) as process:
            _refuse_misread(process.rules)
            _refuse_made_up(process.rules)
            by_tests = _run_tests(process)
            by_cases = _try_out(process)
    except RegoError as error:
        raise PolicyError(error.code, str(error)) from None
    clauses = {n for rule in process.rules if not _in_tests(rule.path) for n in rule.clauses}
    places = [
        f"{position} ({rule.path})"
        for rule in process.rules
        for number, position in rule.clauses.items()
        if number in clauses - by_tests - by_cases
    ]
    if places:
        raise PolicyError(
            "policy.unreached-clause",
            f"{', '.join(places[:5])}: reached by no test and no case that it was tried with, so "
            "what it decides is unknown: write a test that reaches it, or take it away",
        )
    return {
        "clauses": len(clauses),
        "reached_by_tests": len(clauses & by_tests),
        "reached_by_cases": len(clauses & by_cases),
    }


def _refuse_misread(rules: Sequence[Rule]) -> None:
    """Raise `PolicyError` for a default decision, and for a field that the input does not have."""
    for rule in rules:
        if rule.has_default and rule.path in _DECIDING:
            first = next(iter(rule.clauses.values()))  # a default has no place in a plan
            raise PolicyError(
                "policy.default-decision",
                f"{first}: default {_name(rule)}: a default decision would judge what no rule has "
                "covered",
            )
        for field, position in rule.input_fields.items():
            if field not in _INPUTS:
                nearest = difflib.get_close_matches(field, _INPUTS, 1, 0)[0]
                raise PolicyError(
                    "policy.unknown-input",
                    f"{position}: there is no input.{field}, did you mean input.{nearest}?",
                )


def _refuse_made_up(rules: Sequence[Rule]) -> None:
    """Raise `PolicyError` for rules that decide an input of their own, as only tests may."""
    deciding = [rule for rule in rules if not _in_tests(rule.path)]
    for rule in deciding:
        if rule_path := next(filter(_in_tests, rule.calls), None):
            raise PolicyError(
                "policy.needed-test",
                f"{rule.path} needs {rule_path}: a policy may not need its tests",
            )
    for rule in deciding:
        if field := next((name for name in rule.other_fields if name in _INPUTS), None):
            raise PolicyError(
                "policy.other-input",
                f"{rule.other_fields[field]}: {field} is read of something else than the input, so "
                "that another input could be decided: hand on the input as it is",
            )


# --- tests, cases, and what they reach -----------------------------------------------------------


def _in_tests(path: str) -> bool:
    return path.startswith(_TEST_PACKAGE)


def _run_tests(process: RegoProcess) -> set[str]:
    """The marks that the tests reach. Raises `PolicyError` unless every test is one and holds."""
    tests = [rule for rule in process.rules if _name(rule).startswith(("test_", "todo_"))]
    if not tests:
        raise PolicyError(
            "policy.no-tests", "holds no tests: rules named test_... in package dharma_test"
        )
    policy = {rule.entered for rule in process.rules if not _in_tests(rule.path)}
    runs = {_name(test): _run_test(process, test, policy) for test in tests}
    problems = [f"{name} {problem}" for name, (problem, _) in runs.items() if problem]
    if problems:
        raise PolicyError(
            "policy.failed-tests",
            f"{len(problems)} of its tests do not hold: {'; '.join(problems[:5])}",
        )
    return {number for _, reached in runs.values() for number in reached}


def _run_test(
    process: RegoProcess, test: Rule, policy: set[str]
) -> tuple[str | None, Sequence[str]]:
    """Why a test shows nothing, None where it holds, and the marks that it reached.

    Raises `PolicyError` where it takes more than the limits: the others are not run.
    """
    if problem := _no_test(test):
        return problem, ()
    try:
        value, reached = process.ask(test.path, "{}")
    except ProcessEndedError as error:
        raise PolicyError(error.code, f"{_name(test)}: {error}") from None
    except RegoError as error:
        return f"fails: {error}", ()
    if value is not True:
        return f"fails: it is {value!r:.40}", ()
    return (None if policy & set(reached) else "asks nothing of the policy"), reached


def _name(rule: Rule) -> str:
    return rule.path.rpartition(".")[2]


def _no_test(rule: Rule) -> str | None:
    """Why a rule that is named like a test is none."""
    if _name(rule).startswith("todo_"):
        return "is still to be done"
    if not _in_tests(rule.path):
        return "belongs into package dharma_test"
    if rule.arguments:
        return "takes arguments, so nobody calls it"
    if len(rule.clauses) != 1:
        return "has several bodies, so one that fails is not seen"
    return None


def _try_out(process: RegoProcess) -> set[str]:
    """The marks that the cases reach. Raises `PolicyError` for what cannot be used."""
    decisions: list[Decided] = []
    marks: set[str] = set()
    for text in map(input_text, try_cases()):
        decision, reached = _decide(process, text)
        if isinstance(decision, Failure):
            raise PolicyError("policy.failed-test-case", decision.text)
        decisions.append(decision)
        marks.update(reached)
    refuse_unfit(decisions)
    return marks
