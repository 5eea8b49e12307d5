"""The frozen generator as a chat model: its prompt and the strict reading of its answer."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from environments.base import Message
from environments.chat import ChatModel, ChatReply, ChatRequest, try_once
from environments.rag_accuracy.reader import Answer, Exam

#: Changes with the prompt, so that a report says which one was used.
PROMPT_VERSION = "answer-1"

MAX_REPLY_CHARACTERS = 20_000
_MAX_OPENINGS = 64

_SYSTEM = (
    "You answer a multiple-choice question of a medical examination. Documents that a search has "
    "found may help, be beside the point or be wrong. Think step by step, then choose one option. "
    'Reply with one JSON object and nothing else: {"reasoning": "step by step", "answer": "A"}'
)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL)
_REASONING_END = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)


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
        return _answer(_TRIAL, try_once(self._model, request_of(_TRIAL), is_answer)).error

    def answer(self, exams: Sequence[Exam]) -> list[Answer]:
        """See `Reader`. Raises `BudgetSpentError` where the endpoint's budget is used up."""
        replies = self._model.ask([request_of(exam) for exam in exams], is_answer)
        return [_answer(exam, reply) for exam, reply in zip(exams, replies, strict=True)]


def request_of(exam: Exam) -> ChatRequest:
    """What the generator is asked."""
    letters = [letter for letter, _ in exam.options]
    user: Message = {"role": "user", "content": _user_text(exam)}
    return ChatRequest(({"role": "system", "content": _SYSTEM}, user), _schema(letters))


def _user_text(exam: Exam) -> str:
    documents = [f"[{n}] {text}" for n, text in enumerate(exam.documents, start=1)]
    options = [f"{letter}. {text}" for letter, text in exam.options]
    parts = ["Documents:", *documents, ""] if documents else []
    return "\n".join([*parts, f"Question: {exam.question}", "", "Options:", *options])


def _schema(letters: Sequence[str]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "answer": {"enum": list(letters)}},
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    }


def is_answer(reply: str) -> bool:
    """Whether a letter can be read from a reply."""
    return parse_answer(reply) is not None


def parse_answer(reply: str) -> str | None:
    """The letter of `{"reasoning": ..., "answer": "B"}`; None for anything else. Never raises.

    Reasoning in tags before the object and a code fence around it are tolerated. A letter outside
    the object, a key twice, another type, several objects are not: nothing is guessed.
    """
    if len(reply) > MAX_REPLY_CHARACTERS or reply.count("{") + reply.count("[") > _MAX_OPENINGS:
        return None
    text = _REASONING_END.split(reply)[-1].strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text, object_pairs_hook=_once)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("reasoning"), str):
        return None
    letter = found.get("answer")
    return letter if isinstance(letter, str) and re.fullmatch("[A-Z]", letter) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _answer(exam: Exam, reply: ChatReply) -> Answer:
    if reply.text is None:
        return Answer(None, f"generator: {reply.error or 'no answer'}")
    letter = parse_answer(reply.text)
    if letter not in {known for known, _ in exam.options}:
        return Answer(None, "generator: its answer is none of the options")
    return Answer(letter)
