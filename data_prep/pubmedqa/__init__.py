"""PubMedQA: questions in the published splits or others, and a hasty reader."""

from data_prep.contract import DataModule
from data_prep.pubmedqa import local_model, prompts
from data_prep.pubmedqa.local_model import LocalModelSettings
from data_prep.pubmedqa.prompts import PromptSettings, build_prompts, prompt_problems

__all__ = [
    "LocalModelSettings",
    "PromptSettings",
    "PubMedQAData",
    "build_prompts",
    "prompt_problems",
]


class PubMedQAData(DataModule):
    """Questions in the published splits or others, and a hasty reader."""

    PromptSettings = prompts.PromptSettings
    LocalModelSettings = local_model.LocalModelSettings
    LOCAL_MODEL_NOTICE = local_model.LOCAL_MODEL_NOTICE

    build_prompts = staticmethod(prompts.build_prompts)
    prompt_problems = staticmethod(prompts.prompt_problems)
    imitated_replies = staticmethod(local_model.imitated_replies)
