"""One question before all others: does the model answer, and as it should?"""

from environments.chat.endpoint import EndpointModel
from environments.chat.model import ChatModel, ChatReply, ChatRequest


def try_once(model: ChatModel, request: ChatRequest) -> ChatReply:
    """Ask one question and wait seconds for its answer, which is never an endpoint's cached one.

    Raises `BudgetSpentError`.
    """
    if not isinstance(model, EndpointModel):
        return model.ask([request])[0]
    with model.impatient() as hasty:
        return hasty.ask([request])[0]
