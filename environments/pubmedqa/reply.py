"""The reply: reasoning, then one word, each in its tags; the format and the reader of it."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self, get_args

from environments.replies import (
    UnreadableError,
    answer_of,
    has_words,
    normal_text,
    undecorated,
    without_fence,
)

#: The answers of PubMedQA, in the order of every table.
Label = Literal["yes", "no", "maybe"]
LABELS: tuple[Label, ...] = get_args(Label)

#: The tags of a reply in their order.
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

#: What a prompt says of the reply; `{options}` are the words that may be the answer.
FORMAT_TEXT = """\
Reply in exactly this form, with nothing before it and nothing after it:
<reasoning>"the finding that decides, word for word" and what it says about the question</reasoning>
<answer>{options}</answer>"""

_REASONING_ENDS, _ANSWER_STARTS, _ANSWER_ENDS = 1, 2, 3
_RANK = {tag: rank for rank, tag in enumerate(TAGS)}
_TAG = re.compile(f"({'|'.join(map(re.escape, TAGS))})")


@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed completion.

    `answer` is None where none can be read, and `problem` then says why. `tags_in_place` counts
    0 to 4; with all four the reply keeps the format.
    """

    answer: Label | None
    problem: str
    tags_in_place: int
    reasoning: str

    @property
    def keeps_format(self) -> bool:
        return self.tags_in_place == len(TAGS)


def reply_text(reasoning: str, answer: str) -> str:
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>"


def parse_reply(completion: str, options: Sequence[Label] = LABELS) -> Reply:
    """Read a completion; never raises, and takes time linear in its length.

    Reasoning that a model sets apart before its reply, and a code fence around it, are not part of
    it. The answer is that of the last `<answer>` element with no other tag in it. It must be one of
    `options`, whole and in any letter case; nothing is searched for in it and nothing is guessed.
    """
    try:
        text = without_fence(answer_of(completion, own_tag="reasoning"))
    except UnreadableError as error:
        return Reply(None, str(error), 0, "")
    texts_and_tags = _TAG.split(text)
    texts, ranks = texts_and_tags[::2], [_RANK[tag] for tag in texts_and_tags[1::2]]
    answer, problem = _last_answer(texts, ranks, options)
    in_place = sum(_in_place(texts, ranks, rank, options) for rank in range(len(TAGS)))
    reasoning = texts[_REASONING_ENDS] if in_place == len(TAGS) else ""
    return Reply(answer, problem, in_place, reasoning)


def _last_answer(
    texts: Sequence[str], ranks: Sequence[int], options: Sequence[Label]
) -> tuple[Label | None, str]:
    """The last answer, or None and what is wrong with it; `texts[i]` comes before tag i."""
    for index in range(len(ranks) - 1, 0, -1):
        if ranks[index - 1] == _ANSWER_STARTS and ranks[index] == _ANSWER_ENDS:
            word = _word(texts[index])
            answer = next((option for option in options if option == word), None)
            return answer, "" if answer else "the answer is none of the options"
    return None, "no <answer> element"


def _in_place(
    texts: Sequence[str], ranks: Sequence[int], rank: int, options: Sequence[Label]
) -> bool:
    """Whether a tag occurs once, in its order among the others, after what belongs before it.

    Nothing comes before `<reasoning>`, words before `</reasoning>`, nothing between that and
    `<answer>`, one of the options before `</answer>`, and nothing more after it.
    """
    if ranks.count(rank) != 1:
        return False
    index = ranks.index(rank)
    if not max(ranks[:index], default=-1) < rank < min(ranks[index + 1 :], default=len(TAGS)):
        return False
    before = texts[index]
    if rank == _REASONING_ENDS:
        return has_words(before)
    if rank == _ANSWER_ENDS:
        return _word(before) in options and not texts[-1].strip()
    return not before.strip()


def _word(text: str) -> str:
    # `lower`, not `casefold`: the latter would take the long s of "ye\u017f" for an s.
    return undecorated(text).lower()


