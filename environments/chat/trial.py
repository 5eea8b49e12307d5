"""One question before all others: does the model answer, and as it should?"""

from environments.chat.endpoint import EndpointModel
from environments.chat.model import ChatModel, ChatReply, ChatRequest, Valid, has_text


def try_once(model: ChatModel, request: ChatRequest, valid: Valid = has_text) -> ChatReply:
    """Ask one question and wait seconds for its answer, which is never an endpoint's cached one.

    Raises `BudgetSpentError`.
    """
    if not isinstance(model, EndpointModel):
        return model.ask([request], valid)[0]
    with model.impatient() as hasty:
        return hasty.ask([request], valid)[0]
