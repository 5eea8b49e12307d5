"""The prompts of the PubMedQA task: questions in splits, each with its abstract.

A prompt says what is asked, then the abstract with its sections' labels, and the question last.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from data_prep.contract import DataSettings
from data_prep.pubmedqa.invented import FRACTIONS, invented_items
from data_prep.pubmedqa.sources import (
    FOLDS,
    Item,
    Section,
    is_official_test,
    load_hub,
    normal_question,
    published_split,
    read_items,
    refuse_leaked,
)
from data_prep.splits import sample_names, split_sets
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, Message, PromptRecord
from environments.pubmedqa import FORMAT_TEXT, LABELS
from environments.pubmedqa.reply import SENTENCE_END
from equipoise.files.records import named_faults

TASK = "pubmedqa"

_QUESTION = "Question: "
_INSTRUCTION = (
    "You answer a question of biomedical research from the abstract of a study, which is given "
    "without its conclusion. Weigh the study's own findings and numbers. Answer {options}."
)
_OPTIONS = {
    2: ("yes or no", "yes or no"),
    3: ("yes, no, or, where the findings do not settle the question, maybe", "yes, no or maybe"),
}
#: The tokens of a chat template around two messages.
_TEMPLATE_TOKENS = 20


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """Which questions a run uses and how they are split."""

    source: Literal["hub", "file", "synthetic"] = "hub"  #: where the questions come from
    path: str | None = Field(None, description="of source file, in JSON")
    hub_name: str = Field("qiaojin/PubMedQA", description="of source hub, or a folder like it")
    hub_subset: str = Field("pqa_labeled", description="of hub_name")
    split: Literal["published", "random"] = Field(
        "published", description="random for a file of another set"
    )
    fold: int = Field(0, ge=0, lt=FOLDS, description="published fold to validate on")
    classes: Literal[2, 3] = Field(3, description="2: without maybe")
    prompt_tokens: int = Field(960, ge=64, description="a longer abstract loses sentences")
    num_samples: int | None = Field(
        None, ge=1, description="questions in all, of a file or the hub at most; null for all"
    )
    seed: int = Field(0, ge=0, description="of invented questions, sample and splits")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if (self.source == "file") != (self.path is not None):
            raise ValueError("source: file and path belong together: give both or neither")
        if self.source == "synthetic" and self.num_samples is None:
            raise ValueError("source: synthetic makes as many questions as num_samples says")
        return self

    @property
    def invented(self) -> bool:
        return self.source == "synthetic"


# --- items in splits -----------------------------------------------------------------------------


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The prompts with their splits; no official test item is ever one to train on.

    With two classes the questions whose answer is maybe are not trained on, since no reply to
    them can be right, and stay in the other splits, where they lower the ceiling.
    Raises `ValueError` with all that is wrong with the data.
    """
    if settings.source == "synthetic":  # every split is written in a language of its own
        records = [
            prompt_record(item, split, settings.classes, settings.prompt_tokens)
            for split, items in invented_items(settings.num_samples or 0, settings.seed).items()
            for item in items
        ]
    else:
        if settings.source == "hub":
            loaded = load_hub(settings.hub_name, settings.hub_subset)
        else:
            loaded = read_items(Path(settings.path or ""))
        in_splits = _published if settings.split == "published" else _random
        records = in_splits(loaded, settings)
    answers = LABELS[: settings.classes]
    return [r for r in records if r.split != TRAIN_SPLIT or r.metadata["gold"] in answers]


def _published(items: Sequence[Item], settings: PromptSettings) -> list[PromptRecord]:
    """The official test set, one of the published folds to validate on, the others to train on.

    `num_samples` takes away training items alone.
    """
    by_id = {item.id: item for item in items}
    folds, test = published_split({item.id: item.gold for item in items})
    train_folds = [fold for number, fold in enumerate(folds) if number != settings.fold]
    train = [by_id[name] for fold in train_folds for name in fold]
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
        VALIDATION_SPLIT: [by_id[name] for name in folds[settings.fold]],
        TEST_SPLIT: [by_id[name] for name in test],
    }
    return [
        prompt_record(item, split, settings.classes, settings.prompt_tokens)
        for split, members in members_of.items()
        for item in members
    ]


def _random(items: Sequence[Item], settings: PromptSettings) -> list[PromptRecord]:
    """Splits by the seed, each with its share of every label; one question lies in one split."""
    refuse_leaked(items)
    sample = _sample(items, settings.num_samples or len(items), settings.seed)
    records = [prompt_record(i, "", settings.classes, settings.prompt_tokens) for i in sample]
    by_question = [replace(r, set_id=normal_question(question_of(r))) for r in records]
    split = split_sets(by_question, FRACTIONS, settings.seed, stratum="gold")
    return [replace(record, set_id=record.id) for record in split]


