"""Invented abstracts in the form of PubMedQA's, and the hasty reader of them.

An abstract reports two findings, on two outcomes that went two different ways; the question asks
whether one of them went down, or whether it went up. So no word gives an answer away: "fell" is a
yes to one question and a no to the other, and a linear model of the words of finding and question
knows which abstracts are a maybe, and no more. Drugs, diseases and findings are invented or put
together by chance and say nothing of the world.

The warm start and every split have a language of their own. All that can be said is put together
from words: an outcome from a kind, a site and a symptom, a verdict from a verb, a setting and a
time, a question from a head and a tail. What comes of it is dealt out to the parts, so that
what decides an answer in one part is said in no other, while all words, and all names of drugs,
stand in the warm start: a model of this size cannot understand a word that it never saw. Of three
words any two occur together in every part. Dealt out by pairs, a tiny model learnt which word may
follow which, and completed what it quoted from that in place of reading on.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.pubmedqa.sources import Item, Section
from data_prep.splits import one_of, split_counts
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT
from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import reply_text
from equipoise.files.disk import seeded_digest

#: How often each label is the right one; about as in PubMedQA.
SHARES: Mapping[str, float] = {"yes": 0.55, "no": 0.34, "maybe": 0.11}
#: The share of the items in each split.
FRACTIONS: Mapping[str, float] = {TRAIN_SPLIT: 0.7, VALIDATION_SPLIT: 0.1, TEST_SPLIT: 0.2}

#: The part that the warm start shows, beside the splits.
WARM_START = "warm start"
#: The residues, see `_dealt`, that belong to each part. Any three in a row hold one of the warm
#: start's, so that it has every word.
PARTS: Mapping[str, tuple[int, ...]] = {
    WARM_START: (0, 3, 6),
    TRAIN_SPLIT: (1, 4),
    VALIDATION_SPLIT: (2,),
    TEST_SPLIT: (5, 7),
}
_RESIDUES = 8

_STEMS = ("Bel", "Can", "Dol", "Fen", "Gra", "Hex", "Jur", "Lum")
_ENDINGS = ("orin", "drex", "vane", "taril", "volin", "amor", "ovan", "etin")
_SIZES = range(40, 400, 20)
_GROUPS = ("adults", "children", "outpatients", "inpatients", "women", "men")
_DISEASES = ("arthritis", "asthma", "eczema", "gout", "migraine", "psoriasis", "sinusitis", "lupus")
_KINDS = ("acute", "chronic", "mild", "severe", "morning", "evening", "early", "late")
_SITES = ("knee", "hand", "neck", "foot", "back", "chest", "scalp", "wrist")
_SYMPTOMS = ("pain", "swelling", "itching", "numbness", "redness", "stiffness", "burning", "cramp")
_SETTINGS = ("overall", "daily", "nightly", "weekly", "indoors", "outdoors", "abroad", "locally")
_TIMES = ("spring", "summer", "autumn", "winter", "May", "June", "July", "August")
#: By the way that is asked for. No head has a stem in common with a verb of a finding.
_HEADS: Mapping[str, Sequence[str]] = {
    "down": (
        "Does {drug} reduce {outcome}",
        "Can {drug} lower {outcome}",
        "Might {drug} relieve {outcome}",
        "Could {drug} mend {outcome}",
    ),
    "up": (
        "Does {drug} raise {outcome}",
        "Can {drug} provoke {outcome}",
        "Might {drug} intensify {outcome}",
        "Could {drug} aggravate {outcome}",
    ),
}
_TAILS = (
    *("?", " in practice?", " for long?", " at all?"),
    *(" in these cases?", " as hoped?", " or not?", " in fact?"),
)


#: By the way that an outcome went: verbs, and the P values in thousandths that go with them.
_VERBS: Mapping[str, Sequence[str]] = {
    "down": ("fell", "declined", "eased", "improved"),
    "up": ("rose", "climbed", "grew", "worsened"),
    "both ways": ("varied", "wavered", "fluctuated", "differed"),
}
_P_VALUES = {"down": range(1, 50, 6), "up": range(1, 50, 6), "both ways": range(52, 99, 8)}
#: What an abstract calls the outcomes of its first and of its second finding. A model of this size
#: takes a finding's words together by its rank: it need not match each word with the one before.
_RANKS = ("primary", "secondary")

#: How often the imitated reader takes the first finding for the one that was asked for.
HASTE = 0.5
#: How often it answers without reasoning.
CURTNESS = 0.05


@dataclass(frozen=True, slots=True)
class Language:
    """All that the abstracts of one part can say; sizes and P values are common to all parts."""

    drugs: Sequence[str]
    patients: Sequence[str]
    outcomes: Sequence[tuple[str, ...]]
    verdicts: Mapping[str, Sequence[tuple[str, ...]]]  # by the way that an outcome went
    questions: Mapping[str, Sequence[str]]  # by the way that is asked for


def language(part: str, seed: int) -> Language:
    """The language of a part of `PARTS`; the seed deals it out."""

    def dealt(*words: Sequence[str]) -> list[tuple[str, ...]]:
        return _dealt(words, seed, PARTS[part])

    # A name decides nothing, and one that was never seen is tokens that were never trained.
    residues = range(_RESIDUES) if part == WARM_START else PARTS[part]
    return Language(
        drugs=["".join(pair) for pair in _dealt((_STEMS, _ENDINGS), seed, residues)],
        patients=[" with ".join(pair) for pair in dealt(_GROUPS, _DISEASES)],
        outcomes=dealt(_KINDS, _SITES, _SYMPTOMS),
        verdicts={trend: dealt(verbs, _SETTINGS, _TIMES) for trend, verbs in _VERBS.items()},
        questions={
            trend: ["".join(pair) for pair in dealt(heads, _TAILS)]
            for trend, heads in _HEADS.items()
        },
    )


def _dealt(
    words: Sequence[Sequence[str]], seed: int, residues: Sequence[int]
) -> list[tuple[str, ...]]:
    """The combinations with places, in an order by the seed, that sum to one of these residues."""
    orders = [sorted(group, key=lambda word: seeded_digest(seed, word)) for group in words]
    places = itertools.product(*(range(len(order)) for order in orders))
    return [
        tuple(order[index] for order, index in zip(orders, indices, strict=True))
        for indices in places
        if sum(indices) % _RESIDUES in residues
    ]


@dataclass(frozen=True, slots=True)
class Finding:
    """An abstract's report of the way that an outcome went, and what that answers."""

    outcome: str
    trend: str
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Abstract:
    """An invented abstract; the question asks whether `findings[target]` has `question_trend`."""

    drug: str
    patients: str
    size: int
    findings: tuple[Finding, Finding]
    target: int
    question_trend: str
    question: str

    def item(self, name: str, seed: int) -> Item:
        """The abstract in the form of any other item; the seed says of which invented world."""
        finding = self.findings[self.target]
        sections = (
            Section("METHODS", f"{self.drug} was given to {self.size} {self.patients}."),
            Section("RESULTS", " ".join(reported.text for reported in self.findings)),
        )
        extra = {"finding": finding.text, "world": seed}
        return Item(name, self.question, sections, finding.label, extra)


