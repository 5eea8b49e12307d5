"""What the reasoning takes from the abstract: quotes word for word, numbers, and to what point.

All is compared word by word, so that letter case, spacing and punctuation do not matter and the
signs of a finding (`<`, `=`, `%`, a minus) do. A quote is what stands between double quotation
marks of any kind and has `LEAST_WORDS` or more: shorter ones are terms. A mark that is never closed
opens a quote of the whole rest.

It reads words, not meaning: numbers in letters and a false paraphrase pass.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

#: The words, numbers and signs of the shortest quote.
LEAST_WORDS = 4

_NUMBER = re.compile(r"\.?\d+(?:[.,]\d+)*")
_WORD = re.compile(rf"{_NUMBER.pattern}|[^\W\d_]+|[<>=≤≥±%]|-(?=\.?\d)")
# Quotation marks, hyphens, dashes and the minus, and the point that some journals set in decimals.
_ALIKE = str.maketrans(
    "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2010\u2011\u2012\u2013\u2014\u2212\u00b7",
    '""""""------.',
)
_LIST_MARK = re.compile(r"^[ \t]*\d{1,2}[.)](?=[ \t])", re.MULTILINE)
_LABEL = re.compile(r"^([^\W\d_][^:\n]{0,60}): ", re.MULTILINE)
_OF_FINDINGS = ("result", "finding")
# Words of one stem begin alike: "reduces" and "reduced", but not "reduction".
_STEM, _LEAST_LETTERS = 5, 4
_COMMON = frozenset(
    word[:_STEM]
    for word in """about after also although among because been before being between both case
    compared could does during each effect first from further group have hence however into less
    more most much only other outcome over patient same shall should significant since some study
    such than that their them then there therefore these they this those through thus treatment
    very well were what when where whether which while whose will with within without
    would""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a reasoning takes from the abstract.

    `quotes` are all of them as words, `false_quotes` and `false_numbers` those that stand neither
    in the abstract nor in the question. With `to_the_point` a quote is of the abstract's findings
    and shares a word with the question, and all quotes together are half of the abstract at most:
    whoever quotes everything shows nothing.
    """

    quotes: tuple[str, ...]
    false_quotes: tuple[str, ...]
    false_numbers: tuple[str, ...]
    to_the_point: bool

    @property
    def value(self) -> float:
        """0 with anything false, 1 with a quote to the point, 1/2 where nothing is shown."""
        if self.false_quotes or self.false_numbers:
            return 0.0
        return 1.0 if self.to_the_point else 0.5


def grounds(reasoning: str, context: str, question: str) -> Grounds:
    """Read a reasoning; never raises, and takes time linear in its length."""
    source = _source(context, question)
    text = _plain(reasoning)
    # What the marks cut: the pieces at odd places are quotes.
    pieces = [_words(piece) for piece in text.split('"')[1::2]]
    quotes = tuple(_joined(piece) for piece in pieces if len(piece) >= LEAST_WORDS)
    said = dict.fromkeys(map(_number, _NUMBER.findall(_LIST_MARK.sub("", text))))
    chosen = sum(map(len, pieces)) <= source.size / 2
    return Grounds(
        quotes=tuple(quote.strip() for quote in quotes),
        false_quotes=tuple(quote.strip() for quote in quotes if quote not in source.text),
        false_numbers=tuple(number for number in said if number not in source.numbers),
        to_the_point=chosen
        and any(quote in source.findings and source.topic & _stems(quote) for quote in quotes),
    )


def quotes_whole(grounds: Grounds, finding: str) -> bool:
    """Whether one of the quotes holds all of this finding."""
    wanted = _joined(_words(_plain(finding)))
    return any(wanted in f" {quote} " for quote in grounds.quotes)


def closeness(sentence: str, question: str) -> int:
    """How many words of the question, by their stems, a sentence shares."""
    said, asked = (_stems(_joined(_words(_plain(text)))) for text in (sentence, question))
    return len(said & asked)


# --- abstract and question -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    """What a prompt shows, as words with a space around each.

    `size` is how many words the abstract has, `topic` are the stems of the question.
    """

    size: int
    text: str
    findings: str
    numbers: frozenset[str]
    topic: frozenset[str]


@lru_cache(maxsize=1024)  # the generations of a prompt share their abstract
def _source(context: str, question: str) -> _Source:
    abstract, asked = (_words(_plain(text)) for text in (context, question))
    words = [*abstract, "/", *asked]
    return _Source(
        size=len(abstract),
        text=_joined(words),
        findings=" / ".join(_joined(_words(_plain(text))) for text in findings_of(context)),
        numbers=frozenset(word for word in words if word[-1].isdigit()),
        topic=_stems(_joined(asked)),
    )


def findings_of(context: str) -> list[str]:
    """The sections whose label speaks of results or findings; the whole abstract where none does.

    A section is a line of the prompt, after its label and a colon.
    """
    cut = _LABEL.split(context)  # what precedes the first label, then labels and texts in turn
    labelled = zip(cut[1::2], cut[2::2], strict=True)
    named = [text for label, text in labelled if any(w in label.lower() for w in _OF_FINDINGS)]
    return named or [context]


# --- words ---------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    if text.isascii():  # most are, and it is ten times faster
        return text.lower()
    return unicodedata.normalize("NFKC", text).translate(_ALIKE).lower()


def _words(plain: str) -> list[str]:
    """Words, numbers (0.050 as .05, 1,000 as 1000) and signs."""
    return [_number(word) if word[-1].isdigit() else word for word in _WORD.findall(plain)]


def _number(word: str) -> str:
    whole, point, decimals = word.replace(",", "").partition(".")
    decimals = decimals.rstrip("0")
    return (whole.lstrip("0") + (point + decimals if decimals else "")) or "0"


def _joined(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


def _stems(joined: str) -> frozenset[str]:
    words = (word for word in joined.split() if len(word) >= _LEAST_LETTERS and word.isalpha())
    return frozenset(word[:_STEM] for word in words) - _COMMON
