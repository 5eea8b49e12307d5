"""Examples, training length and size of a tiny model; without torch."""

from dataclasses import dataclass

from pydantic import BaseModel, Field

from environments.base import Message


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with the answer that is imitated."""

    messages: tuple[Message, ...]
    answer: str


class WarmStart(BaseModel, extra="forbid", frozen=True):
    """A tiny Llama from random weights, which imitates `steps * batch_size` replies.

    A task's `LocalModelSettings` are these keys with defaults of its own, and what else it needs.
    """

    vocab_size: int = Field(2048, ge=300)  #: of its tokenizer
    phrases: bool = Field(
        default=True, description="tokens may span words; without, each word is its own"
    )
    form: tuple[str, ...] = Field(
        (), description="pieces of every prompt or reply that are one token each"
    )
    hidden_size: int = Field(64, ge=16, multiple_of=16)  #: width of a layer
    layers: int = Field(2, ge=1)  #: of attention and feed-forward
    heads: int = Field(4, ge=1)  #: of each layer's attention
    max_positions: int = Field(512, ge=1)  #: tokens of prompt and reply
    steps: int = Field(700, ge=1)  #: updates
    batch_size: int = Field(32, ge=1)  #: replies of one update
    initializer_range: float = Field(
        0.02, gt=0, le=1, description="spread of the random weights; copying needs more"
    )
    learning_rate: float = Field(1e-2, gt=0, lt=1)  #: at its peak; ends at zero
    seed: int = Field(0, ge=0)  #: of weights and replies
