"""The one way to ask a model: judges, planners and generators go through `ChatModel.ask`."""

from environments.chat.endpoint import EndpointModel
from environments.chat.errors import BudgetSpentError, ChatSetupError
from environments.chat.model import ChatModel, ChatReply, ChatRequest, Source, Valid
from environments.chat.quoting import MATERIAL, inert, quote
from environments.chat.settings import Budget, EndpointSettings, Limits, ModelSettings
from environments.chat.trial import try_once

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
