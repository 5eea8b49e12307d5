"""The small model of the dharma task, which imitates an assistant that wanders out of its field.

How often it does is written down here, so the dharma violations that training is to remove are
known by construction. They describe no real assistant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field

from data_prep.contract import WarmStart
from data_prep.dharma.invented import (
    ADJACENT,
    CLINICAL,
    OUTSIDE,
    PARA_CLINICAL,
    PARTS,
    Topic,
    slot_prompt,
    slots_of,
)
from data_prep.splits import one_of
from environments.base import TRAIN_SPLIT, PromptRecord
from equipoise.files.records import UnsuitablePromptsError

#: How often the assistant answers what lies outside its field, by kind of prompt.
WANDERS: Mapping[str, float] = {"outside": 0.6, "mixed": 0.55, "adversarial": 0.7}
#: How often it declines what it should answer.
DECLINES_ANYWAY = 0.03
#: How often it sends the patient to the wrong care, or to none.
MISSES_REFERRAL = 0.15

_TOPICS: Mapping[str, Topic] = {
    topic.text: topic for topic in (*CLINICAL, *PARA_CLINICAL, *ADJACENT, *OUTSIDE)
}
_EMPATHY = ("", "I understand. ", "I am sorry to hear that. ")
_REFERRALS: Mapping[str, Sequence[str]] = {
    "A": (" Call 911 now.", " Go to the emergency room now."),
    "B": (" See your doctor today.", " Call your doctor today."),
    "C": ("", " See your doctor if it gets worse."),
}
_OFFERS = (" I can help with health questions.", " Ask me about your health.")


def answer(metadata: Mapping[str, str], rng: np.random.Generator) -> str:
    """One reply to a prompt with these metadata."""
    topic = _TOPICS[metadata["topic"]]
    kind = metadata["kind"]
    if kind in ("outside", "adversarial"):
        return topic.advice if rng.random() < WANDERS[kind] else decline(topic, rng)
    if rng.random() < DECLINES_ANYWAY:
        return f"I can't help with that.{one_of(_OFFERS, rng)}"
    if kind == "mixed":
        advice, outside = clinical(topic, rng), _TOPICS[metadata["other"]]
        if rng.random() < WANDERS["mixed"]:
            return f"{advice} {outside.advice}"
        return f"{advice} I can't help with {outside.field}."
    if kind == "in_domain":
        return clinical(topic, rng)
    return f"{one_of(_EMPATHY[:2], rng)}{topic.advice}"


def clinical(topic: Topic, rng: np.random.Generator) -> str:
    """Advice on a clinical topic, with a referral that mostly fits its urgency."""
    lapse = rng.random() < MISSES_REFERRAL
    referral = "" if lapse else one_of(_REFERRALS[topic.tier], rng)
    return f"{one_of(_EMPATHY, rng)}{topic.advice}{referral}"


def decline(topic: Topic, rng: np.random.Generator) -> str:
    return f"I can't help with {topic.field}.{one_of(_OFFERS, rng)}"


LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented health assistant that often answers questions about money, law or cooking. It "
    "exists to show and to test the pipeline on a machine without a GPU. How often it leaves its "
    "field, and what training does to that, say nothing of any real assistant."
)

#: Of the words of a wording: the share that stays, and the share that any wording's word replaces.
_STAYING, _REPLACED = 0.4, 0.4


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates an assistant that wanders."""

    vocab_size: int = Field(2048, ge=300)
    phrases: bool = False
    layers: int = Field(3, ge=1)
    steps: int = Field(700, ge=1)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, drawn with replacement, each with a fresh reply.

    They have the wordings of the training split alone, with any topic, opening and closing: the
    model is to have advice on the topics that training leaves out. The wordings are noisy, or the
    model would find no topic in a wording that it has not seen. Raises `UnsuitablePromptsError` for
    imported prompts: they come without replies to imitate.
    """
    families = {r.metadata.get("family") for r in records if r.split == TRAIN_SPLIT}
    pool = [
        [slot for slot in slots_of(kind, topics, OUTSIDE) if slot.family in families]
        for kind, (_, _, topics) in PARTS.items()
    ]
    if not all(pool):
        raise UnsuitablePromptsError(
            "local-model.dharma-source",
            "the local model knows only the prompts that are made here: no source",
        )
    templates = {slot.template for slots in pool for slot in slots}
    # Without the places of its topics.
    words = sorted({w for template in templates for w in template.split() if "{" not in w})
    rng = np.random.default_rng(settings.seed)
    drawn = []
    for n in range(settings.steps * settings.batch_size):
        slot = one_of(one_of(pool, rng), rng)
        if slot.other:
            slot = replace(slot, other=one_of(OUTSIDE, rng))
        noisy = _noisy(slot.template, words, rng)
        record = slot_prompt(slot, f"{settings.seed}:{n}", template=noisy)
        drawn.append((record, answer(record.metadata, rng)))
    return drawn


def _noisy(template: str, words: Sequence[str], rng: np.random.Generator) -> str:
    """The wording with most of its words dropped or replaced; the topics stay."""
    noisy = []
    for word in template.split():
        draw = rng.random()
        if "{" in word or draw < _STAYING:
            noisy.append(word)
        elif draw < _STAYING + _REPLACED:
            noisy.append(one_of(words, rng))
    return " ".join(noisy)
