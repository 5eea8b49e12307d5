"""Readers, which answer a question from documents: one that needs no model, and a chat model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.base import Failure
from environments.chat import MATERIAL, ChatModel, ChatReply, ChatRequest, quote, try_once
from environments.rag.retrieval import word_set
from environments.replies import UnreadableError, read_object, undecorated

#: The letters of the options that a question may have.
LETTERS = ("A", "B", "C", "D")


@dataclass(frozen=True, slots=True)
class Exam:
    """One question with its options by letter, and the documents that were found, best first.

    Queries are not part of it: an answer in a query reaches the reader by what it finds alone.
    """

    question: str
    options: tuple[tuple[str, str], ...]
    documents: tuple[str, ...] = ()

    @classmethod
    def of(cls, question: str, options: Mapping[str, str], documents: Sequence[str] = ()) -> "Exam":
        """The exam with the options in the order of their letters."""
        return cls(question, tuple(sorted(options.items())), tuple(documents))

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(letter for letter, _ in self.options)


@dataclass(frozen=True, slots=True)
class Answer:
    """The letter of an option, or None and the `error` that prevented an answer."""

    letter: str | None
    error: Failure | None = None


class Reader(Protocol):
    """The frozen generator."""

    @property
    def identity(self) -> str:
        """The name in caches and provenance."""

    def answer(self, exams: Sequence[Exam]) -> list[Answer]:
        """One answer per exam, in order; equal exams are answered once and alike."""


class ExtractiveReader:
    """Takes the option that is in the document which shares most words with the question.

    Ties go to the document that was found first. Deterministic, and without any knowledge of its
    own: without a document that names an option it takes the first one.
    """

    identity = "extractive-2"

    def answer(self, exams: Sequence[Exam]) -> list[Answer]:
        answers = {exam: Answer(_best_option(exam)) for exam in dict.fromkeys(exams)}
        return [answers[exam] for exam in exams]


def _best_option(exam: Exam) -> str:
    question = word_set(exam.question)
    documents = [word_set(text) for text in exam.documents]
    overlaps = [len(words & question) for words in documents]

    def support(option: tuple[str, str]) -> tuple[int, int]:
        """The largest overlap of a document that names the option, then how early that one is."""
        option_words = word_set(option[1])
        naming = [
            (shared, -rank)
            for rank, (words, shared) in enumerate(zip(documents, overlaps, strict=True))
            if option_words <= words
        ]
        return max(naming, default=(-1, 0))

    return max(exam.options, key=support)[0]


# --- a chat model --------------------------------------------------------------------------------


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
    """A `Reader` that asks a chat model. A failed call gives no answer, never a wrong one."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    @property
    def identity(self) -> str:
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
    # Every text in delimiters of its own, for any of them may imitate another.
    documents = [f"[{n}] {quote(text)}" for n, text in enumerate(exam.documents, start=1)]
    options = [f"{letter}. {quote(text)}" for letter, text in exam.options]
    parts = ["Documents:", *documents, ""] if documents else []
    text = "\n".join([*parts, f"Question: {quote(exam.question)}", "", "Options:", *options])
    schema = {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, "answer": {"enum": list(exam.letters)}},
        "required": ["reasoning", "answer"],
        "additionalProperties": False,
    }
    return ChatRequest(
        ({"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}),
        schema,
        valid=lambda reply: parse_answer(reply, exam.letters) is not None,
    )


def parse_answer(reply: str, letters: tuple[str, ...]) -> str | None:
    """The letter of `{"reasoning": ..., "answer": "B"}`, see `read_object`; None for anything else.

    It is one of `letters`, those of the question's options. Never raises.
    """
    try:
        fields = read_object(reply)
    except UnreadableError:
        return None
    letter, reasoning = fields.get("answer"), fields.get("reasoning")
    if not isinstance(letter, str) or not isinstance(reasoning, str):
        return None
    return next((option for option in letters if option == undecorated(letter)), None)


def _answer(exam: Exam, reply: ChatReply) -> Answer:
    letter = parse_answer(reply.text, exam.letters) if reply.text is not None else None
    if letter is not None:
        return Answer(letter)
    error = reply.error or Failure("invalid_reply", "its answer is none of the options")
    return Answer(None, error.of("generator"))
