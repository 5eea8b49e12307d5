"""Who answers the question from the documents: what a reader is, and one that needs no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.base import Failure
from environments.rag.words import word_set

#: The letters of the options that a question may have.
LETTERS = ("A", "B", "C", "D")


@dataclass(frozen=True, slots=True)
class Exam:
    """One question with its options by letter, and the documents that were found, best first.

    Queries are no part of it: an answer in a query reaches the reader by what it finds alone.
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
        """Those of the options."""
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

    Among documents that share equally many it trusts the order in which they were found.
    Deterministic, and without any knowledge of its own: without a document that names an option it
    takes the first one.
    """

    identity = "extractive-2"

    def answer(self, exams: Sequence[Exam]) -> list[Answer]:
        """See `Reader`."""
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
