"""Fairness: vignettes in counterfactual sets, and a clinician with a known bias."""

from data_prep.contract import DataModule
from data_prep.fairness import local_model, prompts
from data_prep.fairness.local_model import LocalModelSettings, imitated_replies
from data_prep.fairness.prompts import PromptSettings, build_prompts, prompt_problems

__all__ = [
    "FairnessData",
    "LocalModelSettings",
    "PromptSettings",
    "build_prompts",
    "imitated_replies",
    "prompt_problems",
]


class FairnessData(DataModule):
    """Vignettes in counterfactual sets, and a clinician with a known bias."""

    PromptSettings = prompts.PromptSettings
    LocalModelSettings = local_model.LocalModelSettings
    LOCAL_MODEL_NOTICE = local_model.LOCAL_MODEL_NOTICE

    build_prompts = staticmethod(prompts.build_prompts)
    prompt_problems = staticmethod(prompts.prompt_problems)
    imitated_replies = staticmethod(local_model.imitated_replies)
