"""Retrieval: questions with plans, their index, and a local model that searches vaguely."""

from data_prep.rag.local_model import (
    LOCAL_MODEL_NOTICE,
    LocalModelSettings,
    imitated_replies,
)
from data_prep.rag.prompts import PromptSettings, build_prompts, check, prepare, prompt_problems

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_prompts",
    "check",
    "imitated_replies",
    "prepare",
    "prompt_problems",
]
