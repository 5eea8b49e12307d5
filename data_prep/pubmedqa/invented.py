"""Invented abstracts in the form of PubMedQA's, and the hasty reader of them.

An abstract reports two findings, on two outcomes and with two different verdicts; the question
asks for one of them. Drugs, diseases and findings are invented or put together by chance and say
nothing of the world.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from data_prep.pubmedqa.items import LABELS, Item, Section

#: How often each label is the right one; about as in PubMedQA.
SHARES: Mapping[str, float] = {"yes": 0.55, "no": 0.34, "maybe": 0.11}

_DRUGS = ("Belorin", "Candrex", "Dolvane", "Fentaril", "Gravolin", "Hexamor", "Jurovan", "Lumetin")
_DISEASES = ("arthritis", "asthma", "eczema", "gout", "migraine", "psoriasis", "sinusitis", "lupus")
_GROUPS = ("adults", "children", "outpatients", "inpatients", "women", "men")
_SIZES = (40, 60, 80, 120, 160, 240)
_OUTCOMES = ("Pain", "Fatigue", "Nausea", "Fever", "Cough", "Itching", "Swelling", "Dizziness")
#: What a finding says of its outcome, and its P value, by the answer that it gives.
_VERDICTS: Mapping[str, tuple[str, ...]] = {
    "yes": ("fell with treatment", "was lower in the treated group"),
    "no": ("did not change", "was the same in both groups"),
    "maybe": ("fell at one site only", "fell in part of the patients"),
}
_P_VALUES: Mapping[str, tuple[str, ...]] = {
    "yes": (".001", ".002", ".004", ".01", ".02", ".03"),
    "no": (".31", ".42", ".55", ".61", ".78", ".93"),
    "maybe": (".05", ".06", ".07", ".08", ".09", ".1"),
}

#: How often the imitated reader takes the first finding for the one that was asked for.
HASTE = 0.5
#: How often it answers without reasoning.
CURTNESS = 0.05


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
    disease: str
    group: str
    size: int
    findings: tuple[Finding, Finding]
    asked: int

    def item(self, name: str) -> Item:
        """The abstract in the form of any other item."""
        finding = self.findings[self.asked]
        sections = (
            Section("BACKGROUND", f"{self.drug} is given for {self.disease}."),
            Section("METHODS", f"We randomised {self.size} {self.group}."),
            Section("RESULTS", " ".join(reported.text for reported in self.findings)),
        )
        return Item(name, f"Does {self.drug} reduce {finding.outcome}?", sections, finding.label)


def abstracts(rng: np.random.Generator) -> Iterator[Abstract]:
    """Abstracts without end."""
    while True:
        labels = rng.choice(LABELS, size=2, replace=False, p=list(SHARES.values()))
        outcomes = rng.choice(_OUTCOMES, size=2, replace=False)
        asked, other = (_finding(o, n, rng) for o, n in zip(outcomes, labels, strict=True))
        last = int(rng.integers(2))
        yield Abstract(
            drug=str(rng.choice(_DRUGS)),
            disease=str(rng.choice(_DISEASES)),
            group=str(rng.choice(_GROUPS)),
            size=int(rng.choice(_SIZES)),
            findings=(other, asked) if last else (asked, other),
            asked=last,
        )


def _finding(outcome: str, label: str, rng: np.random.Generator) -> Finding:
    verdict, p = rng.choice(_VERDICTS[label]), rng.choice(_P_VALUES[label])
    return Finding(str(outcome).lower(), str(label), f"{outcome} {verdict} (P = {p}).")


def invented_items(number: int, seed: int) -> list[Item]:
    """So many items, no two alike."""
    items: dict[Abstract, Item] = {}
    for abstract in abstracts(np.random.default_rng(seed)):
        if len(items) == number:
            break
        items.setdefault(abstract, abstract.item(f"synthetic-{len(items):05d}"))
    return list(items.values())


def hasty_reply(abstract: Abstract, rng: np.random.Generator) -> str:
    """The reply of a reader who often stops at the first finding, and now and then is curt.

    What it answers always follows from the finding that it quotes.
    """
    read = 0 if rng.random() < HASTE else abstract.asked
    asked, quoted = abstract.findings[abstract.asked], abstract.findings[read]
    answer = f"<answer>{quoted.label}</answer>"
    if rng.random() < CURTNESS:
        return answer
    reasoning = f"The question is about {asked.outcome}. {quoted.text}"
    return f"<reasoning>{reasoning}</reasoning>\n{answer}"
