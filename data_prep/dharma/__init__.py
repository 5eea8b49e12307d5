"""Dharma: scope prompts, invented or from a file, and an assistant that wanders."""

from data_prep.contract import DataModule
from data_prep.dharma import local_model, prompts
from data_prep.dharma.local_model import LocalModelSettings
from data_prep.dharma.prompts import PromptSettings, build_prompts

__all__ = ["DharmaData", "LocalModelSettings", "PromptSettings", "build_prompts"]


class DharmaData(DataModule):
    """Scope prompts, invented or from a file, and an assistant that wanders."""

    PromptSettings = prompts.PromptSettings
    LocalModelSettings = local_model.LocalModelSettings
    LOCAL_MODEL_NOTICE = local_model.LOCAL_MODEL_NOTICE

    build_prompts = staticmethod(prompts.build_prompts)
    imitated_replies = staticmethod(local_model.imitated_replies)
