"""A tiny model of a task, from the replies that it imitates."""

from collections.abc import Sequence
from pathlib import Path

from data_prep.warm_start import Example, WarmStart
from environments.base import PromptRecord


def imitating_model(
    pairs: Sequence[tuple[PromptRecord, str]], settings: WarmStart, cache: Path
) -> Path:
    """The folder of a tiny model that imitates the replies to these prompts, see `warm_start`."""
    from data_prep.tiny_model import warm_start  # imports torch

    return warm_start([Example(record.messages, text) for record, text in pairs], settings, cache)
