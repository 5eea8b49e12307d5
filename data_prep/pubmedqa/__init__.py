"""The data module of the PubMedQA task: questions in splits, and the local model.

    python -m data_prep.pubmedqa --output data --source file --path ori_pqal.json

writes data/prompts.jsonl and its manifest.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from data_prep.faults import UnsuitablePromptsError
from data_prep.pubmedqa.checks import check, prompt_problems
from data_prep.pubmedqa.items import Item, normal_question
from data_prep.pubmedqa.prompts import prompt_record, question_of
from data_prep.pubmedqa.published import (
    FOLDS,
    published_split,
    refuse_leaked,
)
from data_prep.pubmedqa.sources import Fields, load_hub, read_items
from data_prep.pubmedqa.synthetic import Abstract, abstracts, hasty_reply, synthetic_items
from data_prep.splits import split_sets
from data_prep.warm_start import WarmStart
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, Message, PromptRecord
from environments.pubmedqa import LABELS

__all__ = [
    "LOCAL_MODEL_NOTICE",
    "LocalModelSettings",
    "PromptSettings",
    "build_local_model",
    "build_prompts",
    "check",
    "prompt_problems",
]

#: The share of the items in each split where no published one is taken.
FRACTIONS: Mapping[str, float] = {TRAIN_SPLIT: 0.7, VALIDATION_SPLIT: 0.1, TEST_SPLIT: 0.2}

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate an "
    "invented reader of invented abstracts who often stops at the first finding in place of the "
    "one that was asked for. It exists to show and to test the pipeline on a machine without a "
    "GPU. Its accuracy, and what training does to it, say nothing of PubMedQA, of any clinical "
    "model or of any drug."
)


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Which questions a run uses and how they are split."""

    source: Literal["hub", "file", "synthetic"] = "hub"
    path: str | None = Field(None, description="of source file: .json or .jsonl")
    hub_name: str = Field("qiaojin/PubMedQA", description="of source hub, or a folder like it")
    hub_subset: str = "pqa_labeled"
    fields: Fields | None = Field(None, description="where another set's rows keep what is needed")
    labels: dict[str, str] = Field({}, description="another set's labels -> yes, no, maybe")
    split: Literal["published", "random"] = "published"
    fold: int = Field(0, ge=0, lt=FOLDS, description="published fold to validate on")
    classes: Literal[2, 3] = 3
    prompt_tokens: int = Field(960, ge=64, description="a longer abstract loses sentences")
    num_samples: int | None = Field(
        None, ge=1, description="questions in all, of a file or the hub at most; null for all"
    )
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.source == "file") != (self.path is not None):
            raise ValueError("source: file and path belong together: give both or neither")
        if self.source == "synthetic" and self.num_samples is None:
            raise ValueError("source: synthetic makes as many questions as num_samples says")
        if unknown := sorted(set(self.labels.values()) - set(LABELS)):
            raise ValueError(f"labels must lead to {', '.join(LABELS)}, not to {unknown}")
        return self

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone."""
        return self.source == "synthetic"


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates a hasty reader."""

    vocab_size: int = Field(800, ge=300)
    steps: int = Field(800, ge=1)


