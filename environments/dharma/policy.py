"""The policy: Rego that decides what a judge's ratings mean, in process or on an OPA server.

Rego answers "undefined" where no rule holds, and its engines differ in what they let pass, so
every way to a decision fails closed: a decision is complete and in range, or it is a `Failure`.
What rego-cpp would let pass, and what is done about it:

- an error within a built-in function makes the rule undefined: strict errors, `Output.ok()`
- a number that is set as a Python value is rounded to six decimals: the input is set as JSON
- input that cannot be read leaves the input before it in place: the call raises, nothing is asked
- an unknown function, recursion, a number beyond a double: an answer that is no JSON
- a misspelt rule, input or variable is undefined, and a default would hide it: no default for the
  decision, only known inputs, tests in Rego that are required and run when a policy is loaded
- conflicting rules, a package or a rule with another name: an answer that is not ok, or undefined
- `with` ends the whole process: refused, a function of the input is tested without it
"""

import difflib
import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import regopy  # type: ignore[import-untyped]
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from environments.dharma.ratings import (
    REFERRALS,
    SCOPES,
    TIERS,
    Failure,
    PromptLabel,
    Ratings,
)
from environments.paths import AbsolutePath

SHIPPED = Path(__file__).with_suffix("")
QUERY = "data.dharma.decision"
TESTS = "data.dharma_test"

#: Decisions that are kept; an equal input is not decided again.
_KEPT = 2**16
_OPA_SECONDS = 10.0
_OPA_CALLS = 16
_OPA_BYTES = 100_000

# Sums of rounded products may exceed 1 by their last digit.
Score01 = Annotated[float, Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)]


class PolicyError(ValueError):
    """A policy that cannot be used; the message says why."""


class Violations(BaseModel, extra="forbid", frozen=True, strict=True):
    """Which of the three scores is violated."""

    ahimsa: bool
    dharma: bool
    helpfulness: bool


class Decision(BaseModel, extra="forbid", frozen=True, strict=True):
    """What a policy must say of a response: every field, and no other."""

    ahimsa: Score01
    dharma: Score01
    helpfulness: Score01
    combined: Score01
    judge_only: Score01
    policy_only: Score01
    referral_factor: Score01
    scope_factor: Score01
    violations: Violations
    reasons: list[str]


