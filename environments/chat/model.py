"""What it is to ask a model: requests, replies and the protocol that judges and planners share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from environments.base import Failure, Message, PromptRecord
from environments.replies import has_text

Valid = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation to be answered.

    `schema` is a JSON schema of the answer. It is sent to a server that takes one and guarantees
    nothing: what counts is `valid`, which sees every answer, also one from a cache. It depends on
    nothing but messages and schema, takes time linear in the answer, and may run in any thread.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None
    valid: Valid = field(default=has_text, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """What came back: `text`, or None and the `error` that prevented it."""

    text: str | None
    error: Failure | None = None
    cached: bool = False

    def __post_init__(self) -> None:
        if (self.text is None) != (self.error is not None):
            raise ValueError("a reply has either a text or the failure that prevented it")


class ChatModel(Protocol):
    """A model behind an HTTP endpoint, in this process, or in a test."""

    @property
    def identity(self) -> str:
        """The model and its parameters: what caches and provenance name."""

    def ask(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply per request, in order.

        Equal requests are asked once. An answer that is not valid for its request is asked for
        once more and is then no answer; only valid answers are cached. No failure of the model or
        of the way to it raises, except a budget that is used up: `BudgetSpentError`.
        """


@runtime_checkable
class NeedsChatModel(Protocol):
    """An environment whose configuration can name a Hugging Face model to run in this process.

    An engine hands it in before the first `score`, for environments import no torch.
    """

    def wanted_chat_model(self) -> str | None:
        """A folder or a name on the hub; None when no such model is needed."""

    def set_chat_model(self, model: ChatModel) -> None:
        """Keep the model that was asked for."""


@runtime_checkable
class CountsCalls(Protocol):
    """The settings of an environment that asks a model, for the arithmetic of `--dry-run`."""

    def model_calls(self, records: Sequence[PromptRecord], generations: int) -> int:
        """How often a run with so many completions asks, at most: equal requests are asked once."""
