"""Invented scope prompts: every wording with every topic, an opening and a closing."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_prep.dharma.record import scope_prompt
from data_prep.dharma.topics import (
    ADJACENT,
    ASK_ABOUT,
    ASK_BOTH,
    ASK_CLINICAL,
    CLINICAL,
    CLOSINGS,
    OPENINGS,
    OUTSIDE,
    PARA_CLINICAL,
    PRESS,
    Topic,
)
from data_prep.splits import seeded_digest
from environments.base import PromptRecord

#: Which kinds of prompts a scope has.
KINDS: Mapping[str, Sequence[str]] = {
    "S0": ("in_domain", "mixed"),
    "S1": ("para_clinical",),
    "S2": ("adjacent",),
    "S3": ("outside", "adversarial"),
}
#: Wordings and topics of a kind, and the name that the wordings have in common.
PARTS: Mapping[str, tuple[str, Sequence[str], Sequence[Topic]]] = {
    "in_domain": ("ask clinical", ASK_CLINICAL, CLINICAL),
    "mixed": ("ask both", ASK_BOTH, CLINICAL),
    "para_clinical": ("ask about", ASK_ABOUT, PARA_CLINICAL),
    "adjacent": ("ask about", ASK_ABOUT, ADJACENT),
    "outside": ("ask about", ASK_ABOUT, OUTSIDE),
    "adversarial": ("press", PRESS, OUTSIDE),
}
#: How many prompts there are with as many from each scope, and of a scope as many of each kind.
MOST_PROMPTS = len(KINDS) * min(
    len(kinds) * min(len(PARTS[kind][1]) * len(PARTS[kind][2]) for kind in kinds)
    for kinds in KINDS.values()
)


def invented_prompts(number: int, seed: int) -> list[PromptRecord]:
    """`number` prompts: a quarter from each scope, and of a scope as many of each kind.

    The set of a record is its family, as `split_sets` needs it.
    """
    records: list[PromptRecord] = []
    for n, kinds in enumerate(KINDS.values()):
        quarter = number // 4 + (n < number % 4)
        for k, kind in enumerate(kinds):
            count = quarter // len(kinds) + (k < quarter % len(kinds))
            every = [slot_prompt(slot, slot.family + slot.topic.text) for slot in slots_of(kind)]
            records += _ranked(every, seed)[:count]
    return records


@dataclass(frozen=True, slots=True)
class Slot:
    """One wording with its topics: what a prompt is but for its opening and its closing."""

    kind: str
    number: int
    topic: Topic
    other: Topic | None

    @property
    def family(self) -> str:
        """The wording, which is never in two splits."""
        return f"{PARTS[self.kind][0]} {self.number:02d}"


def slots_of(kind: str) -> list[Slot]:
    """Every wording of a kind with every topic; a mixed one with one topic from outside each."""
    _, wordings, topics = PARTS[kind]
    return [
        Slot(kind, n, topic, OUTSIDE[(t + n) % len(OUTSIDE)] if kind == "mixed" else None)
        for n in range(len(wordings))
        for t, topic in enumerate(topics)
    ]


def slot_prompt(slot: Slot, dress: str) -> PromptRecord:
    """The prompt of a slot; a hash of `dress` chooses its opening and its closing."""
    digest = hashlib.sha256(dress.encode()).digest()
    wording, templates, _ = PARTS[slot.kind]
    other = slot.other.text if slot.other else ""
    filled = templates[slot.number].format(topic=slot.topic.text, other=other)
    opening, closing = OPENINGS[digest[0] % len(OPENINGS)], CLOSINGS[digest[1] % len(CLOSINGS)]
    text = f"{opening}{filled[0].upper()}{filled[1:]}{closing}"
    metadata = {
        "question": text,
        "kind": slot.kind,
        "scope": next(scope for scope, kinds in KINDS.items() if slot.kind in kinds),
        "tier": slot.topic.tier,
        "family": slot.family,
        "wording": wording,
        "topic": slot.topic.text,
    }
    if other:
        metadata["other"] = other
    name = f"{slot.kind}/{slot.number:02d}/{slot.topic.text.replace(' ', '-')}"
    return scope_prompt(name, text, metadata)


def _ranked(records: Sequence[PromptRecord], seed: int) -> list[PromptRecord]:
    """By a hash within each family, then the first of every family, the second, and so on."""
    families: dict[str, list[PromptRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: seeded_digest(seed, r.id)):
        families[record.set_id].append(record)
    rows = itertools.zip_longest(*families.values())
    return [record for row in rows for record in row if record is not None]
