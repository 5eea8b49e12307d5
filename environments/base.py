"""The contract: what goes into an environment, what comes out, what both engines rely on.

    prompts.jsonl -> engine -> Rollout[] -> environment.score -> Score[] -> update
                                   |               |
                                   +-- evaluation -+--> environment.measure -> intervals

The smallest environment wants short answers and sees one rollout at a time:

    class Brief:
        name = "brief"
        scope = "rollout"

        class Settings(BaseModel, extra="forbid", frozen=True):
            limit: int = 100

        def __init__(self, settings): self.limit = settings.limit

        def score(self, rollouts):
            return [Score(float(len(r.completion) <= self.limit)) for r in rollouts]

        def measure(self, rollouts, scores):
            rate = Mean([score.value for score in scores], better="higher")
            return measure_means([r.prompt_id for r in rollouts], {"brief_rate": rate})

Promises, each a test in tests/environments/test_contract.py:

 1. Scoring is deterministic given its inputs and caches.
 2. Order in is order out: `score(rollouts)[i]` belongs to `rollouts[i]`.
 3. A completion is hostile input: no text makes `score` raise or hang.
 4. An incomplete counterfactual set raises `IncompleteSetError`: it is the caller's bug.
 5. What could not be scored is `Score(None, error=Failure(...))`, never a number.
 6. A reply that breaks the format scores strictly below every reply that keeps it. Where nothing
    could be read, the evidence says why under the key `UNPARSEABLE`.
 7. The gold answer, where there is one, scores the maximum.

This package imports neither torch nor ray; a model or an encoder is handed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    get_args,
    runtime_checkable,
)

from pydantic import BaseModel, ValidationError

from environments.measurement import Measurement, Modes
from environments.presentation import Presentation

if TYPE_CHECKING:  # they are written in terms of this module
    from environments.chat.model import ChatModel
    from environments.encoder import Encoder, EncoderSettings

Scope = Literal["rollout", "prompt", "set"]

#: What means nothing for the decision: a detail, and other words for the same facts.
Yardstick = Literal["placebo", "paraphrase"]
YARDSTICKS: tuple[Yardstick, ...] = get_args(Yardstick)

#: In the evidence of a reply that could not be read: why.
UNPARSEABLE = "unparseable"


#: The splits of prompts. Runs train on the first, choose a checkpoint by the second and are judged
#: on the third; controls belong to no counterfactual set and are there where a task needs them.
TRAIN_SPLIT, VALIDATION_SPLIT, TEST_SPLIT = "train", "validation", "test"
CONTROL_SPLIT = "control"


#: The mean of the scores' values: the objective of an environment that names none.
REWARD = "reward"


class SetupError(ValueError):
    """An environment lacks something it needs; `remedy` says what the user can do."""

    remedy: ClassVar[str] = ""


class IncompleteSetError(ValueError):
    """A set-scoped environment was called with a part of a counterfactual set."""


class OutcomeError(ValueError):
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


#: What prevented an answer or a score; failures are counted by it. docs/judge-client.md says what
#: each is in NeMo Gym's `failure_kind`, whose spelling is taken where it means the same.
FailureKind = Literal[
    "transport_timeout",  # no whole answer in time
    "transport_unreachable",  # no connection
    "server_error",  # HTTP 5xx
    "rate_limit",  # HTTP 429
    "rejected",  # HTTP 4xx, or a request that is too long for the model
    "invalid_reply",  # what came back is no answer, although it was asked for twice
    "policy",  # the policy gave no decision
    "no_comparison",  # nothing can be read that a reply would be compared with
    "budget",  # what the run may spend is used up: the run stops
    "verifier_error",  # anything else in the environment or in the prompt's metadata
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer or no score: a kind to count by, and a text for a reader."""

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


Outcome = TypeVar("Outcome", bound=BaseModel)


def outcomes_of(scores: Sequence[Score], kind: type[Outcome]) -> list[Outcome | None]:
    """The outcomes of scores; None for a failure that came before there was one.

    Raises `OutcomeError` for a score that has a value and no outcome, or one of another kind.
    """
    return [_outcome_of(score, kind) for score in scores]


