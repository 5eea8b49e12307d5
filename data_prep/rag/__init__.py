"""The data module of the retrieval task: questions with plans, their index, the local model.

Questions come from MedQA's files or, for the local variant, from an invented world of stones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, Field, field_validator, model_validator

from data_prep.faults import UnsuitablePromptsError, named_faults
from data_prep.hooks import Tools
from data_prep.model_identity import UNKNOWN, model_identity
from data_prep.rag import invented as stones
from data_prep.rag.check import check_rows
from data_prep.rag.encoder import encoder_identity
from data_prep.rag.index import Source, Vectors, ensure_index, refuse_other_encoder
from data_prep.rag.known import KnownAnswers
from data_prep.rag.medqa import FiveOptions, Question, read_questions
from data_prep.rag.plans import Plan, PlanCache, template_plan
from data_prep.splits import Fractions, sample_sets, split_sets
from data_prep.warm_start import WarmStart
from environments.base import (
    TEST_SPLIT,
    TRAIN_SPLIT,
    VALIDATION_SPLIT,
    Environment,
    Message,
    PromptRecord,
)
from environments.chat import ChatModel, EndpointModel
from environments.encoder import Encoder, EncoderSettings
from environments.rag_accuracy import ModelSettings
from environments.rag_accuracy.corpus import read_manifest
from environments.rag_accuracy.generator import ChatGenerator
from environments.rag_accuracy.reader import ExtractiveReader
from environments.rag_accuracy.retrieval import RetrieverName

TASK = "rag"

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to write vague "
    "search queries about invented stones, and its generator is a rule that looks for an option in "
    "what was found. It exists to show and to test the pipeline on a machine without a GPU. What "
    "training does to it says nothing of any clinical model, of medical retrieval or of any corpus."
)

SYSTEM_PROMPT = (
    "You write search queries that find what a question needs in a library. You are given the "
    "question and a plan. Reply with exactly three lines and nothing else:\n"
    "Query 1: <words to search for>\nQuery 2: <words to search for>\nQuery 3: <words to search for>"
)

#: More questions without a plan than this share are no accident.
_MOST_UNPLANNED = 0.1
_WHOLE = "all"
_SPLITS = (TRAIN_SPLIT, VALIDATION_SPLIT, TEST_SPLIT)
#: How the folders are called in which the index of the invented corpus is made anew at will.
_INVENTED = "invented-"


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Where questions, index and plans come from; with no file named, from the invented world."""

    num_samples: int | None = Field(default=None, ge=3, description="questions; null for all")
    questions: dict[str, str] = Field(
        default={}, description="a file per split, or one to split: all"
    )
    five_options: FiveOptions = "refuse"
    corpus: str = Field(default="", description="what the index is built from where there is none")
    index: str = Field(default="", description="the folder of the index, that of env.rag")
    retriever: RetrieverName = "bm25"
    encoder: EncoderSettings = EncoderSettings()
    show_options: bool = Field(default=False, description="to planner and rewriter")
    planner: ModelSettings = ModelSettings()
    plans: str = Field(
        default="", description="every plan made so far; beside the index if not named"
    )
    generator: ModelSettings = Field(default=ModelSettings(), description="that of env.rag")
    known_share: float = Field(
        default=1.0, ge=0, le=1, description="kept of training questions answered without retrieval"
    )
    fractions: Fractions = Fractions()
    seed: int = Field(default=0, ge=0)

    @field_validator("questions")
    @classmethod
    def _known_splits(cls, questions: dict[str, str]) -> dict[str, str]:
        named = set(questions)
        if named and named != {_WHOLE} and not {TRAIN_SPLIT, TEST_SPLIT} <= named:
            raise ValueError(f"names a file for {_WHOLE}, or one for train and one for test")
        if unknown := sorted(named - {_WHOLE, *_SPLITS}):
            raise ValueError(f"there is no split {', '.join(unknown)}")
        return questions

    @model_validator(mode="after")
    def _own_folder(self) -> Self:
        if (self.corpus or self.questions) and Path(self.index).name.startswith(_INVENTED):
            raise ValueError(
                "the index of your own corpus needs a folder of its own: name it with "
                "env.rag.index, for example env.rag.index=indexes/mine"
            )
        return self

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone; a corpus joins them."""
        return not self.questions and not self.corpus


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates somebody who asks vaguely."""

    steps: int = Field(1600, ge=1)
    precise_share: float = Field(
        default=0.35, ge=0, le=1, description="of the replies, whose queries name the marks"
    )


def prepare(settings: PromptSettings, tools: Tools) -> None:
    """Make what is missing of the index, the plans, and the answers without retrieval.

    Raises `ValueError` with what cannot be made.
    """
    records = _unplanned(settings)
    _keep_index(settings, tools)
    if planner := _opened(settings.planner, tools):
        _keep_plans(planner, _questions(records), settings, tools)
    if settings.known_share < 1:
        _keep_known([r for r in records if r.split == TRAIN_SPLIT], settings, tools)


