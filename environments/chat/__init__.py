"""The one way to ask a model: judges, planners and generators go through `ChatModel.ask`."""

from environments.chat.endpoint import EndpointModel, try_once
from environments.chat.model import (
    MATERIAL,
    Budget,
    BudgetSpentError,
    ChatModel,
    ChatReply,
    ChatRequest,
    ChatSetupError,
    EndpointSettings,
    Limits,
    ModelSettings,
    Source,
    Valid,
    inert,
    quote,
)

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