def _outcome_of(score: Score, kind: type[Outcome]) -> Outcome | None:
    if score.outcome is None and score.error is not None:
        return None
    try:
        return kind.model_validate(score.outcome)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, ("outcome", *first["loc"])))
        raise OutcomeError(
            f"a score cannot be measured: {location}: {first['msg']}; "
            "`measure` needs the scores as `score` gave them, whatever became of their evidence"
        ) from None


class Environment(Protocol):
    """A source of reward, built from its `Settings`, which check its YAML.

    `scope` is how much one call of `score` must see together: a rollout, all generations of a
    prompt, or of all variants of a counterfactual set, see `ScoresSets`. What an environment or its
    settings can do besides is in the protocols below; nothing is asked of them but these.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope]
    Settings: ClassVar[type[BaseModel]]

    def __init__(self, settings: Any) -> None: ...

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout, in order."""

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The task's metrics over scored rollouts."""


# --- what an environment is handed before its first `score` --------------------------------------


@runtime_checkable
class NeedsReference(Protocol):
    """An environment that compares with the frozen model; `SamplesReference` are its settings."""

    @property
    def reference_generations(self) -> int:
        """Completions of the frozen model per prompt."""

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Keep what is needed of the frozen model's rollouts."""


@runtime_checkable
class NeedsChatModel(Protocol):
    """An environment whose settings can name a Hugging Face model to ask in this process."""

    def wanted_chat_model(self) -> str | None:
        """A folder or a name on the hub; None when no such model is needed."""

    def set_chat_model(self, model: "ChatModel") -> None:
        """Keep the model that was asked for."""


@runtime_checkable
class NeedsEncoder(Protocol):
    """An environment that searches by vectors."""

    def wanted_encoder(self) -> "EncoderSettings | None":
        """The models; None when no encoder is needed."""

    def set_encoder(self, encoder: "Encoder") -> None:
        """Keep the encoder that was asked for."""


# --- what an environment can do besides ----------------------------------------------------------


@runtime_checkable
class HasObjective(Protocol):
    """An environment that says by which figure a policy is better than another.

    `REWARD`, or a metric of `measure` with a `better` direction: for the terms of a reward may be
    coefficients of a gradient, whose mean says nothing of a policy. Code that asks which policy is
    the better one asks for this figure: checkpoints, policies without skill, the report.
    """

    objective: ClassVar[str]


def objective_of(environment: Environment) -> str:
    """The figure by which policies are compared."""
    return environment.objective if isinstance(environment, HasObjective) else REWARD


@runtime_checkable
class HasObjectiveMargin(Protocol):
    """An environment that says by how much its objective may be worse for nothing to be lost.

    In the unit of the objective. Of a reward with a range a share of it is taken otherwise.
    """

    objective_margin: ClassVar[float]


@runtime_checkable
class ScoresSets(Protocol):
    """An environment of scope "set", which every such one must be."""

    set_size: ClassVar[int]  # the variants of a counterfactual set; settings can say others


@runtime_checkable
class HasRewardRange(Protocol):
    """An environment that knows between what its rewards are, with the settings that it has."""

    def reward_range(self) -> tuple[float, float]:
        """No score's value is below the first or above the second."""


@runtime_checkable
class HasSources(Protocol):
    """An environment whose reward depends on more than code: policies, prompts, models, indexes."""

    def sources(self) -> Mapping[str, str]:
        """Return the SHA-256 or the identity of each, by name."""


@runtime_checkable
class HasCheck(Protocol):
    """An environment that scores with what may be away or wrong: a judge, a generator, a server."""

    def check(self) -> str | None:
        """Ask each of them one question; what is wrong in one line, None where all is well.

        It is called before anything is generated, waits seconds for an answer and not minutes, and
        takes no server's answer from a cache, which would prove nothing.
        """


@runtime_checkable
class HasPresentation(Protocol):
    """An environment that says what its figures are called and how its replies are shown."""

    presentation: Presentation


