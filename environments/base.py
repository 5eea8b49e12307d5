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
            sums = np.array([[s.value, 1.0] for s in scores])
            metrics = {"brief_rate": Metric(lambda t: t[..., 0] / t[..., 1], "higher")}
            return Measurement(tuple(r.prompt_id for r in rollouts), sums, metrics)

Promises, each a test in tests/environments/test_contract.py:

 1. Scoring is deterministic given its inputs and caches.
 2. Order in is order out: `score(rollouts)[i]` belongs to `rollouts[i]`.
 3. A completion is hostile input: no text makes `score` raise or hang.
 4. An incomplete counterfactual set raises `IncompleteSetError`: it is the caller's bug.
 5. What could not be scored is `Score(None, error=...)`, never a number.
 6. A reply that breaks the format scores strictly below every reply that keeps it.
 7. The gold answer, where there is one, scores the maximum.

This package imports neither torch nor ray; a model or an encoder is handed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypedDict, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

Scope = Literal["rollout", "prompt", "set"]
Direction = Literal["lower", "higher"]
Array = NDArray[np.float64]


class IncompleteSetError(ValueError):
    """A set-scoped environment was called with a part of a counterfactual set."""


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


@dataclass(frozen=True, slots=True)
class Score:
    """What an environment says of one rollout; `value` None means that `error` prevented it."""

    value: float | None
    components: Mapping[str, float] = field(default_factory=dict)  # before their weights
    error: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)  # what shows a reader why


@dataclass(frozen=True, slots=True)
class Metric:
    """A function of sums over clusters, [..., K] -> [...]; NaN where it is not defined.

    `better` says which direction is an improvement, None that a change is neither.
    """

    of_sums: Callable[[Array], Array]
    better: Direction | None = None
    floor: bool = False  # compare with `Measurement.null_sums`
    outcomes: NDArray[np.bool_] | None = None  # [C] yes or no per cluster, for McNemar's test


@dataclass(frozen=True, slots=True)
class Measurement:
    """Metrics as functions of sums over clusters, so that evaluation can resample clusters.

    `sums` [C, K] holds K statistics added up in each of C clusters (counterfactual sets,
    questions): 10,000 bootstrap draws are then one matrix product. `null_sums(rng, draws)` gives
    total sums [draws, K] under the hypothesis to be refuted (race permuted within sets).
    `breakdowns` are further sections of evaluation.json: section -> key -> name -> metric.
    """

    clusters: tuple[str, ...]
    sums: Array
    metrics: Mapping[str, Metric]
    breakdowns: Mapping[str, Mapping[str, Mapping[str, Metric]]] = field(default_factory=dict)
    null_sums: Callable[[np.random.Generator, int], Array] | None = None

    def point_estimates(self) -> dict[str, float]:
        """Every metric on the data as they are; what training logs show."""
        total = self.sums.sum(axis=0)
        return {name: float(metric.of_sums(total)) for name, metric in self.metrics.items()}


class Environment(Protocol):
    """What gives reward, built as `EnvironmentClass(settings)`; `Settings` checks its YAML.

    `scope` is how much one call of `score` must see together: one rollout, all generations of a
    prompt, or all generations of all variants of a counterfactual set.
    """

    name: ClassVar[str]
    scope: ClassVar[Scope]
    Settings: ClassVar[type[BaseModel]]

    def __init__(self, settings: Any) -> None: ...

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """One score per rollout, in order."""

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """The task's metrics over scored rollouts."""


@runtime_checkable
class NeedsReference(Protocol):
    """An environment that compares with the frozen model.

    Before the first `score` the engine draws `reference_generations` completions of every
    prompt, those of the split "control" included, and hands them over.
    """

    @property
    def reference_generations(self) -> int:
        """Completions of the frozen model per prompt."""

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Keep what the rewards and metrics need of the frozen model's rollouts."""
