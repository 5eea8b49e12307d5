"""The words that search, defects and the extractive reader count: one tokenizer for all of them."""

import re
from functools import lru_cache

from bm25s.stopwords import STOPWORDS_EN  # type: ignore[import-untyped]

#: Changes with the tokens that a text gives, so that an index made by another version is refused.
TOKENIZER_VERSION = "words-1"

_STOPWORDS = frozenset(STOPWORDS_EN)
_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> list[str]:
    """The words of a text in order: runs of letters and digits in lower case, no stop words.

    Single letters stay, since "vitamin C" and "hepatitis B" differ by them. Nothing is stemmed.
    """
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOPWORDS]


@lru_cache(maxsize=32_768)
def word_set(text: str) -> frozenset[str]:
    """The distinct words of a text; passages come back step after step, so they are kept."""
    return frozenset(words_of(text))
