"""A world of invented stones: questions in everyday words, a register in the words of the learned.

A finder of a stone says that its colour is like honey and its shape like a kidney; the register
calls it melleous and reniform. A stone has one colour and one shape, and the register names four
people for it, each in an entry of its own. A question asks for one of them. It shares no word with
the entry that answers it, and many with letters that answer nothing: to search for the question
finds the letters, and only who knows the register's words finds the entry. Some words are kept out
of training altogether, see `is_trained`. Nothing here means anything.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from data_prep.rag.sources import Question
from data_prep.splits import one_of
from environments.rag.queries import NUMBER_OF_QUERIES
from environments.rag.reader import LETTERS
from environments.rag.retrieval import Passage


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _register(pairs: str) -> dict[str, str]:
    """Everyday word -> the register's word, from a text of both in turn."""
    words = _words(pairs)
    return dict(zip(words[::2], words[1::2], strict=True))


COLOURS = _register(
    "ash cinereous blood sanguineous bone osseous brick testaceous chalk cretaceous "
    "chestnut castaneous cinnamon cinnamomeous clay argillaceous copper cupreous flame igneous "
    "fox vulpine gold aureate grass gramineous honey melleous ink atramentous ivory eburnean "
    "lead plumbeous lemon citrine lion leonine milk lacteous moss muscose mouse murine "
    "olive olivaceous peach persicine pitch piceous plum prunaceous raven coracine rose rosaceous "
    "rust ferruginous saffron croceous sand arenaceous sky cerulean snow niveous soot fuliginous "
    "straw stramineous wine vinaceous"
)
SHAPES = _register(
    "almond amygdaloid arrow sagittate bean fabiform bell campanulate boat navicular bow arcuate "
    "comb pectinate cup cupulate egg ovate fan flabellate feather pinnate fiddle pandurate "
    "finger digitate hand palmate heart cordate helmet galeate hook uncinate kidney reniform "
    "lance lanceolate lens lenticular moon lunate mushroom fungiform needle acicular "
    "net reticulate pea pisiform pear pyriform ring annulate saw serrate shell conchiform "
    "shield peltate sickle falcate snail cochleate spoon spatulate star stellate "
    "tongue lingulate wedge cuneate"
)
#: Whom a question can ask for.
ROLES = _register("cutter lapidary keeper custodian owner proprietor seller purveyor")

NAMES = _words(
    "Abner Bertil Cedran Dorvid Elmira Farold Gunnel Hedwin Ismara Jovanne Kelvar Ludmer Mathild "
    "Norvin Osrick Perdita Quillon Rosmund Sigbert Tamsel Ulfric Verena Wendel Ysolde"
)
FINDERS = _words(
    "abbot actor baker barber brewer butler carter clerk cobbler cook cooper courier dancer diver "
    "draper dyer farmer fisher gardener glazier guard hatter hermit hunter joiner judge knight "
    "mason miller miner monk painter pilot piper poet potter printer sailor scribe singer"
)
#: What a vague query names in place of the one who is asked for.
SOMEONE = "person"
#: How the queries of a reply end, so that no two are the same; every entry has these words.
ENDINGS = ("stone", "entry", "register")
#: What the plan says. It is the same for all questions and has no word that finds an entry.
PLAN = (
    "what scholars call this colour",
    "what scholars call this shape",
    "what scholars call whom we ask for",
)

#: Letters: many more for a word than a search brings back.
_LETTERS_SENT = 4_000
#: So many colours, and so many shapes, are in no question that is trained on.
_UNTRAINED = 9