# --- prompts ------------------------------------------------------------------------------------


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The prompts with their splits; no official test item is ever one to train on.

    With two classes the questions whose answer is maybe are not trained on, since no reply to
    them can be right, and stay in the other splits, where they lower the ceiling.
    Raises `ValueError` with all that is wrong with the data.
    """
    items = _load(settings)
    published = settings.source != "synthetic" and settings.split == "published"
    split = _published if published else _random
    answers = LABELS[: settings.classes]
    return [
        record
        for record in split(items, settings)
        if record.split != TRAIN_SPLIT or record.metadata["gold"] in answers
    ]


def _load(settings: PromptSettings) -> list[Item]:
    if settings.source == "synthetic":
        return synthetic_items(settings.num_samples or 0, settings.seed)
    if settings.source == "hub":
        return load_hub(settings.hub_name, settings.hub_subset)
    return read_items(Path(settings.path or ""), settings.fields, settings.labels)


def _published(items: Sequence[Item], settings: PromptSettings) -> list[PromptRecord]:
    """The official test set, one of the published folds to validate on, the others to train on.

    `num_samples` takes away training items alone.
    """
    by_id = {item.id: item for item in items}
    found = published_split({item.id: item.gold for item in items})
    others = [fold for number, fold in enumerate(found.folds) if number != settings.fold]
    train = [by_id[name] for fold in others for name in fold]
    held_out = len(items) - len(train)
    if settings.num_samples is not None:
        if settings.num_samples <= held_out:
            raise ValueError(
                f"num_samples {settings.num_samples:,} must be more than {held_out:,}: the "
                "questions of the published test set and validation fold are always whole"
            )
        train = _sample(train, settings.num_samples - held_out, settings.seed)
    refuse_leaked(train)
    members_of = {
        TRAIN_SPLIT: train,
        VALIDATION_SPLIT: [by_id[name] for name in found.folds[settings.fold]],
        TEST_SPLIT: [by_id[name] for name in found.test],
    }
    return [
        prompt_record(item, split, settings.classes, settings.prompt_tokens)
        for split, members in members_of.items()
        for item in members
    ]


def _random(items: Sequence[Item], settings: PromptSettings) -> list[PromptRecord]:
    """Splits by the seed, each with its share of every label; one question lies in one split."""
    refuse_leaked(items)
    taken = _sample(items, settings.num_samples or len(items), settings.seed)
    records = [prompt_record(i, "", settings.classes, settings.prompt_tokens) for i in taken]
    if settings.source == "synthetic":  # whose few questions are asked of many abstracts
        return split_sets(records, FRACTIONS, settings.seed, stratum="gold")
    by_question = [replace(r, set_id=normal_question(question_of(r))) for r in records]
    split = split_sets(by_question, FRACTIONS, settings.seed, stratum="gold")
    return [replace(record, set_id=record.id) for record in split]


def _sample(items: Sequence[Item], number: int, seed: int) -> list[Item]:
    """`number` of the items in their order; fewer are part of more."""
    digests = {i.id: hashlib.sha256(f"{seed}:{i.id}".encode()).digest() for i in items}
    taken = set(sorted(digests, key=lambda name: digests[name])[:number])
    return [item for item in items if item.id in taken]


# --- the local model ----------------------------------------------------------------------------


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model for these prompts, from `cache` if it is there.

    Raises `UnsuitablePromptsError` if they are not the synthetic ones, which are all it can read.
    """
    from data_prep.tiny_model import Example, warm_start  # imports torch

    if any(not record.id.startswith("synthetic-") for record in records):
        raise UnsuitablePromptsError(
            "the local model of this task reads its synthetic abstracts alone "
            "(equipoise.data.source: synthetic)"
        )
    examples = [Example(messages, text) for messages, text in imitated_replies(records, settings)]
    return warm_start(examples, settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[tuple[Message, ...], str]]:
    """The prompts that the warm start shows, each with the hasty reader's reply.

    They are fresh abstracts; one that `records` evaluate on is left out.
    """
    held_out = {record.messages[-1]["content"] for record in records if record.split != TRAIN_SPLIT}
    rng = np.random.default_rng([settings.seed, 1])  # another stream than that of the items
    shown: list[tuple[tuple[Message, ...], str]] = []
    for abstract in abstracts(rng):
        if len(shown) == settings.steps * settings.batch_size:
            break
        messages = _messages(abstract)
        if messages[-1]["content"] not in held_out:
            shown.append((messages, hasty_reply(abstract, rng)))
    return shown


def _messages(abstract: Abstract) -> tuple[Message, ...]:
    return prompt_record(abstract.item("shown"), TRAIN_SPLIT, 3, 960).messages
