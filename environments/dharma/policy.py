"""The policy: Rego that decides what a judge's ratings mean, in this process or on an OPA server.

A policy is the user's own code and is trusted like an environment. Its answers are not: Rego says
"undefined" where no rule holds, so an answer is a whole `Decision` in range, or a `Failure`.
"""

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, ClassVar, Literal, Self

import regopy  # type: ignore[import-untyped]
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from environments.base import Failure, SetupError
from environments.dharma.judge import PromptLabel, Ratings
from environments.yaml_file import AbsolutePath, plain_url

#: The policy that is used where no other is named.
SHIPPED = Path(__file__).with_name("rego")
#: The rule that decides: `decision` of package `dharma`.
RULE = "dharma/decision"
#: Decisions that are kept; an equal input is not decided again.
_KEPT = 2**16

# Sums of rounded products may exceed 1 by their last digit.
Score01 = Annotated[float, Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)]


class PolicyError(SetupError):
    """A policy that cannot be used; the message says why."""

    remedy: ClassVar[str] = "What a policy must be is in docs/dharma.md."


class Violations(BaseModel, extra="forbid", frozen=True, strict=True):
    """Which of the three scores is violated."""

    ahimsa: bool
    dharma: bool
    helpfulness: bool


class Decision(BaseModel, extra="forbid", frozen=True, strict=True):
    """A policy's decision on a response: it must have every field, and no other."""

    ahimsa: Score01
    dharma: Score01
    helpfulness: Score01
    combined: Score01
    judge_only: Score01
    policy_only: Score01
    referral_factor: Score01
    scope_factor: Score01
    violations: Violations
    # Rego's engines go through an object in orders of their own.
    reasons: Annotated[list[str], AfterValidator(sorted)]


Decided = Decision | Failure


class PolicySettings(BaseModel, extra="forbid", frozen=True, hide_input_in_errors=True):
    """A policy. Files that cannot be used are refused here, a server where it is first asked."""

    engine: Literal["regopy", "opa"] = "regopy"  #: in this process, or an OPA server
    path: AbsolutePath | None = Field(
        default=None, description="folder of .rego files; null for the shipped ones"
    )
    url: str | None = Field(
        default=None, description="of an OPA server, such as http://localhost:8181"
    )

    @field_validator("url")
    @classmethod
    def _plain_url(cls, url: str | None) -> str | None:
        return None if url is None else plain_url(url, ": it is kept with the run")

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if self.engine == "opa":
            if not self.url or self.path:
                raise ValueError("engine opa needs url, and its server holds the policy: no path")
            return self
        if self.url:
            raise ValueError("url is for engine opa")
        rego_policy(self.path or SHIPPED)
        return self


class Policy:
    """Decides inputs, each different one once; what fails is not kept.

    `evaluate` takes inputs as JSON and gives a decision, or a failure, of each in order.
    `sources` has the SHA-256 of what decides, by name.
    """

    def __init__(
        self,
        evaluate: Callable[[Sequence[str]], Sequence[Decided]],
        identity: str,
        sources: Mapping[str, str],
    ) -> None:
        self.identity = identity
        self.sources = sources
        self._evaluate = evaluate
        self._kept: dict[str, Decision] = {}
        self._lock = Lock()

    def decide(self, inputs: Sequence[Mapping[str, Any]]) -> list[Decided]:
        """One decision per input of `policy_input`, in order."""
        texts = [json.dumps(fields, sort_keys=True, allow_nan=False) for fields in inputs]
        with self._lock:
            misses = [text for text in dict.fromkeys(texts) if text not in self._kept]
            fresh = dict(zip(misses, self._evaluate(misses), strict=True)) if misses else {}
            decisions = [fresh[text] if text in fresh else self._kept[text] for text in texts]
            if len(self._kept) + len(fresh) > _KEPT:
                self._kept.clear()
            self._kept |= {text: d for text, d in fresh.items() if isinstance(d, Decision)}
        return decisions


def load_policy(settings: PolicySettings) -> Policy:
    """The policy that the settings name, which has decided once. Raises `PolicyError`."""
    if settings.engine == "opa":
        return opa_policy(str(settings.url))
    return rego_policy(settings.path or SHIPPED)


def policy_input(label: PromptLabel, ratings: Ratings) -> dict[str, Any]:
    """The input of a policy: checked values, and no text that a model wrote."""
    return {"tier": label.tier, "prompt_scope": label.scope, **ratings.model_dump()}


def read_decision(answer: Any) -> Decided:
    """A complete decision, else a failure."""
    try:
        return Decision.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join((".".join(map(str, first["loc"])), first["msg"]))
        return Failure("policy", f"the policy's decision is not valid: {reason}")