# --- grounding ------------------------------------------------------------------------------------
# Reasoning checked against the abstract: quotes word for word, numbers, and which finding.
#
# All is compared word by word, so that letter case, spacing and punctuation do not matter and the
# signs of a finding (`<`, `=`, `%`, a minus) do. A quote is what stands between double quotation
# marks of any kind, or outside of these between single ones, and has `LEAST_WORDS` or more: shorter
# ones are terms. A double mark that is never closed opens a quote of the whole rest.
#
# The finding that decides is known of invented abstracts. Of others it is the sentence of the
# findings that shares most with the abstract's own conclusion, which no prompt shows.
#
# It reads words, not meaning: numbers in letters and a false paraphrase pass.


#: The words, numbers and signs of the shortest quote.
LEAST_WORDS = 4
#: Where a sentence ends: a mark, white space, and what can begin the next one. "vs. 12", "vs.
#: placebo" and "P = .05" are not cut.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\bvs\.)\s+(?=[\"'(\[]?[A-Z0-9])")

_NUMBER = re.compile(r"\.?\d+(?:[.,]\d+)*")
_WORD = re.compile(rf"{_NUMBER.pattern}|[^\W\d_]+|[<>=≤≥±%]|-(?=\.?\d)")
# Quotation marks, hyphens, dashes and the minus, and the point that some journals set in decimals.
_ALIKE = str.maketrans(
    "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2010\u2011\u2012\u2013\u2014\u2212\u00b7",
    '""""""------.',
)
# All that `_plain` makes a quotation mark.
_MARKS = re.compile('["\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02]')
#: What stands between other marks than `"`; an apostrophe is none, for a letter stands before it.
_SINGLE = re.compile(
    r"(?<!\w)[\u2018'`\u2039\u300c\u300e\u301d\u2032](?=\w)(.{1,400}?)[\u2019'`\u203a\u300d\u300f\u301e\u2032](?!\w)",
    re.DOTALL,
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
    """A reasoning's quotes, errors and evidence.

    `quotes` are all of them as words, `false_quotes` and `false_numbers` those that stand neither
    in the abstract nor in the question. `evidence` is 1 where the quotes are the finding that
    decides, word for word, and 0 where they share with it half of what it and they say, or less.
    """

    quotes: tuple[str, ...]
    false_quotes: tuple[str, ...]
    false_numbers: tuple[str, ...]
    evidence: float

    @property
    def made_up(self) -> bool:
        return bool(self.false_quotes or self.false_numbers)

    def value(self, *, is_correct: bool) -> float:
        """Value the evidence: a wrong answer loses what a right one earns.

        For the finding that decides does not say what a wrong answer says. So quoting it unread
        gains nothing on average unless the answer is right in more than half.
        """
        if self.made_up:
            return -1.0
        return self.evidence if is_correct else 0.0 - self.evidence  # never -0.0


@dataclass(frozen=True, slots=True)
class Abstract:
    """A prompt's context and question; finding and conclusion if known."""

    context: str
    question: str
    finding: str = ""
    conclusion: str = ""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """The abstract of a prompt. Raises `ValueError` if it has no context or no question."""
        keys = ("context", "question", "finding", "conclusion")
        texts = {key: text for key in keys if isinstance(text := metadata.get(key), str)}
        if missing := {"context", "question"} - texts.keys():
            raise ValueError(
                f"no {' and no '.join(sorted(missing))} in its metadata, with which reasons are "
                "checked"
            )
        return cls(**texts)


def grounds(reasoning: str, abstract: Abstract) -> Grounds:
    """Read a reasoning; never raises, and takes time linear in its length."""
    source = _source(abstract)
    text = _plain(reasoning)
    # What the marks cut: the pieces at odd places are quotes. One that recurs says nothing more.
    cut = text.split('"')
    single = [quote for piece in cut[::2] for quote in _SINGLE.findall(piece)]
    pieces = [_words(piece) for piece in (*cut[1::2], *single)]
    quotes = dict.fromkeys(_joined(piece) for piece in pieces if len(piece) >= LEAST_WORDS)
    numbers = dict.fromkeys(map(_number, _NUMBER.findall(_LIST_MARK.sub("", text))))
    quote_words = Counter(word for quote in quotes for word in quote.split())
    return Grounds(
        quotes=tuple(quote.strip() for quote in quotes),
        false_quotes=tuple(quote.strip() for quote in quotes if quote not in source.text),
        false_numbers=tuple(number for number in numbers if number not in source.numbers),
        evidence=max((_agreement(quote_words, words) for words in source.deciding), default=0.0),
    )


def _agreement(quote_words: Counter[str], finding: Counter[str]) -> float:
    """Twice the Jaccard index of two bags of words less one, not below 0.

    What is missing of the finding, its verb for one, and what is quoted beside it count alike.
    """
    common = (quote_words & finding).total()
    return max(0.0, 2 * common / (quote_words.total() + finding.total() - common) - 1)


def quotes_whole(grounds: Grounds, finding: str) -> bool:
    """Whether one of the quotes holds all of this finding."""
    finding_text = _joined(_words(_plain(finding)))
    return any(finding_text in f" {quote} " for quote in grounds.quotes)


def closeness(sentence: str, question: str) -> int:
    """How many words of the question, by their stems, a sentence shares."""
    return len(_stems_of(sentence) & _stems_of(question))


# --- abstract and question -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    """A prompt as words with a space around each; `deciding` are the words of findings."""

    text: str
    numbers: frozenset[str]
    deciding: tuple[Counter[str], ...]


@lru_cache(maxsize=1024)  # the generations of a prompt share their abstract
def _source(abstract: Abstract) -> _Source:
    context, question = (_words(_plain(text)) for text in (abstract.context, abstract.question))
    words = [*context, "/", *question]
    return _Source(
        text=_joined(words),
        numbers=frozenset(word for word in words if word[-1].isdigit()),
        deciding=tuple(Counter(_words(_plain(text))) for text in deciding_findings(abstract)),
    )


def deciding_findings(abstract: Abstract) -> list[str]:
    """The sentences that decide: the known one, or those that share most with the conclusion.

    A shared word counts by how few sentences of the abstract have it. Words of the question decide
    where the conclusion does not, or without one; after that all sentences are equal.
    """
    if abstract.finding:
        return [abstract.finding]
    sentences = sentences_of_findings(abstract.context)
    stems = [_stems_of(sentence) for sentence in SENTENCE_END.split(abstract.context)]
    counts = Counter(stem for sentence_stems in stems for stem in sentence_stems)
    rarity = {stem: math.log((len(stems) + 1) / n) for stem, n in counts.items()}
    conclusion, question = _stems_of(abstract.conclusion), _stems_of(abstract.question)

    def shared(sentence: str) -> tuple[float, float]:
        words = _stems_of(sentence)
        by_conclusion, by_question = (
            math.fsum(rarity.get(stem, 0.0) for stem in words & target)
            for target in (conclusion, question)
        )
        return by_conclusion, by_question

    maximum = max(map(shared, sentences), default=None)
    return list(dict.fromkeys(s for s in sentences if shared(s) == maximum))


def sentences_of_findings(context: str) -> list[str]:
    """The sentences of the findings that are long enough to be quoted."""
    cut = [s for text in findings_of(context) for s in SENTENCE_END.split(text.strip())]
    return [sentence for sentence in cut if len(_words(_plain(sentence))) >= LEAST_WORDS]


def findings_of(context: str) -> list[str]:
    """The sections labelled as results or findings; the whole abstract if none is.

    A section is a line of the prompt, after its label and a colon.
    """
    cut = _LABEL.split(context)  # what precedes the first label, then labels and texts in turn
    labelled = zip(cut[1::2], cut[2::2], strict=True)
    sections = [text for label, text in labelled if any(w in label.lower() for w in _OF_FINDINGS)]
    return sections or [context]


def without_marks(text: str) -> str:
    """A text that can stand between quotation marks, for it has none itself."""
    return _MARKS.sub("", text)


# --- words ---------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    return normal_text(text).translate(_ALIKE)


def _words(plain: str) -> list[str]:
    """Words, numbers (0.050 as .05, 1,000 as 1000) and signs."""
    return [_number(word) if word[-1].isdigit() else word for word in _WORD.findall(plain)]


def _number(word: str) -> str:
    integer, point, decimals = word.replace(",", "").partition(".")
    decimals = decimals.rstrip("0")
    return (integer.lstrip("0") + (point + decimals if decimals else "")) or "0"


def _joined(words: Sequence[str]) -> str:
    return f" {' '.join(words)} "


@lru_cache(maxsize=1024)
def _stems_of(text: str) -> frozenset[str]:
    words = (word for word in _words(_plain(text)) if len(word) >= _LEAST_LETTERS)
    return frozenset(word[:_STEM] for word in words if word.isalpha()) - _COMMON
