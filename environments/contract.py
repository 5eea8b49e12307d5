"""The contract: what an environment must have, and what it may have besides.

    prompts.jsonl -> engine -> Rollout[] -> environment.score -> Score[] -> update
                                   |               |
                                   +-- evaluation -+--> environment.measure -> intervals

The smallest environment wants short answers:

    class Brief(Environment):
        name = "brief"

        class Settings(EnvironmentSettings):
            limit: int = 100

        def score(self, rollouts):
            limit = self.settings.limit
            return [Score(float(len(r.completion) <= limit)) for r in rollouts]

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
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from environments.base import REWARD, Message, PromptRecord, Rollout, Scope, Score
from environments.measurement import Measurement, Modes
from environments.presentation import Presentation

if TYPE_CHECKING:  # half a second of aiohttp, which few environments need
    from environments.chat import ChatModel


#: The margin of a reward, of what a perfect reply earns: two points of a hundred, which is what
#: most guards of rates allow.
REWARD_SHARE = 0.02


#: Texts as vectors.
Vectors = NDArray[np.float32]


class EncoderSettings(BaseModel, extra="forbid", frozen=True):
    """Hugging Face models that make vectors; MedCPT has one for each side."""

    query_model: str = "ncbi/MedCPT-Query-Encoder"  #: of the questions
    passage_model: str = "ncbi/MedCPT-Article-Encoder"  #: of what is searched

    @property
    def is_pair(self) -> bool:
        """MedCPT has two models, takes the first token's state, and compares by inner product."""
        return self.query_model != self.passage_model


class Encoder(Protocol):
    """Turns texts into vectors; the inner product of two is their similarity."""

    @property
    def identity(self) -> str:
        """Models by content, and pooling; vectors that another encoder made cannot be compared."""

    def encode_queries(self, queries: Sequence[str]) -> Vectors:
        """Vectors of queries, [Q, D]."""

    def encode_passages(self, passages: Sequence[tuple[str, str]]) -> Vectors:
        """Vectors of passages given as title and text, [P, D]."""


class EnvironmentSettings(BaseModel, extra="forbid", frozen=True):
    """The YAML of an environment, and what can be known from it before the environment is built."""

    @property
    def set_size(self) -> int | None:
        """Variants of a counterfactual set; None where it is the environment's own number."""
        return None

    @property
    def least_generations(self) -> int:
        """Completions per prompt that are compared with one another, wherever any are scored."""
        return 1

    @property
    def reference_size(self) -> int:
        """Completions of the frozen model per prompt; 0 for an environment without a reference."""
        return 0

    @property
    def stand_in(self) -> str | None:
        """The stand-in for a model, and what to name in its place; None where one is named."""
        return None

    def prompt_problems(self, records: Sequence[PromptRecord]) -> Sequence[str]:
        """Say why prompts cannot be scored with these settings, one line per kind of fault."""
        return ()

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """Count the requests for so many completions, at most: equal ones are asked once."""
        return 0


class Environment(ABC):
    """A source of reward, built from its `Settings`, which check its YAML.

    A task writes `name`, `score` and `measure`; all else has a default that says "none". `offers`
    tells whether an optional method exists before the environment is built.
    """

    name: ClassVar[str] = ""
    Settings: ClassVar[type[EnvironmentSettings]] = EnvironmentSettings

    #: How much one call of `score` must see together: a rollout, all generations of a prompt, or of
    #: all `set_size` variants of a counterfactual set.
    scope: ClassVar[Scope] = "rollout"
    set_size: ClassVar[int] = 1

    #: The figure by which one policy is better than another: `REWARD`, or a metric of `measure`
    #: with a direction, for the terms of a reward may be coefficients of a gradient, whose mean
    #: says nothing of a policy. Checkpoints, trivial baselines and the report go by it.
    objective: ClassVar[str] = REWARD
    #: The metric that is to improve while the mean reward rises, or a run has an alarm: where none
    #: is named the objective, or the first metric where that is the reward itself.
    watched: ClassVar[str] = ""
    #: By how much the objective may be worse for nothing to be lost, in its unit. None takes a
    #: share of `reward_range`.
    objective_margin: ClassVar[float | None] = None

    #: What its figures are called and how its replies are shown.
    presentation: Presentation = Presentation()

    settings: Any

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    @abstractmethod
    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        """Score each rollout, in order."""

    @abstractmethod
    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        """Compute the task's metrics over scored rollouts."""

    @classmethod
    def offers(cls, method: Callable[..., Any]) -> bool:
        """Whether a method has been written for this task, as `offers(Environment.blinded)`."""
        return getattr(cls, method.__name__) is not method

    # --- what it is handed before its first `score` ----------------------------------------------

    @property
    def reference_generations(self) -> int:
        """Completions of the frozen model per prompt that it compares with; 0 for none."""
        return 0

    def set_reference(self, rollouts: Sequence[Rollout]) -> None:
        """Keep what is needed of the frozen model's rollouts."""
        raise NotImplementedError

    def wanted_chat_model(self) -> str | None:
        """A Hugging Face folder or name, to be asked in this process; None for none."""
        return None

    def set_chat_model(self, model: "ChatModel") -> None:
        """Keep the model that was asked for."""
        raise NotImplementedError

    def wanted_encoder(self) -> EncoderSettings | None:
        """The models to search by vectors with; None for none."""
        return None

    def set_encoder(self, encoder: Encoder) -> None:
        """Keep the encoder that was asked for."""
        raise NotImplementedError

    # --- what it says of itself ------------------------------------------------------------------

    def reward_range(self) -> tuple[float, float] | None:
        """No score's value is below the first or above the second, with these settings."""
        return None

    def margin(self) -> float | None:
        """The objective's margin: that of the class, else a share of what a perfect reply earns."""
        bounds = self.reward_range()
        if self.objective_margin is not None or self.objective != REWARD or bounds is None:
            return self.objective_margin
        return REWARD_SHARE * bounds[1]

    def sources(self) -> Mapping[str, str]:
        """SHA-256 or identity of what decides besides code, by name: policies, prompts, models."""
        return {}

    def check(self) -> str | None:
        """Ask each judge, generator or server one question; say what is wrong in one line.

        It is called before anything is generated, waits seconds for an answer and not minutes, and
        takes no server's answer from a cache, which would prove nothing.
        """
        return None

    def exports(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Mapping[str, Any]:
        """Documents for other readers of an evaluation: file name -> JSON."""
        return {}

    # --- what a trained model is compared with ---------------------------------------------------

    def constant_replies(self) -> Sequence[str]:
        """Replies that might earn much if given to every prompt."""
        return ()

    def trivial_replies(
        self, rollouts: Sequence[Rollout], seed: int
    ) -> Mapping[str, Sequence[str]]:
        """Name of a trivial baseline -> its reply in place of each of these rollouts.

        It may use what the prompt shows and what other rollouts of the untrained model say, never
        the gold answer. The best constant reply, declining, copying the prompt, a vote and the best
        of n are compared with anyway.
        """
        return {}

    def modes(self, rollouts: Sequence[Rollout]) -> Modes:
        """Score other ways through the prompts of these rollouts than the trained model's."""
        raise NotImplementedError

    # --- how a prompt can be changed, and a reply be shown ---------------------------------------

    def blinded(self, record: PromptRecord) -> tuple[Message, ...]:
        """The messages without what must not decide; the replies to them are a policy to beat."""
        raise NotImplementedError

    def example_reply(self, record: PromptRecord) -> str | None:
        """A good reply to a training prompt, to be shown to a model; None where none is known."""
        return None
