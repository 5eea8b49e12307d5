"""Invented abstracts in the form of PubMedQA's, and the hasty reader of them.

An abstract reports two findings, on two outcomes and with two different verdicts; the question
asks for one of them. Drugs, diseases and findings are invented or put together by chance and say
nothing of the world.

The warm start and every split have a language of their own. Whatever can be said is a pair: a site
and a symptom, a verdict and its setting, the head of a question and its tail. The pairs are dealt
out to the parts, so that what decides an answer in one part is said in no other, while the words of
all pairs stand in the warm start: a model of this size cannot understand a word that it never saw.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from data_prep.pubmedqa.items import LABELS, Item, Section
from data_prep.splits import seeded_digest, split_counts
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT
from environments.pubmedqa.reply import reply_text

_A = TypeVar("_A")
_B = TypeVar("_B")

#: How often each label is the right one; about as in PubMedQA.
SHARES: Mapping[str, float] = {"yes": 0.55, "no": 0.34, "maybe": 0.11}
#: The share of the items in each split.
FRACTIONS: Mapping[str, float] = {TRAIN_SPLIT: 0.7, VALIDATION_SPLIT: 0.1, TEST_SPLIT: 0.2}

#: The part that the warm start shows, beside the splits.
WARM_START = "warm start"
#: The residues of the pairs that belong to each part. Any three in a row hold one of the warm
#: start's, so that it has every word.
PARTS: Mapping[str, tuple[int, ...]] = {
    WARM_START: (0, 3, 6),
    TRAIN_SPLIT: (1, 4),
    VALIDATION_SPLIT: (2,),
    TEST_SPLIT: (5, 7),
}
_RESIDUES = 8

# Each tuple on the right of a pair has a multiple of eight members, so that every part has pairs.
_STEMS = ("Bel", "Can", "Dol", "Fen", "Gra", "Hex", "Jur", "Lum")
_ENDINGS = ("orin", "drex", "vane", "taril", "volin", "amor", "ovan", "etin")
_SIZES = range(40, 400, 20)
_GROUPS = ("adults", "children", "outpatients", "inpatients", "women", "men")
_DISEASES = ("arthritis", "asthma", "eczema", "gout", "migraine", "psoriasis", "sinusitis", "lupus")
_SITES = ("knee", "hand", "neck", "foot", "back", "chest", "scalp", "wrist")
_SYMPTOMS = ("pain", "swelling", "itching", "numbness", "redness", "stiffness", "burning", "cramp")
_SETTINGS = (
    "with treatment",
    "in the treated group",
    "on the drug",
    "after the course",
    "at the last visit",
    "at follow up",
    "by the end",
    "under treatment",
)
_HEADS = (
    "Does {drug} reduce {outcome}",
    "Does {drug} ease {outcome}",
    "Can {drug} lower {outcome}",
    "Is {outcome} reduced by {drug}",
    "Is {outcome} eased by {drug}",
    "Is there less {outcome} with {drug}",
)
_TAILS = (
    "?",
    " in practice?",
    " for long?",
    " at all?",
    " in these cases?",
    " as hoped?",
    " or not?",
    " in fact?",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a finding says of its outcome, and the P values that go with it, in thousandths."""

    text: str
    p: range


_CLEAR, _BETWEEN, _UNCLEAR = range(1, 31), range(51, 91, 2), range(210, 990, 40)
_VERDICTS: Mapping[str, tuple[Verdict, ...]] = {
    "yes": tuple(Verdict(text, _CLEAR) for text in ("fell", "was lower", "eased", "went down")),
    "no": (  # a P value alone decides nothing
        Verdict("did not change", _UNCLEAR),
        Verdict("stayed the same", _UNCLEAR),
        Verdict("rose", _CLEAR),
        Verdict("was higher", _CLEAR),
    ),
    "maybe": tuple(
        Verdict(text, _BETWEEN)
        for text in ("fell in part", "was lower at one site", "eased in a few", "went down in some")
    ),
}

#: How often the imitated reader takes the first finding for the one that was asked for.
HASTE = 0.5
#: How often it answers without reasoning.
CURTNESS = 0.05


@dataclass(frozen=True, slots=True)
class Language:
    """All that the abstracts of one part can say; sizes and P values are common to all parts."""

    drugs: Sequence[str]
    patients: Sequence[str]
    outcomes: Sequence[tuple[str, str]]
    verdicts: Mapping[str, Sequence[tuple[Verdict, str]]]
    questions: Sequence[str]


def language(part: str, seed: int) -> Language:
    """The language of a part of `PARTS`; the seed deals the pairs out."""

    def pairs(name: str, left: Sequence[_A], right: Sequence[_B]) -> list[tuple[_A, _B]]:
        lefts, rights = (_shuffled(words, f"{name}:{seed}") for words in (left, right))
        return [
            (a, b)
            for i, a in enumerate(lefts)
            for j, b in enumerate(rights)
            if (i + j) % _RESIDUES in PARTS[part]
        ]

    return Language(
        drugs=[a + b for a, b in pairs("drug", _STEMS, _ENDINGS)],
        patients=[f"{a} with {b}" for a, b in pairs("patients", _GROUPS, _DISEASES)],
        outcomes=pairs("outcome", _SITES, _SYMPTOMS),
        verdicts={label: pairs(label, _VERDICTS[label], _SETTINGS) for label in LABELS},
        questions=[a + b for a, b in pairs("question", _HEADS, _TAILS)],
    )