def check(
    settings: PromptSettings,  # noqa: ARG001
    records: Sequence[PromptRecord],
    environment: Environment,
) -> list[tuple[str, str, str]]:
    """Rows for `--dry-run`: a step with canned queries."""
    return check_rows(records, environment)


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The questions that have a plan, each in its split.

    Raises `ValueError` where a file cannot be read or too many questions have no plan.
    """
    records = _unplanned(settings)
    plans = _plans(settings, records)
    _refuse_unplanned(len(records) - len(plans), len(records))
    pairs = [(record, plans.get(_question(record).id)) for record in records]
    planned = [_with_plan(record, plan) for record, plan in pairs if plan]
    return _without_known(planned, settings)


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """What the environment could not score, wherever the prompts come from."""
    return named_faults(
        {
            "prompts have no question, options and gold among them in their metadata": [
                record.id for record in records if not _is_answerable(record.metadata)
            ]
        }
    )


def _is_answerable(metadata: Mapping[str, Any]) -> bool:
    question, options, gold = (metadata.get(key) for key in ("question", "options", "gold"))
    return (
        isinstance(question, str)
        and isinstance(options, Mapping)
        and all(isinstance(text, str) for text in options.values())
        and isinstance(gold, str)
        and gold in options
    )


# --- index --------------------------------------------------------------------------------------


def _keep_index(settings: PromptSettings, tools: Tools) -> None:
    folder = Path(settings.index).expanduser()
    vectors = None if settings.retriever == "bm25" else _vectors(settings.encoder, tools)
    if settings.questions and not settings.corpus:
        found = read_manifest(folder)
        refuse_other_encoder(found, folder, vectors.identity if vectors else None)
        tools.say(f"index: {found.passages:,} passages in {folder}")
    else:
        ensure_index(_source(settings), folder, vectors, tools.say)


def _source(settings: PromptSettings) -> Source:
    if settings.corpus:
        return Source.of_path(Path(settings.corpus).expanduser())
    seed = settings.seed
    ours = Path(settings.index).name.startswith(_INVENTED)
    return Source(stones.corpus_hash(seed), lambda: stones.corpus(seed), replaces=ours)


def _vectors(settings: EncoderSettings, tools: Tools) -> Vectors:
    if tools.dry_run:
        identity = encoder_identity(settings)
        return Vectors(None if UNKNOWN in identity else identity, _no_encoder)
    encoder = tools.encoder(settings)
    return Vectors(encoder.identity, lambda: encoder)


def _no_encoder() -> Encoder:
    raise ValueError("the index needs an encoder to be built: --planner-only builds it")


# --- questions ----------------------------------------------------------------------------------


def _unplanned(settings: PromptSettings) -> list[PromptRecord]:
    """The questions in their splits, without messages."""
    records = _of_files(settings) if settings.questions else _of_stones(settings)
    if settings.num_samples is not None:
        number = min(settings.num_samples, len(records))
        records = sample_sets(records, number, settings.seed, stratum="source")
    if records[0].split:
        return records
    return split_sets(records, settings.fractions.model_dump(), settings.seed, stratum="source")


def _of_files(settings: PromptSettings) -> list[PromptRecord]:
    return [
        _record(question, "" if split == _WHOLE else split, {"source": split}, settings)
        for split, path in settings.questions.items()
        for question in read_questions(Path(path).expanduser(), settings.five_options)
    ]


def _of_stones(settings: PromptSettings) -> list[PromptRecord]:
    return [
        _record(question, "", {"source": "invented", "marks": list(kind)}, settings)
        for kind, question in stones.questions(settings.seed)
    ]


def _record(
    question: Question, split: str, about: Mapping[str, Any], settings: PromptSettings
) -> PromptRecord:
    metadata = {
        "question": question.text,
        "options": dict(question.options),
        "gold": question.gold,
        "relevant": list(question.relevant),
        "options_shown": settings.show_options,
        **about,
    }
    return PromptRecord(question.id, TASK, (), question.id, split, metadata)


def _question(record: PromptRecord) -> Question:
    found = record.metadata
    return Question(found["question"], found["options"], found["gold"], tuple(found["relevant"]))


def _questions(records: Sequence[PromptRecord]) -> list[Question]:
    return [_question(record) for record in records]


# --- plans --------------------------------------------------------------------------------------


def _keep_plans(
    planner: ChatModel, questions: Sequence[Question], settings: PromptSettings, tools: Tools
) -> None:
    """Make the plans that are missing. Raises `ValueError` where the planner does not answer."""
    cache = _plan_cache(settings)
    if problem := cache.check(questions, planner):
        raise ValueError(f"the planner does not answer: {problem}")
    if tools.dry_run:
        return
    planned = cache.complete(questions, planner, tools.say)
    for reason in planned.reasons:
        tools.say(f"a plan failed and will be asked for again at the next start: {reason}")


def _opened(settings: ModelSettings, tools: Tools) -> ChatModel | None:
    """The model that is named; None for the stand-in, and where nothing may be asked."""
    if tools.dry_run and not tools.trial:
        return None
    if settings.endpoint:
        return EndpointModel(settings.endpoint)
    return tools.chat_model(settings.model_name) if settings.model_name else None


def _plan_cache(settings: PromptSettings) -> PlanCache:
    path = _plans_path(settings)
    return PlanCache(path, _identity(settings.planner), with_options=settings.show_options)


def _identity(settings: ModelSettings) -> str:
    """What answers of a model are kept under, which is known without opening or loading it."""
    if settings.model_name:
        return model_identity(settings.model_name)
    return settings.endpoint.identity if settings.endpoint else ExtractiveReader.identity


def _plans_path(settings: PromptSettings) -> Path:
    return Path(settings.plans or f"{settings.index}.plans.jsonl").expanduser()


def _plans(settings: PromptSettings, records: Sequence[PromptRecord]) -> Mapping[str, Plan]:
    """The plans by question id: those that were kept, or the template filled in."""
    if settings.planner.is_stand_in:
        return {_question(r).id: template_plan(_features(r.metadata)) for r in records}
    return _plan_cache(settings).read(_questions(records))


def _features(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """What a template says to search for: the marks of an invented stone, else words for all."""
    if "marks" in metadata:
        return (*metadata["marks"], "not who found it")
    return ("what sets this case apart",)


def _refuse_unplanned(without: int, number: int) -> None:
    if without > _MOST_UNPLANNED * number:
        raise ValueError(
            f"{without:,} of {number:,} questions have no plan: --planner-only makes those that "
            "are missing and says why one fails"
        )


def _with_plan(record: PromptRecord, plan: Plan) -> PromptRecord:
    """The record with its prompt: question, options where they are shown, plan."""
    found = record.metadata
    options = [f"{letter}. {text}" for letter, text in found["options"].items()]
    shown = options if found["options_shown"] else []
    user = "\n".join([found["question"], *shown, plan.to_text()])
    messages: tuple[Message, ...] = (
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user},
    )
    return replace(record, messages=messages, metadata={**found, "plan": plan.model_dump()})


# --- answered without retrieval -----------------------------------------------------------------


def _known_answers(settings: PromptSettings) -> KnownAnswers:
    path = _plans_path(settings).with_suffix(".known.jsonl")
    return KnownAnswers(path, _identity(settings.generator))


def _keep_known(trained: Sequence[PromptRecord], settings: PromptSettings, tools: Tools) -> None:
    # Its weights are here now and have a version.
    generator = None if tools.dry_run else _opened(settings.generator, tools)
    known, questions = _known_answers(settings), _questions(trained)
    if generator or settings.generator.is_stand_in:
        reader = ChatGenerator(generator) if generator else ExtractiveReader()
        known.complete(questions, reader)
    right = len(known.right(questions))
    tools.say(
        f"{right:,} of {len(questions):,} training questions are answered without retrieval; "
        f"{settings.known_share:.0%} of them are trained on"
    )


def _without_known(records: Sequence[PromptRecord], settings: PromptSettings) -> list[PromptRecord]:
    """The records without some training questions that are answered without retrieval.

    A share of the prompts, not a weight on their reward: GRPO divides by the spread of a prompt's
    rewards, and a weight would cancel.
    """
    if settings.known_share == 1:
        return list(records)
    trained = [record for record in records if record.split == TRAIN_SPLIT]
    right = _known_answers(settings).right(_questions(trained))
    known = [record for record in trained if _question(record).id in right]
    kept = round(settings.known_share * len(known))
    dropped = {r.id for r in known} - {r.id for r in _sampled(known, kept, settings.seed)}
    return [record for record in records if record.id not in dropped]


def _sampled(records: Sequence[PromptRecord], number: int, seed: int) -> list[PromptRecord]:
    return sample_sets(records, number, seed, stratum="source") if number else []


# --- the local model ----------------------------------------------------------------------------


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started rewriter, from `cache` if it is there."""
    from data_prep.tiny_model import Example, warm_start  # imports torch

    examples = [Example(r.messages, text) for r, text in imitated_replies(records, settings)]
    return warm_start(examples, settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """Fresh questions on stones that no evaluation asks about, each with vague queries.

    Raises `UnsuitablePromptsError` for records that are not of the invented world.
    """
    if any("marks" not in record.metadata for record in records):
        raise UnsuitablePromptsError("the local model knows of invented stones only")
    held_out = {tuple(r.metadata["marks"]) for r in records if r.split != TRAIN_SPLIT}
    pool = [kind for kind in stones.kinds() if kind not in held_out]
    rng = np.random.default_rng(settings.seed)
    found = []
    for _ in range(settings.steps * settings.batch_size):
        kind = pool[rng.integers(len(pool))]
        question, reply = stones.warm_start_example(kind, settings.precise_share, rng)
        record = PromptRecord("", TASK, (), "", TRAIN_SPLIT, _shown(question))
        plan = template_plan(_features({"marks": kind}))
        found.append((_with_plan(record, plan), reply))
    return found


def _shown(question: str) -> dict[str, Any]:
    return {"question": question, "options": {}, "options_shown": False}
