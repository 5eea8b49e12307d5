"""Retrieval: questions with plans, their index, and a local model that searches vaguely."""

from data_prep.contract import DataModule
from data_prep.rag import local_model, prompts

__all__ = ["RagData"]


class RagData(DataModule):
    """Questions with plans, their index, and a local model that searches vaguely."""

    PromptSettings = prompts.PromptSettings
    LocalModelSettings = local_model.LocalModelSettings
    LOCAL_MODEL_NOTICE = local_model.LOCAL_MODEL_NOTICE

    build_prompts = staticmethod(prompts.build_prompts)
    prompt_problems = staticmethod(prompts.prompt_problems)
    prepare = staticmethod(prompts.prepare)
    imitated_replies = staticmethod(local_model.imitated_replies)
