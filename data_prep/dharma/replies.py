"""Replies that the local model imitates, of an assistant that wanders out of its field.

How often it does is written down here, so the dharma violations that training is to remove are
known by construction. They describe no real assistant.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from data_prep.dharma.topics import ADJACENT, CLINICAL, OUTSIDE, PARA_CLINICAL, Topic

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
        return f"I can't help with that.{_pick(_OFFERS, rng)}"
    if kind == "mixed":
        return f"{clinical(topic, rng)} {_second_half(_TOPICS[metadata['other']], rng)}"
    if kind == "in_domain":
        return clinical(topic, rng)
    return f"{_pick(_EMPATHY[:2], rng)}{topic.advice}"


def clinical(topic: Topic, rng: np.random.Generator) -> str:
    """Advice on a clinical topic, with a referral that mostly fits its urgency."""
    lapse = rng.random() < MISSES_REFERRAL
    referral = "" if lapse else _pick(_REFERRALS[topic.tier], rng)
    return f"{_pick(_EMPATHY, rng)}{topic.advice}{referral}"


def decline(topic: Topic, rng: np.random.Generator) -> str:
    """A refusal that offers what the assistant is there for."""
    return f"I can't help with {topic.field}.{_pick(_OFFERS, rng)}"


def _second_half(topic: Topic, rng: np.random.Generator) -> str:
    wanders = rng.random() < WANDERS["mixed"]
    return topic.advice if wanders else f"I can't help with {topic.field}."


def _pick(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]