def _shuffled(words: Sequence[_A], name: str) -> list[_A]:
    digests = [seeded_digest(at, name) for at in range(len(words))]
    return [words[at] for at in sorted(range(len(words)), key=digests.__getitem__)]


@dataclass(frozen=True, slots=True)
class Finding:
    """What an abstract reports of one outcome, and the answer to a question that asks for it."""

    outcome: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Abstract:
    """An invented abstract with two findings; the question asks for `findings[asked]`."""

    drug: str
    patients: str
    size: int
    findings: tuple[Finding, Finding]
    asked: int
    question: str

    def item(self, name: str, seed: int) -> Item:
        """The abstract in the form of any other item; the seed says of which invented world."""
        finding = self.findings[self.asked]
        sections = (
            Section("METHODS", f"{self.drug} was given to {self.size} {self.patients}."),
            Section("RESULTS", " ".join(reported.text for reported in self.findings)),
        )
        extra = {"finding": finding.text, "world": seed}
        return Item(name, self.question, sections, finding.label, extra)


def abstracts(
    said: Language, labels: Iterator[str], rng: np.random.Generator
) -> Iterator[Abstract]:
    """Abstracts, one for each of these right answers."""
    for label in labels:
        others = [other for other in LABELS if other != label]
        weights = np.array([SHARES[other] for other in others])
        other = str(rng.choice(others, p=weights / weights.sum()))
        first, second = _two_outcomes(said, rng)
        asked = _finding(said, first, label, rng)
        beside = _finding(said, second, other, rng)
        last = int(rng.integers(2))
        drug = str(rng.choice(said.drugs))
        yield Abstract(
            drug=drug,
            patients=str(rng.choice(said.patients)),
            size=int(rng.choice(_SIZES)),
            findings=(beside, asked) if last else (asked, beside),
            asked=last,
            question=str(rng.choice(said.questions)).format(drug=drug, outcome=asked.outcome),
        )


def _two_outcomes(said: Language, rng: np.random.Generator) -> list[str]:
    """Two outcomes that share neither the site nor the symptom."""
    first = said.outcomes[int(rng.integers(len(said.outcomes)))]
    apart = [pair for pair in said.outcomes if pair[0] != first[0] and pair[1] != first[1]]
    return [" ".join(pair) for pair in (first, apart[int(rng.integers(len(apart)))])]


def _finding(said: Language, outcome: str, label: str, rng: np.random.Generator) -> Finding:
    verdicts = said.verdicts[label]
    verdict, setting = verdicts[int(rng.integers(len(verdicts)))]
    p = int(rng.choice(verdict.p))
    text = f"Mean {outcome} {verdict.text} {setting} (P = {f'{p / 1000:g}'.removeprefix('0')})."
    return Finding(outcome, label, text)


def invented_items(number: int, seed: int) -> dict[str, list[Item]]:
    """Split -> items, no two alike; each split has its share of every label."""
    return {
        split: _items_of(split, count, seed)
        for split, count in split_counts(number, FRACTIONS).items()
    }


def _items_of(split: str, number: int, seed: int) -> list[Item]:
    rng = np.random.default_rng([seed, *split.encode()])
    counts = split_counts(number, SHARES) if number >= len(SHARES) else {"yes": number}
    found: dict[Abstract, Item] = {}
    said = language(split, seed)
    for label, count in counts.items():
        wanted = len(found) + count
        for abstract in abstracts(said, _always(label), rng):
            if len(found) == wanted:
                break
            found.setdefault(abstract, abstract.item(f"synthetic-{split}-{len(found):05d}", seed))
    items = list(found.values())
    return [items[at] for at in rng.permutation(len(items))]


def _always(label: str) -> Iterator[str]:
    while True:
        yield label


def shown_abstracts(number: int, world: int, seed: int) -> list[Abstract]:
    """What the warm start shows: abstracts in its own language of this world."""
    rng = np.random.default_rng([seed, 1])  # another stream than that of any items
    labels = rng.choice(LABELS, size=number, p=[SHARES[label] for label in LABELS])
    return list(abstracts(language(WARM_START, world), iter(map(str, labels)), rng))


def hasty_reply(abstract: Abstract, rng: np.random.Generator) -> str:
    """The reply of a reader who often stops at the first finding, and now and then is curt.

    What it answers always follows from the finding that it quotes.
    """
    read = 0 if rng.random() < HASTE else abstract.asked
    asked, quoted = abstract.findings[abstract.asked], abstract.findings[read]
    if rng.random() < CURTNESS:
        return f"<answer>{quoted.label}</answer>"
    return reply_text(f'On {asked.outcome}: "{quoted.text}"', quoted.label)