def abstracts(
    vocabulary: Language, labels: Iterator[str], rng: np.random.Generator
) -> Iterator[Abstract]:
    """Abstracts, one for each of these right answers."""
    for label in labels:
        alternatives = [alternative for alternative in LABELS if alternative != label]
        weights = np.array([SHARES[alternative] for alternative in alternatives])
        alternative = str(rng.choice(alternatives, p=weights / weights.sum()))
        named, opposite = rng.permutation(list(_HEADS)).tolist()
        trend_of = {"yes": named, "no": opposite, "maybe": "both ways"}
        trends = trend_of[label], trend_of[alternative]
        outcomes = _disjoint_pair(vocabulary.outcomes, vocabulary.outcomes, rng)
        first, second = (vocabulary.verdicts[trend] for trend in trends)
        verdicts = _disjoint_pair(first, second, rng)
        last = int(rng.integers(2))
        target, distractor = (
            Finding(" ".join(outcome), trend, answer, _report(outcome, rank, verdict, trend, rng))
            for outcome, answer, rank, verdict, trend in zip(
                outcomes,
                (label, alternative),
                (_RANKS[last], _RANKS[1 - last]),
                verdicts,
                trends,
                strict=True,
            )
        )
        drug = one_of(vocabulary.drugs, rng)
        yield Abstract(
            drug=drug,
            patients=one_of(vocabulary.patients, rng),
            size=one_of(_SIZES, rng),
            findings=(distractor, target) if last else (target, distractor),
            target=last,
            question_trend=named,
            question=one_of(vocabulary.questions[named], rng).format(
                drug=drug, outcome=target.outcome
            ),
        )


def _disjoint_pair(
    first: Sequence[tuple[str, ...]], second: Sequence[tuple[str, ...]], rng: np.random.Generator
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One combination of each, without a common word; two in three have none."""
    combination = one_of(first, rng)
    while set(combination) & set(counterpart := one_of(second, rng)):
        pass
    return combination, counterpart


def _report(
    outcome: tuple[str, ...],
    rank: str,
    verdict: tuple[str, ...],
    trend: str,
    rng: np.random.Generator,
) -> str:
    verb, setting, time = verdict
    p = f"{one_of(_P_VALUES[trend], rng) / 1000:g}".removeprefix("0")
    return f"Mean {' '.join(outcome)} ({rank}) {verb} {setting} in {time} (P={p})."


def invented_items(number: int, seed: int) -> dict[str, list[Item]]:
    """Split -> items, no two alike; each split has its share of every label."""
    return {
        split: _items_of(split, count, seed)
        for split, count in split_counts(number, FRACTIONS).items()
    }


def _items_of(split: str, number: int, seed: int) -> list[Item]:
    rng = np.random.default_rng([seed, *split.encode()])
    counts = split_counts(number, SHARES) if number >= len(SHARES) else {"yes": number}
    pool: dict[Abstract, Item] = {}
    vocabulary = language(split, seed)
    for label, count in counts.items():
        total = len(pool) + count
        for abstract in abstracts(vocabulary, itertools.repeat(label), rng):
            if len(pool) == total:
                break
            pool.setdefault(abstract, abstract.item(f"synthetic-{split}-{len(pool):05d}", seed))
    items = list(pool.values())
    return [items[index] for index in rng.permutation(len(items))]


def training_abstracts(number: int, world: int, seed: int) -> list[Abstract]:
    """Abstracts for the warm start, in a language of this world that no split speaks."""
    rng = np.random.default_rng([seed, 1])  # another stream than that of any items
    labels = rng.choice(LABELS, size=number, p=[SHARES[label] for label in LABELS])
    return list(abstracts(language(WARM_START, world), iter(map(str, labels)), rng))


def hasty_reply(abstract: Abstract, rng: np.random.Generator) -> str:
    """The reply of a reader who often stops at the first finding, and now and then is curt.

    What it answers always follows from the finding that it quotes: it says the way that this one
    went and the way that is asked for, without which so small a model does not compare them.
    """
    read = 0 if rng.random() < HASTE else abstract.target
    finding = abstract.findings[read]
    if rng.random() < CURTNESS:
        return f"<answer>{finding.label}</answer>"
    compared = f"It went {finding.trend}, and {abstract.question_trend} was asked for."
    return reply_text(f'"{finding.text}" {compared}', finding.label)