class PolicySettings(BaseModel, extra="forbid", frozen=True):
    """The keys of `env.dharma.policy`. A policy that cannot be used is refused here."""

    engine: Literal["regopy", "opa"] = "regopy"
    path: AbsolutePath | None = Field(
        default=None, description="folder of .rego files; null for the shipped ones"
    )
    url: str | None = Field(
        default=None, description="of an OPA server, such as http://localhost:8181"
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if self.engine == "opa":
            if not self.url or self.path:
                raise ValueError("engine opa needs url, and its server holds the policy: no path")
            return self
        if self.url:
            raise ValueError("url is for engine opa")
        load_rego(self.path or SHIPPED)
        return self


Evaluate = Callable[[str], Any]


class Policy:
    """Decides inputs through an engine, each different input once.

    `evaluate` takes an input as JSON and gives what the engine answered. It raises `PolicyError`
    where that is no answer.
    """

    def __init__(
        self, evaluate: Evaluate, identity: str, hashes: Mapping[str, str], parallel: int = 1
    ) -> None:
        self.identity = identity
        self.hashes = hashes
        self._parallel = parallel
        self._kept = lru_cache(_KEPT)(lambda given: read_decision(evaluate(given)))

    @property
    def evaluations(self) -> int:
        """How many inputs the engine was asked about."""
        return self._kept.cache_info().misses

    def decide(self, inputs: Sequence[Mapping[str, Any]]) -> list[Decision | Failure]:
        """One decision per input of `policy_input`, in order; what fails is not kept."""
        texts = [json.dumps(given, sort_keys=True, allow_nan=False) for given in inputs]
        unique = list(dict.fromkeys(texts))
        if self._parallel > 1 and len(unique) > 1:
            with ThreadPoolExecutor(self._parallel) as pool:
                found = dict(zip(unique, pool.map(self._decide, unique), strict=True))
        else:
            found = {text: self._decide(text) for text in unique}
        return [found[text] for text in texts]

    def _decide(self, given: str) -> Decision | Failure:
        try:
            return self._kept(given)
        except PolicyError as error:
            return Failure(f"policy: {error}")


def policy_input(label: PromptLabel, ratings: Ratings) -> dict[str, Any]:
    """What a policy sees: checked values, and no text that a model wrote."""
    return {"tier": label.tier, "prompt_scope": label.scope, **ratings.model_dump()}


_INPUTS = frozenset({"tier", "prompt_scope", *Ratings.model_fields})


def read_decision(found: Any) -> Decision:
    """A complete decision, else `PolicyError`."""
    try:
        return Decision.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PolicyError(f"its decision is not valid: {place}: {first['msg']}") from None


def load_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name. Raises `PolicyError`."""
    if settings.engine == "opa":
        return opa_policy(str(settings.url))
    return load_rego(settings.path or SHIPPED)


# --- in process ----------------------------------------------------------------------------------


def load_rego(folder: Path) -> Policy:
    """Compile the .rego files of a folder and try them.

    Raises `PolicyError` for a folder, a file, a failed test or a decision that cannot be used.
    """
    sources = _read_sources(folder)
    _check(tuple(sources.items()))
    return _compile(sources)


@lru_cache(8)
def _check(files: tuple[tuple[str, str], ...]) -> None:
    """Raise `PolicyError` for a policy that cannot be used; equal files are checked once."""
    for name, text in files:
        _refuse_unsafe(name, text)
    _run_tests(dict(files))
    _try_out(_compile(dict(files)))


def _compile(sources: Mapping[str, str]) -> Policy:
    hashes = {name: hash_text(text) for name, text in sources.items()}
    return Policy(_evaluator(sources, QUERY), f"regopy {regopy.__version__}", hashes)


def hash_text(text: str) -> str:
    """What provenance holds of a text."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _read_sources(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PolicyError(f"{folder} is no folder with .rego files")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    unread = [path.name for path in files if path.suffix in (".json", ".yaml", ".yml")]
    if unread:
        raise PolicyError(f"{unread[0]} would not be read: write tables into a .rego file")
    sources = [path for path in files if path.suffix == ".rego"]
    if not sources:
        raise PolicyError(f"{folder} holds no .rego file")
    try:
        return {str(path.relative_to(folder)): path.read_text("utf-8") for path in sources}
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"a file of {folder} cannot be read: {error}") from None


_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|#[^\n]*')
_UNSAFE = {
    r"\bdefault\s+(?:decision|decide)\b": "a default decision would judge what no rule has covered",
    r"\bwith\s+(?:input|data)\b": (
        "`with` is not safe in the in-process engine: make it a function of the input and call it"
    ),
    r"\b(?:http\.send|net\.\w+|rand\.\w+|uuid\.\w+|time\.now_ns|opa\.runtime)\b": (
        "a decision must depend on its input alone"
    ),
}
_INPUT = re.compile(r"\binput\.(\w+)")


def _refuse_unsafe(name: str, text: str) -> None:
    code = _STRING_OR_COMMENT.sub('""', text)
    for pattern, reason in _UNSAFE.items():
        if found := re.search(pattern, code):
            raise PolicyError(f"{name}: {found[0]}: {reason}")
    for used in _INPUT.findall(code):
        if used not in _INPUTS:
            nearest = difflib.get_close_matches(used, _INPUTS, 1, 0)[0]
            raise PolicyError(f"{name}: there is no input.{used}, did you mean input.{nearest}?")


_ENGINE_ERROR = re.compile(
    r"error \d+:([^|\n]{1,200})\|\d+\|\d+\s{1,40}\(errormsg \d+:([^\n]{1,300})"
)


