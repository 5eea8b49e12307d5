"""The frozen generator as a chat model: its prompt and the strict reading of its answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Failure, Message
from environments.chat import MATERIAL, ChatModel, ChatReply, ChatRequest, quote, try_once
from environments.rag.reader import Answer, Exam
from environments.replies import UnreadableError, read_object

#: Changes with the prompt, so that a report says which one was used.
PROMPT_VERSION = "answer-2"

_SYSTEM = (
    "You answer a multiple-choice question of a medical examination. Documents that a search has "
    f"found may help, be beside the point or be wrong. {MATERIAL} "
    "Think step by step, then choose one option. "
    'Reply with one JSON object and nothing else: {"reasoning": "step by step", "answer": "A"}'
)


#: What a generator is asked before it is needed.
_TRIAL = Exam.of("Which organ pumps the blood?", {"A": "the heart", "B": "the liver"})


class ChatGenerator:
    """A `Reader` that asks a chat model. A failed call is no answer, never a wrong one."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def identity(self) -> str:
        """See `Reader`."""
        return f"{self._model.identity}, {PROMPT_VERSION}"

    def check(self) -> str | None:
        """Ask one question; what is wrong with the generator, None where it answers."""
        error = _answer(_TRIAL, try_once(self._model, request_of(_TRIAL))).error
        return error.text if error else None

    def answer(self, exams: Sequence[Exam]) -> list[Answer]:
        """See `Reader`. Raises `BudgetSpentError` where the endpoint's budget is used up."""
        replies = self._model.ask([request_of(exam) for exam in exams])
        return [_answer(exam, reply) for exam, reply in zip(exams, replies, strict=True)]


def request_of(exam: Exam) -> ChatRequest:
    """Ask the generator for one of the options."""
    user: Message = {"role": "user", "content": _user_text(exam)}
    return ChatRequest(
        ({"role": "system", "content": _SYSTEM}, user),
        _schema(exam.letters),
        valid=lambda reply: parse_answer(reply, exam.letters) is not None,
    )


def _user_text(exam: Exam) -> str:
    """Every text in delimiters of its own, for any of them may imitate another."""
    documents = [f"[{n}] {quote(text)}" for n, text in enumerate(exam.documents, start=1)]
    options = [f"{letter}. {quote(text)}" for letter, text in exam.options]
    parts = ["Documents:", *documents, ""] if documents else []
    return "\n".join([*parts, f"Question: {quote(exam.question)}", "", "Options:", *options])


def _schema(letters: Sequence[str]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "answer": {"enum": list(letters)}},
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    }


def parse_answer(reply: str, letters: tuple[str, ...]) -> str | None:
    """The letter of `{"reasoning": ..., "answer": "B"}`, see `read_object`; None for anything else.

    It is one of `letters`, those of the question's options. Never raises.
    """
    try:
        fields = read_object(reply)
    except UnreadableError:
        return None
    letter = fields.get("answer")
    reasoned = isinstance(fields.get("reasoning"), str)
    return letter if reasoned and isinstance(letter, str) and letter in letters else None


def _answer(exam: Exam, reply: ChatReply) -> Answer:
    letter = parse_answer(reply.text, exam.letters) if reply.text is not None else None
    if letter is not None:
        return Answer(letter)
    error = reply.error or Failure("invalid_reply", "its answer is none of the options")
    return Answer(None, error.of("generator"))
