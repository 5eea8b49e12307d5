"""Fairness: vignettes in counterfactual sets, and a clinician with a known bias."""

from data_prep.fairness.local_model import (
    LOCAL_MODEL_NOTICE,
    LocalModelSettings,
    imitated_replies,
)
from data_prep.fairness.prompts import PromptSettings, build_prompts, prompt_problems

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_prompts",
    "imitated_replies",
    "prompt_problems",
]