@runtime_checkable
class HasModes(Protocol):
    """An environment that knows other ways through its prompts than the trained model's."""

    def modes(self, rollouts: Sequence[Rollout]) -> Modes:
        """Score these ways on the prompts of these rollouts."""


@runtime_checkable
class HasTrivialPolicies(Protocol):
    """An environment that knows ways to reply without skill, which a trained model has to beat.

    Those that need no knowledge of a task stand beside every result anyway: the best constant
    reply, declining, copying the prompt, the untrained model's vote and its best of n.
    """

    def constant_replies(self) -> Sequence[str]:
        """Replies of which one, given to every prompt, might earn much."""

    def trivial_replies(
        self, rollouts: Sequence[Rollout], seed: int
    ) -> Mapping[str, Sequence[str]]:
        """Name of a policy -> its reply in place of each of these rollouts of the untrained model.

        It may use what the prompt shows and what other rollouts say, never the gold answer.
        """


@runtime_checkable
class CanBlind(Protocol):
    """An environment that can take out of a prompt what must not decide."""

    def blinded(self, record: PromptRecord) -> tuple[Message, ...]:
        """The messages without it; the untrained model's replies to them are a policy to beat."""


@runtime_checkable
class HasYardsticks(Protocol):
    """An environment of counterfactual sets that can change a prompt in what means nothing.

    How far such a change moves a model is what an effect of the attribute is read beside.
    """

    def reworded(
        self, record: PromptRecord, yardstick: Yardstick, version: int
    ) -> tuple[Message, ...]:
        """The messages of a prompt with one of as many versions as a set has variants."""


@runtime_checkable
class ShowsExamples(Protocol):
    """An environment that knows a good reply to a prompt, to be shown to a model as an example."""

    def example_reply(self, record: PromptRecord) -> str | None:
        """A reply to a training prompt that keeps the format; None where none is known."""


@runtime_checkable
class DealsReference(Protocol):
    """An environment that `NeedsReference`, and whose goal the frozen model's own replies show.

    Which of them goes to which prompt is what takes out what must not decide.
    """

    def dealt_replies(
        self,
        records: Sequence[PromptRecord],
        reference: Sequence[Rollout],
        passes: int,
        seed: int,
    ) -> list[tuple[PromptRecord, str]]:
        """A reply of the reference to each prompt, `passes` times; without those that have none."""


@runtime_checkable
class HasReplySchema(Protocol):
    """An environment whose replies are JSON, to which a server can hold a model."""

    def reply_schema(self) -> Mapping[str, Any]:
        """A JSON schema of what the prompts ask for."""


@runtime_checkable
class HasExports(Protocol):
    """An environment whose evaluations others read in a form of their own."""

    def exports(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Mapping[str, Any]:
        """File name, beside evaluation.json -> JSON document."""


# --- what the settings of an environment can say -------------------------------------------------


@runtime_checkable
class SamplesReference(Protocol):
    """Settings of an environment that `NeedsReference`, for the arithmetic of `--dry-run`."""

    @property
    def reference_generations(self) -> int:
        """Completions of the frozen model per prompt."""


@runtime_checkable
class SaysSetSize(Protocol):
    """Settings of an environment that `ScoresSets` of a size that depends on them."""

    @property
    def set_size(self) -> int:
        """The variants of a counterfactual set, in place of the environment's own number."""


@runtime_checkable
class ComparesGenerations(Protocol):
    """Settings of an environment that compares the generations of one prompt with each other."""

    @property
    def least_generations(self) -> int:
        """Per prompt, in training and in evaluation."""


@runtime_checkable
class CountsCalls(Protocol):
    """Settings of an environment that asks a model, for the arithmetic of `--dry-run`."""

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """How often a run with so many completions asks, at most: equal requests are asked once."""


@runtime_checkable
class MayStandIn(Protocol):
    """Settings of an environment in which something simple can stand in for a model."""

    @property
    def stand_in(self) -> str | None:
        """The stand-in, and what to name in its place; None where a model is named."""
