"""A world of invented stones: a corpus of facts, and questions that cannot be answered without.

A kind of stone has two marks, and four things are known of it, each said by one passage. A question
names the marks, and also who found the stone, which does not matter and which fills the corpus
with passages that a search for the whole question finds first. Nothing here means anything.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np

from data_prep.rag.sources import Question
from environments.rag_accuracy.corpus import Passage
from environments.rag_accuracy.queries import NUMBER_OF_QUERIES
from environments.rag_accuracy.reader import LETTERS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_MARKS = _words(
    "amber azure black brown copper coral cream crimson cyan ebony emerald golden green grey "
    "indigo ivory jade lilac maroon mauve ochre olive orange pearl pink plum purple red ruby "
    "russet rusty scarlet silver teal violet white"
)
SECOND_MARKS = _words(
    "arched barbed bent blunt braided brittle bumpy chipped cloven coiled crooked cubic dented "
    "domed dotted flat forked grooved hollow hooked jagged knotted layered lobed notched oval "
    "pitted ribbed ridged round scaly smooth spiny split twisted veined"
)
FINDERS = _words(
    "abbot actor archer artist baker barber brewer broker butler carter chemist clerk cobbler cook "
    "cooper courier dancer dealer diver doctor draper driver dyer farmer fiddler fisher gardener "
    "glazier grocer guard hatter hermit hunter jeweller joiner judge knight lawyer mason miller "
    "miner monk nurse painter pilot piper poet porter potter printer sailor scribe singer smith "
    "tailor tanner teacher waiter weaver writer"
)
#: What is known of a kind, with the values that it can have.
VALUES = {
    "origin": _words(
        "Arlen Borvik Calder Dunmar Estrel Fenwyr Gorath Halmoor Ilven Jorund Kesral Lorvane "
        "Mirdal Nostra Orvell Pelgrin"
    ),
    "owner": _words(
        "Abner Bertil Cedran Dorvid Elmira Farold Gunnel Hedwin Ismara Jovanne Kelvar Ludmer "
        "Mathild Norvin Osrick Perdita"
    ),
    "song": _words(
        "anthem ballad canon carol chant dirge fanfare fugue hymn lullaby madrigal minuet psalm "
        "rondo sonata waltz"
    ),
    "remedy": _words(
        "anise balm basil borage catnip chervil cumin dill fennel hyssop lavender mallow mint rue "
        "sage thyme"
    ),
}
#: What a vague query says in place of a mark.
VAGUE_WORDS = ("stone", "thing", "find", "colour", "shape")

#: So many groups of finders, each with so many notes: half of them more than a search brings back.
PARTIES, PARTY_SIZE, NOTES_OF_PARTY = 200, 4, (4, 36)

Kind = tuple[str, str]


def kinds() -> list[Kind]:
    """Every kind of stone: 1,296 pairs of marks."""
    return list(itertools.product(FIRST_MARKS, SECOND_MARKS))


def corpus(seed: int) -> Iterator[Passage]:
    """The facts of every kind, 5,184 passages, then about 3,900 notes that name finders."""
    rng = np.random.default_rng([seed, 0])
    for first, second in kinds():
        for asked, values in VALUES.items():
            value = values[rng.integers(len(values))]
            text = f"Stones that are {first} and {second}: their {asked} is {value}."
            yield Passage(fact_id((first, second), asked), "", text)
    for party, (*others, last) in enumerate(parties(seed)):
        for number in range(rng.integers(*NOTES_OF_PARTY)):
            asked = list(VALUES)[rng.integers(len(VALUES))]
            text = (
                f"{', '.join(others)} and {last} wrote of a stone and its {asked}, page {number}."
            )
            yield Passage(f"note/{party}/{number}", "", text)


def parties(seed: int) -> list[list[str]]:
    """The groups of finders, who found one stone after another."""
    rng = np.random.default_rng([seed, 1])
    return [_some(FINDERS, PARTY_SIZE, rng) for _ in range(PARTIES)]


def fact_id(kind: Kind, asked: str) -> str:
    """The id of the passage that says it."""
    return f"{'-'.join(kind)}/{asked}"


def corpus_hash(seed: int) -> str:
    """SHA-256 of the corpus, as its JSON lines."""
    digest = hashlib.sha256()
    for passage in corpus(seed):
        digest.update(json.dumps(asdict(passage)).encode())
    return f"sha256:{digest.hexdigest()}"


def questions(seed: int) -> list[tuple[Kind, Question]]:
    """A question on each kind."""
    value_of, found_by = _facts(seed), parties(seed)
    rng = np.random.default_rng([seed, 2])
    pairs = []
    for kind in kinds():
        asked = list(VALUES)[rng.integers(len(VALUES))]
        text = question_text(kind, asked, found_by[rng.integers(len(found_by))])
        pairs.append((kind, _question(text, kind, asked, value_of[fact_id(kind, asked)], rng)))
    return pairs


def _facts(seed: int) -> dict[str, str]:
    """The value that each fact says, by its id."""
    last_words = {p.id: p.text.rsplit(" ", 1)[1].rstrip(".") for p in corpus(seed)}
    return {name: word for name, word in last_words.items() if not name.startswith("note/")}


def _question(text: str, kind: Kind, asked: str, value: str, rng: np.random.Generator) -> Question:
    others = [other for other in VALUES[asked] if other != value]
    texts = [value, *_some(others, len(LETTERS) - 1, rng)]
    order = rng.permutation(len(texts))
    options = {letter: texts[i] for letter, i in zip(LETTERS, order, strict=True)}
    gold = next(letter for letter, text in options.items() if text == value)
    return Question(text, options, gold, (fact_id(kind, asked),))


def question_text(kind: Kind, asked: str, finders: Sequence[str]) -> str:
    """The question. Every word that a query can take from it is before a comma.

    The local model's tokenizer cuts there, so that a word is one and the same token in both.
    """
    return (
        f"Finders: {', '.join(finders)}, who all wrote of it. Marks: {', '.join(kind)}, and no "
        f"others. What is the {asked} of the stone?"
    )


def warm_start_example(
    kind: Kind, precise_share: float, rng: np.random.Generator
) -> tuple[str, str]:
    """A question on a kind, and three queries as the untrained rewriter writes them.

    Now and then they name the marks; mostly they are vague. A reply is one or the other as a whole,
    for a tiny model learns to copy words only where nothing else fits.
    """
    asked = list(VALUES)[rng.integers(len(VALUES))]
    question = question_text(kind, asked, _some(FINDERS, PARTY_SIZE, rng))
    precise = rng.random() < precise_share
    pairs = [kind if precise else _vague_pair(rng) for _ in range(NUMBER_OF_QUERIES)]
    lasts = (asked, *VAGUE_WORDS[: NUMBER_OF_QUERIES - 1])
    lines = [
        f"Query {n}: {first}, {second}, {last}"
        for n, ((first, second), last) in enumerate(zip(pairs, lasts, strict=True), start=1)
    ]
    return question, "\n".join(lines)


def _vague_pair(rng: np.random.Generator) -> tuple[str, str]:
    first, second = rng.integers(len(VAGUE_WORDS), size=2)
    return VAGUE_WORDS[first], VAGUE_WORDS[second]


def _some(words: Sequence[str], number: int, rng: np.random.Generator) -> list[str]:
    return [words[i] for i in rng.choice(len(words), size=number, replace=False)]
