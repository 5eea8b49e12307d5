"""Prompts, rollouts, scores, failures and errors, which engines and environments exchange.

The environment itself is in `contract`. This package imports neither torch nor ray.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypedDict, TypeVar, get_args

from pydantic import BaseModel, ValidationError

Scope = Literal["rollout", "prompt", "set"]

#: In the evidence of a reply that could not be read: why.
UNPARSEABLE = "unparseable"


#: The splits of prompts. Runs train on the first, choose a checkpoint by the second and are judged
#: on the third; controls belong to no counterfactual set and are there where a task needs them.
TRAIN_SPLIT, VALIDATION_SPLIT, TEST_SPLIT = "train", "validation", "test"
CONTROL_SPLIT = "control"


#: The mean of the scores' values: the objective of an environment that names none.
REWARD = "reward"


class CodedError(Exception):
    """An error with a code, `<place>.<fault>`: it stays where the message is improved."""

    def __init__(self, code: str, message: str) -> None:
        # `args` stay those of the call, whatever its signature: so the error can be pickled.
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


def code_of(error: BaseException | None, default: str) -> str:
    """Return the code of an error, `default` where it has none."""
    return error.code if isinstance(error, CodedError) else default


class SetupError(CodedError, ValueError):
    """An environment lacks something it needs; `remedy` says what the user can do."""

    remedy: ClassVar[str] = ""


class IncompleteSetError(ValueError):
    """A set-scoped environment was called with a part of a counterfactual set."""


class ScoreError(CodedError, ValueError):
    """A score that nothing can be trained on: NaN or infinity."""


class OutcomeError(CodedError, ValueError):
    """`measure` was called with scores that lack what it needs."""


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One line of prompts.jsonl; `metadata` is JSON: the race, the gold answer, ..."""

    id: str
    task: str
    messages: tuple[Message, ...]
    set_id: str  # shared by the variants of one counterfactual set
    split: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of one prompt. GRPO's group is the rollouts that share `prompt_id`."""

    prompt_id: str
    set_id: str
    split: str
    prompt: str
    completion: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


#: What prevented an answer or a score; failures are counted by it. docs/judges.md says what
#: each is in NeMo Gym's `failure_kind`, whose spelling is taken where it means the same.
FailureKind = Literal[
    "transport_timeout",  # no whole answer in time
    "transport_unreachable",  # no connection
    "server_error",  # HTTP 5xx
    "rate_limit",  # HTTP 429
    "rejected",  # HTTP 4xx, or a request that is too long for the model
    "invalid_reply",  # what came back is not an answer, although asked for twice
    "policy",  # the policy gave no decision
    "no_comparison",  # nothing can be read that a reply would be compared with
    "cohort_incomplete",  # another reply of its set was lost, and they are scored together
    "budget",  # what the run may spend is used up: the run stops
    "verifier_error",  # anything else in the environment or in the prompt's metadata
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for a missing answer or score: a kind to count by, and a text for a reader."""

    kind: FailureKind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in FAILURE_KINDS:
            raise ValueError(f"no kind of failure: {self.kind!r}; it is one of {FAILURE_KINDS}")

    def of(self, who: str) -> "Failure":
        """Return this failure with `who` before its text."""
        return Failure(self.kind, f"{who}: {self.text}")


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one rollout: a `value`, or the `error` that prevented one.

    `evidence` shows a reader why and nothing depends on it; that of a reply which could not be read
    has the key UNPARSEABLE. `outcome` is what `measure` needs besides value and components: the
    JSON of a model of the environment's own, which `outcomes_of` reads back.
    """

    value: float | None
    components: Mapping[str, float] = field(default_factory=dict)  # before their weights
    error: Failure | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    outcome: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.error is not None):
            raise ValueError("a score has either a value or the failure that prevented it")
        for name, number in {"value": self.value, **self.components}.items():
            if number is not None and not math.isfinite(number):
                raise ScoreError("score.not-finite", f"{name} of a score is {number}")


Outcome = TypeVar("Outcome", bound=BaseModel)


def outcomes_of(scores: Sequence[Score], kind: type[Outcome]) -> list[Outcome | None]:
    """The outcomes of scores; None for a failure that came before there was one.

    Raises `OutcomeError` for a score that has a value and no outcome, or one of another kind.
    """
    try:
        return [
            None
            if score.outcome is None and score.error is not None
            else kind.model_validate(score.outcome)
            for score in scores
        ]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, ("outcome", *first["loc"])))
        raise OutcomeError(
            "score.invalid-evidence",
            f"a score cannot be measured: {location}: {first['msg']}; "
            "`measure` needs the scores as `score` gave them, whatever became of their evidence",
        ) from None