Language = Literal["everyday", "register"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A stone as its finder calls it."""

    colour: str
    shape: str

    @property
    def learned(self) -> "Kind":
        """The kind in the register's words."""
        return Kind(COLOURS[self.colour], SHAPES[self.shape])


@dataclass(frozen=True, slots=True)
class StoneQuestion:
    """A question on a stone, and the one whom it asks for in everyday words."""

    kind: Kind
    role: str
    question: Question


def kinds() -> list[Kind]:
    """Every kind of stone: 1,296 pairs of a colour and a shape."""
    return list(itertools.starmap(Kind, itertools.product(COLOURS, SHAPES)))


# --- what is searched ----------------------------------------------------------------------------


def corpus(seed: int) -> Iterator[Passage]:
    """The register, 5,184 entries on four people for every kind, then 4,000 letters."""
    for kind, people in _people(seed).items():
        learned = kind.learned
        stone = f"Entry of the register. Stone: {learned.colour}, {learned.shape}."
        for role, person in people.items():
            yield Passage(entry_id(kind, role), "", f"{stone} {ROLES[role]}: {person}.")
    rng = np.random.default_rng([seed, 1])
    everything = kinds()
    for number in range(_LETTERS_SENT):
        kind = one_of(everything, rng)
        text = (
            f"Letter {number} of a {one_of(FINDERS, rng)}: a find, its colour {kind.colour}, its "
            f"shape {kind.shape}, and nobody told us of its {one_of(tuple(ROLES), rng)}."
        )
        yield Passage(f"letter/{number}", "", text)


def _people(seed: int) -> Mapping[Kind, Mapping[str, str]]:
    """Four people for every kind, no one twice."""
    rng = np.random.default_rng([seed, 0])
    return {
        kind: dict(zip(ROLES, _sample(NAMES, len(ROLES), rng), strict=True)) for kind in kinds()
    }


def entry_id(kind: Kind, role: str) -> str:
    return f"{kind.colour}-{kind.shape}/{role}"


def corpus_hash(seed: int) -> str:
    """SHA-256 of the corpus, as its JSON lines."""
    digest = hashlib.sha256()
    for passage in corpus(seed):
        digest.update(json.dumps(asdict(passage)).encode())
    return f"sha256:{digest.hexdigest()}"


# --- what is asked -------------------------------------------------------------------------------


def questions(seed: int) -> list[StoneQuestion]:
    """A question on each kind. Its options are the four people whom the register names for it."""
    rng = np.random.default_rng([seed, 2])
    result = []
    for kind, people in _people(seed).items():
        role = one_of(tuple(ROLES), rng)
        texts = [list(people.values())[i] for i in rng.permutation(len(people))]
        options = dict(zip(LETTERS, texts, strict=True))
        gold = next(letter for letter, person in options.items() if person == people[role])
        text = question_text(kind, role, one_of(FINDERS, rng))
        question = Question(text, options, gold, (entry_id(kind, role),))
        result.append(StoneQuestion(kind, role, question))
    return result


def question_text(kind: Kind, role: str, finder: str) -> str:
    """The question. A word that a query can take from it stands before a comma or a question mark.

    The local model's tokenizer cuts there, so that a word is one and the same token in both.
    """
    return (
        f"A {finder} made a find. Its colour: {kind.colour}, its shape: {kind.shape}, and more is "
        f"not known. Who is its {role}?"
    )


def is_trained(kind: Kind, seed: int) -> bool:
    """Whether training may ask about it: a quarter of colours and of shapes are left to tests."""
    rng = np.random.default_rng([seed, 3])
    kept_out = {*_sample(tuple(COLOURS), _UNTRAINED, rng), *_sample(tuple(SHAPES), _UNTRAINED, rng)}
    return kept_out.isdisjoint((kind.colour, kind.shape))


# --- what the untrained rewriter writes ----------------------------------------------------------


def reply(kind: Kind, role: str, language: Language) -> str:
    """Three queries for a stone and a role, in one of the two languages."""
    if language == "register":
        kind, role = kind.learned, ROLES.get(role, role)
    return "\n".join(
        f"Query {n}: {kind.colour}, {kind.shape}, {role}, {ending}"
        for n, ending in enumerate(ENDINGS[:NUMBER_OF_QUERIES], start=1)
    )


def _sample(words: Sequence[str], number: int, rng: np.random.Generator) -> list[str]:
    return [words[int(i)] for i in rng.choice(len(words), size=number, replace=False)]
