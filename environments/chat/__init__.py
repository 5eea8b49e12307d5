"""The one way to ask a model: judges, planners and generators go through `ChatModel.ask`."""

from environments.chat.endpoint import EndpointModel, try_once
from environments.chat.model import (
    MATERIAL,
    BudgetSpentError,
    ChatModel,
    ChatReply,
    ChatRequest,
    ChatSetupError,
    Source,
    Valid,
    inert,
    quote,
)
from environments.chat.settings import Budget, EndpointSettings, Limits, ModelSettings

__all__ = [
    "MATERIAL",
    "Budget",
    "BudgetSpentError",
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "ChatSetupError",
    "EndpointModel",
    "EndpointSettings",
    "Limits",
    "ModelSettings",
    "Source",
    "Valid",
    "inert",
    "quote",
    "try_once",
]