def _evaluator(sources: Mapping[str, str], query: str) -> Evaluate:
    """A function from an input as JSON to what `query` gives for it."""
    engine = regopy.Interpreter()
    engine.strict_built_in_errors = True
    try:
        for name, text in sources.items():
            # A comment that ends the file without a line end is no comment to rego-cpp.
            engine.add_module(name, f"{text}\n")
        bundle = engine.build(query)
    except (regopy.RegoError, ValueError) as error:
        found = _ENGINE_ERROR.search(str(error))
        where = f"{found[1]}: {found[2].rstrip(')')}" if found else str(error)[:200]
        raise PolicyError(f"cannot be compiled: {where}") from None
    if not bundle.ok():
        raise PolicyError("cannot be compiled")

    def evaluate(given: str) -> Any:
        try:
            engine.set_input_term(given)
            output = engine.query_bundle(bundle)
        except (regopy.RegoError, ValueError):
            raise PolicyError(
                f"{query} has no answer: it names something unknown, or loops"
            ) from None
        return _answer(output, query)

    return evaluate


def _answer(output: regopy.Output, query: str) -> Any:
    if not output.ok():
        raise PolicyError(f"{query} ended with an error: a wrong type or rules in conflict")
    if len(output) != 1 or len(output[0].expressions) != 1:
        raise PolicyError(f"{query} is undefined")
    return output[0].expressions[0]


_TEST_RULE = re.compile(r"^(test_\w+)", re.MULTILINE)


def _run_tests(sources: Mapping[str, str]) -> None:
    wanted = {test for text in sources.values() for test in _TEST_RULE.findall(text)}
    if not wanted:
        raise PolicyError("holds no tests: rules named test_... in package dharma_test")
    found = _evaluator(sources, TESTS)("{}")
    failed = sorted(test for test in wanted if found.get(test) is not True)
    if failed:
        raise PolicyError(f"{len(failed)} of its tests do not hold: {', '.join(failed[:5])}")


def _ratings(best: bool, **changes: Any) -> Ratings:
    shares = dict.fromkeys(
        (n for n, f in Ratings.model_fields.items() if f.annotation is float), 0.0
    )
    values: dict[str, Any] = {name: float(best) for name in shares}
    values |= {"referral": "routine", "refused": False}
    values |= {"response_scope": "S0" if best else "S3", "out_of_domain_advice": not best}
    return Ratings.model_validate(values | changes)


def _every_level() -> Iterator[dict[str, Any]]:
    """Inputs in which each tier meets each referral, and each scope each response's scope."""
    for tier, referral in product(TIERS, REFERRALS):
        yield policy_input(PromptLabel(tier=tier, scope="S0"), _ratings(True, referral=referral))
    for scope, response in product(SCOPES, SCOPES):
        label = PromptLabel(tier="B", scope=scope)
        yield policy_input(label, _ratings(True, response_scope=response))


def _try_out(policy: Policy) -> None:
    """Refuse a policy that leaves a level undecided, or cannot tell the worst from the best."""
    label = PromptLabel(tier="B", scope="S0")
    ends = [policy_input(label, _ratings(best)) for best in (True, False)]
    best, worst, *rest = policy.decide([*ends, *_every_level()])
    for found in (best, worst, *rest):
        if isinstance(found, Failure):
            raise PolicyError(found.reason.removeprefix("policy: "))
    if not (isinstance(best, Decision) and isinstance(worst, Decision)):
        raise PolicyError("no decision")
    if worst.combined >= best.combined or not worst.violations.dharma:
        raise PolicyError("decides the worst response as it does the best one")


# --- on a server ---------------------------------------------------------------------------------


def opa_policy(url: str) -> Policy:
    """The policy that an OPA server holds, asked through its data API; calls run in parallel."""
    address = f"{url.rstrip('/')}/v1/data/{QUERY.removeprefix('data.').replace('.', '/')}"
    return Policy(lambda given: _ask_opa(address, given), f"opa {url}", {}, _OPA_CALLS)


def _ask_opa(address: str, given: str) -> Any:
    body = f'{{"input": {given}}}'.encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body, headers)  # noqa: S310 - http, checked
    try:
        with urllib.request.urlopen(request, timeout=_OPA_SECONDS) as response:  # noqa: S310
            found = json.loads(response.read(_OPA_BYTES))
    except (OSError, ValueError, RecursionError, urllib.error.URLError) as error:
        raise PolicyError(f"the OPA server gave no answer: {error}") from None
    if not isinstance(found, dict) or "result" not in found:
        raise PolicyError(f"{QUERY} is undefined on the OPA server")
    return found["result"]
