"""A question with its abstract and label, in one form for all sources."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.pubmedqa import LABELS

__all__ = ["LABELS", "Item", "Section", "normal_question"]

_NO_WORD = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled part of a structured abstract; the label is empty where there is none."""

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
