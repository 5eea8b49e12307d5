"""The small model of the dharma task, which imitates an assistant that wanders out of its field."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from data_prep.dharma.invented import PARTS, slot_prompt, slots_of
from data_prep.dharma.replies import answer
from data_prep.dharma.topics import OUTSIDE
from data_prep.faults import UnsuitablePromptsError
from data_prep.imitation import imitating_model
from data_prep.warm_start import WarmStart
from environments.base import TRAIN_SPLIT, PromptRecord

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


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model, from `cache` if it is there.

    Raises `UnsuitablePromptsError` for imported prompts: they come without replies to imitate.
    """
    return imitating_model(imitated_replies(records, settings), settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, drawn with replacement, each with a fresh reply.

    They have the wordings of the training split alone, with any topic, opening and closing: the
    model is to have advice on the topics that training leaves out. The wordings are noisy, or the
    model would find no topic in a wording that it has not seen.
    """
    families = {r.metadata.get("family") for r in records if r.split == TRAIN_SPLIT}
    pool = [
        [slot for slot in slots_of(kind, topics, OUTSIDE) if slot.family in families]
        for kind, (_, _, topics) in PARTS.items()
    ]
    if not all(pool):
        raise UnsuitablePromptsError(
            "the local model knows only the prompts that are made here: no source"
        )
    words = sorted({word for slots in pool for slot in slots for word in _words(slot.template)})
    rng = np.random.default_rng(settings.seed)
    drawn = []
    for n in range(settings.steps * settings.batch_size):
        slots = pool[int(rng.integers(len(pool)))]
        slot = slots[int(rng.integers(len(slots)))]
        if slot.other:
            slot = replace(slot, other=OUTSIDE[int(rng.integers(len(OUTSIDE)))])
        noisy = _noisy(slot.template, words, rng)
        record = slot_prompt(slot, f"{settings.seed}:{n}", template=noisy)
        drawn.append((record, answer(record.metadata, rng)))
    return drawn


def _words(template: str) -> list[str]:
    """The words of a wording without the places of its topics."""
    return [word for word in template.split() if "{" not in word]


def _noisy(template: str, words: Sequence[str], rng: np.random.Generator) -> str:
    """The wording with most of its words dropped or replaced; the topics stay."""
    noisy = []
    for word in template.split():
        draw = rng.random()
        if "{" in word or draw < _STAYING:
            noisy.append(word)
        elif draw < _STAYING + _REPLACED:
            noisy.append(words[int(rng.integers(len(words)))])
    return " ".join(noisy)
