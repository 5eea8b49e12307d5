"""The one way to ask a model: judges, planners and generators go through `ChatModel.ask`."""

from environments.chat.endpoint import EndpointModel
from environments.chat.errors import BudgetSpentError, ChatSetupError
from environments.chat.model import (
    ChatModel,
    ChatReply,
    ChatRequest,
    CountsCalls,
    NeedsChatModel,
    Valid,
    has_text,
)
from environments.chat.quoting import quote
from environments.chat.settings import Budget, EndpointSettings, Limits
from environments.chat.trial import try_once

__all__ = [
    "Budget",
    "BudgetSpentError",
    "ChatModel",
    "ChatReply",
    "ChatRequest",
    "ChatSetupError",
    "CountsCalls",
    "EndpointModel",
    "EndpointSettings",
    "Limits",
    "NeedsChatModel",
    "Valid",
    "has_text",
    "quote",
    "try_once",
]