def hash_text(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


#: Each way to a decision must decide this response when a policy is loaded.
_TRIAL = policy_input(
    PromptLabel(tier="C", scope="S0"),
    Ratings(
        harm_avoidance=1.0,
        safety_context=1.0,
        domain_adherence=1.0,
        clarity=1.0,
        completeness=1.0,
        relevance=1.0,
        empathy=1.0,
        referral="none",
        response_scope="S0",
        out_of_domain_advice=False,
        refused=False,
    ),
)


def _tried(policy: Policy) -> Policy:
    [decided] = policy.decide([_TRIAL])
    if isinstance(decided, Failure):
        raise PolicyError("policy.no-decision", decided.text)
    return policy


# --- in this process ------------------------------------------------------------------------------


_COMPILER_ERROR = re.compile(r"error \d+:([^|\n]+)\|\d+\|\d+\s+\(errormsg \d+:([^\n]+)\)")


def rego_policy(folder: Path) -> Policy:
    """The policy in the .rego files of a folder. Raises `PolicyError`."""
    try:
        sources = {
            str(path.relative_to(folder)): path.read_text("utf-8")
            for path in sorted(folder.rglob("*.rego"))
        }
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError("policy.unreadable-file", f"{folder} cannot be read: {error}") from None
    if not sources:
        raise PolicyError("policy.no-rego", f"{folder} is not a folder with .rego files")
    if named := [name for name, text in sources.items() if "opa.runtime" in text]:
        raise PolicyError(
            "policy.environment",
            f"{named[0]} names opa.runtime, which holds this process's environment and its keys: "
            "a policy decides by its input alone",
        )
    rego = regopy.Interpreter()
    rego.log_level = regopy.rego_shared.LogLevel.NONE  # it prints to the terminal
    rego.strict_built_in_errors = True  # else an error within a function is "undefined"
    try:
        for name, text in sources.items():
            # rego-cpp reads a last comment on to the next file unless its line ends.
            rego.add_module(name, f"{text}\n")
        bundle = rego.build("true", [RULE])
    except (regopy.RegoError, ValueError) as error:
        match = _COMPILER_ERROR.search(str(error))
        reason = f"{match[1]}: {match[2]}" if match else str(error)[:200]
        raise PolicyError("policy.uncompilable", f"{folder} does not compile: {reason}") from None

    def decide(text: str) -> Decided:
        try:
            rego.set_input_term(text)  # as a Python value it would be rounded to six decimals
            output = rego.query_bundle_entrypoint(bundle, RULE)
        except (regopy.RegoError, ValueError, RecursionError) as error:
            return Failure("policy", f"{RULE} has no answer: {type(error).__name__}")
        if not output.ok():
            return Failure("policy", f"{RULE} ended with an error: a wrong type, or a conflict")
        if len(output) != 1 or len(output[0].expressions) != 1:
            return Failure("policy", f"{RULE} is undefined")
        return read_decision(output[0].expressions[0])

    hashes = {name: hash_text(text) for name, text in sources.items()}
    return _tried(
        Policy(
            lambda texts: [decide(text) for text in texts], f"regopy {regopy.__version__}", hashes
        )
    )


# --- on an OPA server (https://www.openpolicyagent.org/docs/rest-api) -----------------------------


#: For one request.
_SECONDS = 10.0
_CALLS = 16


def opa_policy(url: str) -> Policy:
    """The policy on a server, with the hashes of its texts as of now. Raises `PolicyError`."""

    def decide(text: str) -> Decided:
        try:
            answer = _ask(url, f"/v1/data/{RULE}", f'{{"input": {text}}}')
        except PolicyError as error:
            return Failure("policy", str(error))
        if answer is None:
            return Failure("policy", f"{RULE} is undefined on the OPA server")
        return read_decision(answer)

    def evaluate(texts: Sequence[str]) -> list[Decided]:
        with ThreadPoolExecutor(_CALLS) as pool:
            return list(pool.map(decide, texts))

    modules = _ask(url, "/v1/policies")
    try:
        hashes = {str(module["id"]): hash_text(module["raw"]) for module in modules}
    except (KeyError, TypeError, AttributeError):
        raise PolicyError(
            "opa.malformed", f"{url} does not list its policies as OPA does"
        ) from None
    return _tried(Policy(evaluate, f"opa {url}", hashes))


def _ask(url: str, path: str, body: str | None = None) -> Any:
    """The result of a request, None without one. Raises `PolicyError`."""
    data = None if body is None else body.encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + path, data, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310
            return json.load(response).get("result")
    except urllib.error.HTTPError as error:
        raise PolicyError("opa.status", f"OPA answered {path} with HTTP {error.code}") from None
    except (OSError, HTTPException) as error:
        raise PolicyError("opa.no-answer", f"OPA gave no answer: {error}") from None
    except (ValueError, AttributeError, RecursionError):
        raise PolicyError("opa.malformed", f"what answered {path} is not OPA") from None
