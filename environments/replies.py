"""The one reader of what models write: reasoning set apart, fences, JSON, and what counts as text.

A reply is hostile input. Everything here takes time linear in its length.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

#: An answer in JSON is longer than this, or opens more braces and brackets, only when something is
#: wrong with it: a bound on depth and on work. Reasoning in tags may be of any length.
MAX_OBJECT_CHARACTERS = 20_000
MAX_OBJECT_OPENINGS = 64

_FENCE = "```"
_REASONING_END = re.compile(r"</(?:think|thinking|reasoning|scratchpad)>", re.IGNORECASE)
_REASONING_START = re.compile(r"<(?:think|thinking|reasoning|scratchpad)>", re.IGNORECASE)
_HALF_A_CHARACTER = re.compile(r"[\ud800-\udfff]")
#: Letters to Unicode, blank on every screen: the fillers of Hangul.
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")


class UnreadableError(ValueError):
    """Why nothing can be read from a reply."""


@dataclass(frozen=True, slots=True)
class Unparseable:
    """The same as a value."""

    reason: str


def after_reasoning(reply: str) -> str:
    """What follows the reasoning in tags.

    Raises `UnreadableError` where the reasoning was cut off: it holds drafts and no answer.
    """
    if "<" not in reply:
        return reply
    text = _REASONING_END.split(reply)[-1]
    if _REASONING_START.search(text):
        raise UnreadableError("the reasoning does not end")
    return text


def read_object(reply: str) -> dict[str, Any]:
    """The JSON object of which a reply consists. Raises `UnreadableError`.

    Reasoning in tags before it and a code fence around it are tolerated. Text outside of it,
    several objects, a key that stands twice, NaN are not: nothing is guessed.
    """
    text = _without_fence(after_reasoning(reply).strip())
    if len(text) > MAX_OBJECT_CHARACTERS:
        raise UnreadableError(f"longer than {MAX_OBJECT_CHARACTERS:,} characters")
    refuse_openings(text, MAX_OBJECT_OPENINGS)
    try:
        found = json.loads(text, object_pairs_hook=keys_once, parse_constant=no_constant)
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    if not isinstance(found, dict):
        raise UnreadableError("not a JSON object")
    return found


def _without_fence(text: str) -> str:
    if len(text) >= 2 * len(_FENCE) and text.startswith(_FENCE) and text.endswith(_FENCE):
        return text[len(_FENCE) : -len(_FENCE)].removeprefix("json")
    return text


def refuse_openings(text: str, most: int) -> None:
    """Raise `UnreadableError` for JSON with more braces and brackets than any answer needs."""
    if text.count("{") + text.count("[") > most:
        raise UnreadableError("too many braces")


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys stand once: which of two values was meant cannot be known."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UnreadableError("a key stands twice")
    return found


def no_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which Python's decoder takes."""
    raise UnreadableError(f"{name} is not JSON")


def refuse_half_characters(text: str) -> None:
    """Raise `UnreadableError` for a text that no file can hold."""
    if _HALF_A_CHARACTER.search(text):
        raise UnreadableError("not valid Unicode")


def has_text(text: str) -> bool:
    """Whether a text says anything: it holds a letter or a digit, of any script, that can be seen.

    Signs, zero-width spaces and control characters say nothing.
    """
    return any(character.isalnum() and character not in _BLANK_LETTERS for character in text)


def has_words(text: str) -> bool:
    """Whether a text holds words: two letters or more, of any script, that can be seen."""
    return sum(map(_is_letter, text)) >= 2


def _is_letter(character: str) -> bool:
    return character.isalpha() and character not in _BLANK_LETTERS