def _sample(items: Sequence[Item], number: int, seed: int) -> list[Item]:
    """`number` of the items, in their order."""
    ids = sample_names((item.id for item in items), number, seed)
    return [item for item in items if item.id in ids]


# --- the prompt of an item -----------------------------------------------------------------------


def prompt_record(item: Item, split: str, classes: int, budget: int) -> PromptRecord:
    """Make the record of an item with a prompt of `budget` tokens at most, by an estimate.

    Raises `ValueError` if the question leaves no room for an abstract.
    """
    system = system_prompt(classes)
    room = budget - _TEMPLATE_TOKENS - estimate_tokens(system) - estimate_tokens(_user("", item))
    if room < 1:
        raise ValueError(
            f"the question of {item.id} alone fills the prompt: raise prompt_tokens above "
            f"{budget - room:,}"
        )
    context = context_text(fit_sections(item.sections, room))
    messages: tuple[Message, ...] = (
        {"role": "system", "content": system},
        {"role": "user", "content": _user(context, item)},
    )
    metadata = {"gold": item.gold, "context": context, "question": item.question, **item.extra}
    return PromptRecord(item.id, TASK, messages, item.id, split, metadata)


@cache  # one text for all prompts: a warm start holds tens of thousands
def system_prompt(classes: int) -> str:
    """The instruction, with the words that may be answered."""
    meanings, words = _OPTIONS[classes]
    return f"{_INSTRUCTION.format(options=meanings)}\n{FORMAT_TEXT.format(options=words)}"


def context_text(sections: Sequence[Section]) -> str:
    return "\n".join(f"{s.label}: {s.text}" if s.label else s.text for s in sections)


def question_of(record: PromptRecord) -> str:
    return record.messages[-1]["content"].rpartition("\n")[2].removeprefix(_QUESTION)


def _user(context: str, item: Item) -> str:
    return f"Context:\n{context}\n\n{_QUESTION}{item.question}"


# --- an abstract fitted to a budget of tokens ----------------------------------------------------


_PIECE = re.compile(r"[^\W\d_]+|[^\s]")
_LETTERS_PER_TOKEN = 4


@lru_cache(maxsize=64)  # all prompts of a set share what they are told to do
def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens without the model's tokenizer, rather too high.

    A digit and a sign are a token each, as in Qwen's and Llama's vocabularies at worst; a word is
    one for every four of its bytes begun.
    """
    return sum(-(-len(piece.encode()) // _LETTERS_PER_TOKEN) for piece in _PIECE.findall(text))


def fit_sections(sections: Sequence[Section], budget: int) -> tuple[Section, ...]:
    """The abstract's last sentences that fit into `budget` tokens, each under its label.

    Whole sentences are left out from the beginning, for an abstract tells its background first
    and its results last. A last sentence that is itself too long keeps its last words.
    """
    tail: list[Section] = []
    for section in reversed(sections):
        text, budget = _fit_text(section, budget)
        if text:
            tail.append(Section(section.label, text))
        if text != section.text:
            break
    return tuple(reversed(tail)) or (_last_words(sections[-1], budget),)


def _fit_text(section: Section, budget: int) -> tuple[str, int]:
    """Return the end of a section that fits, and the budget that is left."""
    room = budget - estimate_tokens(f"{section.label}:")
    start = len(section.text)
    gaps = list(SENTENCE_END.finditer(section.text))
    starts = [0, *(gap.end() for gap in gaps)]
    ends = [*(gap.start() for gap in gaps), len(section.text)]
    for position, end in zip(reversed(starts), reversed(ends), strict=True):
        cost = estimate_tokens(section.text[position:end])
        if cost > room:
            break
        start, room = position, room - cost
    text = section.text[start:]
    return text, room if text else budget


def _last_words(section: Section, budget: int) -> Section:
    room = budget - estimate_tokens(f"{section.label}:")
    words: list[str] = []
    for word in reversed(section.text.split()):
        room -= estimate_tokens(word)
        if room < 0:
            break
        words.append(word)
    return Section(section.label, " ".join(reversed(words)))


# --- checks of prompts from any source -----------------------------------------------------------


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that do not fit this task, from any source."""
    trained = [record for record in records if record.split == TRAIN_SPLIT]
    leaked = [r.id for r in trained if is_official_test(r.id, question_of(r))]
    unanswered = [r.id for r in records if r.metadata.get("gold") not in LABELS]
    bare = [
        r.id for r in records if not all(r.metadata.get(key) for key in ("context", "question"))
    ]
    return named_faults(
        {
            "training prompts are of the official PubMedQA test set": leaked,
            f"prompts have no gold ({', '.join(LABELS)}) in their metadata": unanswered,
            "prompts have no context or no question in their metadata, with which reasons are "
            "checked": bare,
        }
    )
