"""A tiny model as a task sees it: its size, and the replies that it imitates; without torch."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from environments.base import PromptRecord


class WarmStart(BaseModel, extra="forbid", frozen=True):
    """A tiny Llama from random weights, which imitates `steps * batch_size` replies.

    A task's `LocalModelSettings` are these keys with defaults of its own, and what else it needs.
    """

    vocab_size: int = Field(2048, ge=300)
    phrases: bool = Field(
        default=True, description="tokens may span words; without, each word is its own"
    )
    hidden_size: int = Field(64, ge=16, multiple_of=16)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1)
    max_positions: int = Field(512, ge=1)
    steps: int = Field(700, ge=1)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(1e-2, gt=0, lt=1)
    seed: int = Field(0, ge=0)


def imitating_model(
    shown: Sequence[tuple[PromptRecord, str]], settings: WarmStart, cache: Path
) -> Path:
    """The folder of a tiny model that imitates the replies to these prompts, see `warm_start`."""
    from data_prep.tiny_model import Example, warm_start  # imports torch

    return warm_start([Example(record.messages, text) for record, text in shown], settings, cache)
