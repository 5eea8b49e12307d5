"""PubMedQA: questions in the published splits or others, and a hasty reader."""

from data_prep.pubmedqa.local_model import (
    LOCAL_MODEL_NOTICE,
    LocalModelSettings,
    imitated_replies,
)
from data_prep.pubmedqa.prompts import PromptSettings, build_prompts, check, prompt_problems

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_prompts",
    "check",
    "imitated_replies",
    "prompt_problems",
]
