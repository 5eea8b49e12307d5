"""A question with its abstract and label, in one form for all sources, fitted to a budget."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import SENTENCE_END

__all__ = ["LABELS", "Item", "Section", "normal_question"]

_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a structured abstract; its label is empty if it has none."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """One question; `sections` is the abstract without its conclusion, `gold` one of `LABELS`.

    `extra` goes into the metadata of its prompt: the finding that decides or the abstract's own
    conclusion, where one is known.
    """

    id: str
    question: str
    sections: Sequence[Section]
    gold: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def normal_question(question: str) -> str:
    """The words of a question alone, in lower case: what makes two questions the same."""
    return _NO_WORD.sub(" ", question.casefold()).strip()


# --- an abstract fitted to a budget of tokens ----------------------------------------------------


_PIECE = re.compile(r"[^\W\d_]+|[^\s]")
_LETTERS_PER_TOKEN = 4


@lru_cache(maxsize=64)  # all prompts of a set share what they are told to do
def estimate_tokens(text: str) -> int:
    """An estimate, meant to be high, of a text's tokens without the model's tokenizer.

    A digit and a sign are a token each, as in Qwen's and Llama's vocabularies at worst; a word is
    one for every four of its bytes begun.
    """
    return sum(-(-len(piece.encode()) // _LETTERS_PER_TOKEN) for piece in _PIECE.findall(text))


def fit_sections(sections: Sequence[Section], budget: int) -> tuple[Section, ...]:
    """The abstract's last sentences that fit into `budget` tokens, each under its label.

    Whole sentences are left out from the beginning, for an abstract tells its background first
    and its results last. A last sentence that is itself too long keeps its last words.
    """
    tail: list[Section] = []
    for section in reversed(sections):
        text, budget = _fit_text(section, budget)
        if text:
            tail.append(Section(section.label, text))
        if text != section.text:
            break
    return tuple(reversed(tail)) or (_last_words(sections[-1], budget),)


def _fit_text(section: Section, budget: int) -> tuple[str, int]:
    """The end of a section that fits, and what is left of the budget."""
    room = budget - estimate_tokens(f"{section.label}:")
    start = len(section.text)
    gaps = list(SENTENCE_END.finditer(section.text))
    starts = [0, *(gap.end() for gap in gaps)]
    ends = [*(gap.start() for gap in gaps), len(section.text)]
    for position, end in zip(reversed(starts), reversed(ends), strict=True):
        cost = estimate_tokens(section.text[position:end])
        if cost > room:
            break
        start, room = position, room - cost
    text = section.text[start:]
    return text, room if text else budget


def _last_words(section: Section, budget: int) -> Section:
    room = budget - estimate_tokens(f"{section.label}:")
    words: list[str] = []
    for word in reversed(section.text.split()):
        room -= estimate_tokens(word)
        if room < 0:
            break
        words.append(word)
    return Section(section.label, " ".join(reversed(words)))
