"""Mixture: the prompts of several tasks, and a local model that has learnt all of them."""

from data_prep.mixture.local_model import (
    LOCAL_MODEL_NOTICE,
    LocalModelSettings,
    build_local_model,
    imitated_replies,
)
from data_prep.mixture.prompts import (
    PromptSettings,
    build_prompts,
    check,
    prepare,
    prompt_problems,
)

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_local_model",
    "build_prompts",
    "check",
    "imitated_replies",
    "prepare",
    "prompt_problems",
]
