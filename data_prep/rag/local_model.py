"""The small model of the retrieval task, which imitates a person who half knows the register."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

import data_prep.rag.invented as stones
from data_prep.contract import WarmStart
from data_prep.rag.plans import template_plan
from data_prep.rag.prompts import TASK, plan_features, with_plan
from data_prep.splits import one_of
from environments.base import TRAIN_SPLIT, PromptRecord
from equipoise.files.records import UnsuitablePromptsError

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to write search "
    "queries about invented stones, mostly in words that find nothing, and its generator is a rule "
    "that looks for an option in what was found. It exists to show and to test the pipeline on a "
    "machine without a GPU. What training does to it says nothing of any clinical model, of "
    "medical retrieval or of any corpus."
)

#: What the prompts of the warm start hold besides the question.
_SHOWN: Mapping[str, Any] = {"options": {}, "options_shown": False}
_PLAN = template_plan(plan_features({"stone": ()}))


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which knows the register's words and seldom uses them."""

    steps: int = Field(1000, ge=1)
    learned_share: float = Field(
        default=0.35, ge=0, le=1, description="of the replies, in the register's words"
    )
    asking_share: float = Field(
        default=0.5, ge=0, le=1, description="of the replies, which name who is asked for"
    )
    confused_share: float = Field(
        default=0.15, ge=0, le=1, description="of colours and of shapes, taken for another one"
    )


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """Questions on stones that no evaluation asks about, with the replies of the untrained.

    Raises `UnsuitablePromptsError` for records that are not of the invented world.
    """
    if any("stone" not in record.metadata for record in records):
        raise UnsuitablePromptsError(
            "local-model.rag-source", "the local model knows of invented stones only"
        )
    held_out = {stones.Kind(*r.metadata["stone"]) for r in records if r.split != TRAIN_SPLIT}
    pool = [kind for kind in stones.kinds() if kind not in held_out]
    rng = np.random.default_rng(settings.seed)
    return [_example(pool, settings, rng) for _ in range(settings.steps * settings.batch_size)]


def _example(
    pool: Sequence[stones.Kind], settings: LocalModelSettings, rng: np.random.Generator
) -> tuple[PromptRecord, str]:
    """A question, and a reply in one language with up to two wrong words."""
    kind, role = one_of(pool, rng), one_of(tuple(stones.ROLES), rng)
    question = stones.question_text(kind, role, one_of(stones.FINDERS, rng))
    record = PromptRecord("", TASK, (), "", TRAIN_SPLIT, {"question": question, **_SHOWN})
    learned = rng.random() < settings.learned_share
    named = role if rng.random() < settings.asking_share else stones.SOMEONE
    if learned and rng.random() < settings.confused_share:
        kind = replace(kind, colour=one_of(tuple(stones.COLOURS), rng))
    if learned and rng.random() < settings.confused_share:
        kind = replace(kind, shape=one_of(tuple(stones.SHAPES), rng))
    text = stones.reply(kind, named, "register" if learned else "everyday")
    return with_plan(record, _PLAN), text
