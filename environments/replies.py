"""The one reader of what models write: reasoning set apart, fences, JSON, and what counts as text.

A reply is hostile input. Everything here takes time linear in its length: a pattern has no part
that repeats without a bound, and nothing is searched for from more than one place.

    reply --answer_of--> without its reasoning --without_fence--> --json--> an object

Every reader begins with `answer_of`; tests/environments/test_readers.py holds them to one table.
"""

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

#: An answer in JSON is longer than this, or opens more braces and brackets, only when something is
#: wrong with it: a bound on depth and on work. Reasoning in tags may be of any length.
MAX_OBJECT_CHARACTERS = 20_000
MAX_OBJECT_OPENINGS = 64
#: A text is read for its words up to here.
MAX_TEXT_CHARACTERS = 50_000
#: And so many combining marks in a row, as in UAX 15's stream-safe format: to put them in order
#: takes time quadratic in their number.
MAX_MARKS = 30

_FENCE = "```"
_BROKEN = re.compile(r"[\0\ud800-\udfff]")
#: What may follow an opening fence: the name of a language.
_LANGUAGE = re.compile(r"[ \t]*[\w+-]{0,20}[ \t]*")
_HALF_A_CHARACTER = re.compile(r"[\ud800-\udfff]")
#: Letters to Unicode, blank on every screen: the fillers of Hangul.
_BLANK_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")

#: Names of tags in which models reason, as in <think>, <seed:think> or <ifm|think_fast>.
_NAMES = (
    *("think", "think_fast", "think_faster", "thinking", "thought", "thoughts"),
    *("reasoning", "reflection", "scratchpad", "analysis"),
)
#: Marks of other forms, each with the one that ends it: Mistral, Kimi, Cohere, OpenThinker, PLaMo,
#: Gemma and gpt-oss. A server that knows its model's marks takes them away itself.
_MARKS = (
    (r"\[THINK\]", r"\[/THINK\]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|plamo:begin_think:plamo\|>", r"<\|plamo:end_think:plamo\|>"),
    (r"<\|channel>thought", r"<channel\|>"),
    (r"<\|channel\|>analysis", r"<\|channel\|>final<\|message\|>"),
)
#: Every tag and mark holds one of these.
_WORDS = ("think", "thought", "reasoning", "reflection", "scratchpad", "analysis", "channel")

#: Marks of the end of a turn that a server may leave at the end of its text, and how many.
_END_MARKS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>"),
    *("<|return|>", "<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<eos>", "</s>"),
)
_MOST_END_MARKS = 3

