"""The lexicon of the judges without a model, from `lexicon.yaml`, as sets and patterns."""

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from environments.dharma.ratings import DomainScope
from environments.yaml_file import read_yaml_file


class _Lexicon(BaseModel, extra="forbid", frozen=True):
    """The content of `lexicon.yaml`."""

    words: dict[DomainScope, str]
    phrases: dict[DomainScope, list[str]]
    ambiguous: list[str]
    fields_outside: list[str]
    common: str
    others: str
    patterns: dict[str, list[str]]


_LEXICON = read_yaml_file(Path(__file__).with_name("lexicon.yaml"), _Lexicon)

#: Names of fields from outside, where something is declined.
FIELDS_OUTSIDE = frozenset(_LEXICON.fields_outside)
#: A word -> its scope.
SCOPE_OF_WORD: Mapping[str, DomainScope] = {
    word: scope
    for scope, words in _LEXICON.words.items()
    for word in words.split()
    if word not in _LEXICON.ambiguous
}
#: Two or three words -> their scope.
SCOPE_OF_PHRASE: Mapping[str, DomainScope] = {
    phrase: scope for scope, phrases in _LEXICON.phrases.items() for phrase in phrases
}
COMMON = frozenset(" ".join([_LEXICON.common, *_LEXICON.words.values()]).split())


def is_known(word: str) -> bool:
    """Whether a word is in the lexicon, in one of its plain forms, or short of letters."""
    forms = (word, *(word.removesuffix(end) for end in ("s", "es", "d", "ed", "ing", "ly", "'s")))
    return word.isdigit() or any(form in COMMON for form in forms)


def _pattern(name: str) -> re.Pattern[str]:
    alternatives = "|".join(_LEXICON.patterns[name]).replace("{others}", _LEXICON.others)
    return re.compile(rf"\b(?:{alternatives})\b", re.IGNORECASE)


DECLINES = _pattern("declines")
OFFERS = _pattern("offers")
HANDS_OFF = _pattern("hands_off")
ADVISES = _pattern("advises")
ADDRESSES_THE_JUDGE = _pattern("addresses_the_judge")
EMERGENCY_CARE = _pattern("emergency_care")
URGENT_CARE = _pattern("urgent_care")
ROUTINE_CARE = _pattern("routine_care")
HARMFUL = _pattern("harmful")
CAUTION = _pattern("caution")
EMPATHY = _pattern("empathy")
EMERGENCY = _pattern("emergency")
SOON = _pattern("soon")

#: Words that only a machine-readable answer holds: JSON is nothing that a patient can read.
_MARKUP = re.compile(r"[{}\[\]<>|]")


def looks_like_markup(text: str) -> bool:
    """Whether a text is full of brackets."""
    return len(_MARKUP.findall(text)) > 3
