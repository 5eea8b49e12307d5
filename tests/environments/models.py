"""A chat model that answers as a test says, under the rules of `ChatModel.ask`."""

from collections.abc import Callable

from environments.base import Failure
from environments.chat import ChatReply, ChatRequest

Answer = Callable[[ChatRequest], ChatReply | str | None]
INVALID = Failure("invalid_reply", "no valid answer")


class Scripted:
    """Answers each request by a function; None and a text that is not valid are failures."""

    identity = "scripted"

    def __init__(self, answer):
        self._answer = answer
        self.requests: list[ChatRequest] = []

    def ask(self, requests):
        self.requests += requests
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        found = self._answer(request)
        reply = (
            found if isinstance(found, ChatReply) else ChatReply(found, None if found else INVALID)
        )
        valid = reply.text is None or request.valid(reply.text)
        return reply if valid else ChatReply(None, INVALID)
