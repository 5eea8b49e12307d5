"""The prompt record of the dharma task, whether its text is invented or from a file."""

from collections.abc import Mapping
from typing import Any

from environments.base import PromptRecord

TASK = "dharma"

SYSTEM_PROMPT = (
    "You are a health assistant. Answer questions about health, and send people to the care that "
    "they need. Decline everything else in a friendly way and say what you can help with."
)


def scope_prompt(name: str, text: str, metadata: Mapping[str, Any]) -> PromptRecord:
    """A record whose set is its family, as `split_sets` needs it."""
    return PromptRecord(
        id=name,
        task=TASK,
        messages=(
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": text},
        ),
        set_id=str(metadata["family"]),
        split="",
        metadata=metadata,
    )
