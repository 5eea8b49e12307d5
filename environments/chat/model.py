"""Requests to a model, its replies, and the protocol that judges and planners share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from environments.base import Failure, Message
from environments.replies import has_text

Valid = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One conversation to be answered.

    `schema` is a JSON schema of the answer. It is sent to a server that takes one and guarantees
    nothing: what counts is `valid`, which sees every answer, also one from a cache. It depends on
    nothing but messages and schema, takes time linear in the answer, and may run in any thread.

    Requests that differ in `sample` alone are asked for one by one: draws from one distribution.
    An endpoint adds it to its parameter `seed`, where it has one. `as_written` takes whatever came
    back, cut off, filtered or a refusal, as the reply of a model that is measured.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None
    valid: Valid = field(default=has_text, compare=False, repr=False)
    sample: int = 0
    as_written: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """The model that answered, in the server's words: its name, the system's fingerprint.

    None where the server does not say.
    """

    model: str | None = None
    fingerprint: str | None = None


UNKNOWN = Source()


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A reply: its `text`, or None and the `error` that prevented it.

    A reply from a cache has the `source` that it came with.
    """

    text: str | None
    error: Failure | None = None
    cached: bool = False
    source: Source = UNKNOWN

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