#: What may stand around the word of an answer: white space, a full stop, quotes, Markdown, LaTeX.
_AROUND_A_WORD = " \t\r\n.!\"'*_`$()"
#: Wide forms and spaces that look like others.
_PLAIN = str.maketrans("\u00a0\u2007\u202f\u3000\uff1a\uff0e\uff08\uff09", "    :.()")
_LABELLED = re.compile(r"(?:(?:the )?final )?answer[ *_]{0,4}:", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\{(?:\\text\{)?([^{}]{0,200})\}{1,2}")


class UnreadableError(ValueError):
    """Why nothing can be read from a reply."""


@dataclass(frozen=True, slots=True)
class Unparseable:
    """The reason why nothing can be read from a reply, as a value."""

    reason: str


@cache
def _reasoning(own_tag: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The patterns of the beginning and the end of reasoning; `own_tag` belongs to the answer."""
    names = "|".join(name for name in _NAMES if name != own_tag)
    prefix = r"(?:[a-z]{1,8}[:|])?"
    starts = [rf"<{prefix}(?:{names})>", *(start for start, _ in _MARKS)]
    ends = [rf"</{prefix}(?:{names})>", *(end for _, end in _MARKS)]
    flags = re.IGNORECASE | re.ASCII
    return re.compile("|".join(starts), flags), re.compile("|".join(ends), flags)


def is_broken(text: str) -> bool:
    """Whether a text holds NUL, or half of a surrogate pair, which UTF-8 has no bytes for."""
    return _BROKEN.search(text) is not None


def answer_of(reply: str, longest: int | None = None, *, own_tag: str = "") -> str:
    """The part of a reply after its reasoning.

    Only its end need be marked, for many chat templates hold its beginning. `own_tag` is a name
    that the answer uses itself. Raises `UnreadableError` where the reasoning was cut off, since it
    holds drafts and no answer, and for an answer that is longer than `longest` characters or holds
    half a character, which no file can.
    """
    answer, lower = reply, reply.lower()
    # Most replies hold none of the words: a plain search is five times faster than the patterns.
    if any(word in lower for word in _WORDS if word != own_tag):
        start, end = _reasoning(own_tag)
        answer = end.split(reply)[-1]
        if start.search(answer):
            raise UnreadableError("the reasoning does not end")
    answer = without_end_marks(answer)
    if longest is not None and len(answer) > longest:
        raise UnreadableError(f"longer than {longest:,} characters")
    refuse_half_characters(answer)
    return answer


def without_end_marks(text: str) -> str:
    """Return the text without the marks of chat templates that end it."""
    for _ in range(_MOST_END_MARKS):
        end = text.rstrip()
        mark = next((mark for mark in _END_MARKS if end.endswith(mark)), None)
        if mark is None:
            break
        text = end.removesuffix(mark)
    return text


def undecorated(text: str) -> str:
    r"""Return a word without what models write around it: `**B**`, `\boxed{B}`, `Answer: B`."""
    word = text.translate(_PLAIN).strip(_AROUND_A_WORD)
    if label := _LABELLED.match(word):
        word = word[label.end() :].strip(_AROUND_A_WORD)
    if boxed := _BOXED.fullmatch(word):
        word = boxed[1].strip(_AROUND_A_WORD)
    return word


def without_fence(text: str) -> str:
    """The text in a code fence that is around all of it, or the text itself; nothing around it."""
    text = text.strip()
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    inner = text[len(_FENCE) : -len(_FENCE)]
    first, newline, body = inner.partition("\n")
    if newline and _LANGUAGE.fullmatch(first):
        return body.strip()
    return inner.removeprefix("json").strip()


def read_object(reply: str) -> dict[str, Any]:
    """Read a reply that consists of one JSON object. Raises `UnreadableError`.

    Reasoning before it and a code fence around it are tolerated. Text outside of it, several
    objects, a key given twice, NaN, half a character are not: nothing is guessed.
    """
    text = without_fence(answer_of(reply, MAX_OBJECT_CHARACTERS))
    refuse_openings(text, MAX_OBJECT_OPENINGS)
    try:
        value = json.loads(text, object_pairs_hook=keys_once, parse_constant=no_constant)
    except ValueError as error:
        raise UnreadableError(str(error)) from None
    if not isinstance(value, dict):
        raise UnreadableError("not a JSON object")
    refuse_half_characters(json.dumps(value, ensure_ascii=False))
    return value


def refuse_openings(text: str, limit: int) -> None:
    """Raise `UnreadableError` for JSON with more braces and brackets than any answer needs."""
    if text.count("{") + text.count("[") > limit:
        raise UnreadableError("too many braces")


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object with each key once: which of two values was meant cannot be known."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise UnreadableError("a key is given twice")
    return value


def no_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which Python's decoder takes."""
    raise UnreadableError(f"{name} is not JSON")


def refuse_half_characters(text: str) -> None:
    """Raise `UnreadableError` for a text that no file can hold."""
    if not text.isascii() and _HALF_A_CHARACTER.search(text):
        raise UnreadableError("not valid Unicode")


def normal_text(text: str) -> str:
    """A text in NFKC, small letters, with the first marks of a run and the first characters."""
    text = text[:MAX_TEXT_CHARACTERS]
    if text.isascii():  # most are, and it is ten times faster
        return text.lower()
    characters, run = [], 0
    for character in text:
        # A character may be made of marks alone, or of a letter with marks.
        for part in unicodedata.normalize("NFKD", character):
            run = run + 1 if unicodedata.combining(part) else 0
        if run <= MAX_MARKS:
            characters.append(character)
    return unicodedata.normalize("NFKC", "".join(characters)).lower()


def has_text(text: str) -> bool:
    """Whether a text says anything: it holds a visible letter or digit of any script.

    Signs, zero-width spaces and control characters say nothing.
    """
    return any(character.isalnum() and character not in _BLANK_LETTERS for character in text)


def has_words(text: str) -> bool:
    """Whether a text holds words: two or more visible letters of any script."""
    return sum(character.isalpha() and character not in _BLANK_LETTERS for character in text) >= 2
