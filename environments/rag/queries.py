"""The rewriter's reply: exactly three search queries, their possible defects, and copied ones.

Query 1: anion gap metabolic acidosis calcium oxalate crystals
Query 2: ethylene glycol poisoning antidote
Query 3: fomepizole alcohol dehydrogenase inhibition
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from environments.base import Rollout
from environments.rag.retrieval import word_set
from environments.replies import Unparseable, UnreadableError, answer_of, has_text

NUMBER_OF_QUERIES = 3

#: A longer reply is not a list of queries; the same holds for a longer query, which is a dump.
MAX_REPLY_CHARACTERS = 20_000
MAX_QUERY_CHARACTERS = 400

#: Two queries with this share of their words in common (Jaccard) are one query twice.
_REPEATED = 0.8
#: A query with this share of the question's words is the question.
_COPIED = 0.9
#: This share of the words that only one option has names that option.
_NAMED = 0.5

Defect = Literal["empty", "repeated", "copied"]

_LABEL = re.compile(
    r"[ \t>*#-]{0,8}query[ \t\u00a0]{1,4}([0-9]{1,2})[ \t*]{0,4}[:\uff1a][ \t*]{0,4}(.*)",
    re.IGNORECASE,
)
_AROUND = " \t*`\"'\u201c\u201d"
_FENCE = "```"


@dataclass(frozen=True, slots=True)
class Queries:
    """Three parsed queries; `surplus` says that the reply holds other text beside them."""

    texts: tuple[str, ...]
    surplus: bool = False


def parse_queries(reply: str) -> Queries | Unparseable:
    """Read `Query 1:`, `Query 2:` and `Query 3:`, one line each, in this order.

    Tolerated: reasoning in tags before them, letter case, markdown's bold, code fences; any other
    text beside the queries makes `surplus`. Refused: a query too few or too many, a number twice
    or out of order. A query may be empty: that is a defect, not a broken format. Never raises.
    """
    try:
        text = answer_of(reply, MAX_REPLY_CHARACTERS)
    except UnreadableError as error:
        return Unparseable(str(error))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(_FENCE)]
    labelled = [match for line in lines if (match := _LABEL.fullmatch(line))]
    numbers = [int(match[1]) for match in labelled]
    if numbers != list(range(1, NUMBER_OF_QUERIES + 1)):
        numbers_text = ", ".join(map(str, numbers[:10])) or "none"
        return Unparseable(f"queries 1, 2, 3 were asked for, and the reply numbers {numbers_text}")
    texts = tuple(match[2].strip(_AROUND) for match in labelled)
    if max(map(len, texts)) > MAX_QUERY_CHARACTERS:
        return Unparseable(f"a query is longer than {MAX_QUERY_CHARACTERS} characters")
    return Queries(texts, surplus=len(labelled) < len(lines))


def three_queries(texts: Sequence[str]) -> str:
    """A reply with these texts as its queries, fewer made up by empty ones, each on one line."""
    lines = [" ".join(text.split())[:MAX_QUERY_CHARACTERS] for text in texts]
    lines += [""] * (NUMBER_OF_QUERIES - len(lines))
    return "\n".join(f"Query {n}: {text}" for n, text in enumerate(lines, start=1))


def names_any(queries: Sequence[str], words: Sequence[str]) -> bool:
    """Whether a query has one of the words, as search sees words."""
    targets = word_set(" ".join(words))
    return any(not targets.isdisjoint(word_set(query)) for query in queries)


def name_an_option(queries: Sequence[str], question: str, options: Sequence[str]) -> bool:
    """Whether the queries, taken together, name an option that the question does not name.

    Either all words of the option name it, or half of those that no other option has. What the
    question says itself names nothing. Order and query do not matter, so that a name in parts is
    one; a synonym, which no search by words finds under that name, is not seen.
    """
    query_words = frozenset[str]().union(*map(word_set, queries))
    option_words = [word_set(option) - word_set(question) for option in options]
    sibling_words = [
        frozenset[str]().union(*option_words[:i], *option_words[i + 1 :])
        for i in range(len(option_words))
    ]
    return any(
        _covers(query_words, words, 1.0) or _covers(query_words, words - shared, _NAMED)
        for words, shared in zip(option_words, sibling_words, strict=True)
    )


def _covers(query_words: frozenset[str], words: frozenset[str], share: float) -> bool:
    return bool(words) and len(query_words & words) >= share * len(words)


def query_defects(queries: Sequence[str], question: str) -> tuple[Defect | None, ...]:
    """The defect of each query: no words, those of an earlier query, those of the question."""
    question_words = word_set(question)
    history: list[frozenset[str]] = []
    defects: list[Defect | None] = []
    for words in map(word_set, queries):
        if not any(map(has_text, words)):
            defects.append("empty")
        elif any(len(words & entry) >= _REPEATED * len(words | entry) for entry in history):
            defects.append("repeated")
        elif question_words and len(words & question_words) >= _COPIED * len(question_words):
            defects.append("copied")
        else:
            defects.append(None)
        history.append(words)
    return tuple(defects)


# --- trivial ways to search -----------------------------------------------------------------------


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")

#: Replies of which one might do for every question.
CONSTANT_REPLIES = (
    three_queries(["diagnosis", "first-line treatment", "mechanism of action"]),
    three_queries(["entry of the register", "stone", "person"]),
    three_queries([]),
)


def sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def without_first_sentence(text: str) -> str:
    """The question without what it begins with; all of it where that is all."""
    return " ".join(sentences(text)[1:]) or text


def copied_replies(rollouts: Sequence[Rollout]) -> dict[str, list[str]]:
    """Three queries out of the plan, the question or the options, for each rollout.

    The options are copied also where the rewriter does not see them: that is the stronger attack.
    """
    return {
        "copied_plan": [_reply(_plan_texts(r.metadata.get("plan", {}))) for r in rollouts],
        "copied_question": [_reply(sentences(r.metadata["question"])) for r in rollouts],
        "copied_options": [_reply(list(r.metadata["options"].values())) for r in rollouts],
    }


def planned_reply(metadata: Mapping[str, Any]) -> str | None:
    """Three queries out of the plan's words, or None without a plan."""
    texts = _plan_texts(metadata.get("plan", {}))
    return _reply(texts) if texts else None


def _plan_texts(plan: Mapping[str, Any]) -> list[str]:
    """The searches that a plan proposes; without features, none of them."""
    features = list(map(str, plan.get("discriminating_features", ())))
    return [
        *features,
        *(str(plan[key]) for key in ("best_guess", "confirming_evidence") if key in plan),
    ]


def _reply(texts: Sequence[str]) -> str:
    """The texts dealt out to the queries in order, as evenly as can be."""
    cuts = [n * len(texts) // NUMBER_OF_QUERIES for n in range(NUMBER_OF_QUERIES + 1)]
    parts = [texts[start:end] for start, end in itertools.pairwise(cuts)]
    return three_queries([" ".join(part) for part in parts])
