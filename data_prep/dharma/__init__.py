"""Dharma: scope prompts, invented or from a file, and an assistant that wanders."""

from data_prep.dharma.local_model import (
    LOCAL_MODEL_NOTICE,
    LocalModelSettings,
    imitated_replies,
)
from data_prep.dharma.prompts import PromptSettings, build_prompts

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_prompts",
    "imitated_replies",
]
