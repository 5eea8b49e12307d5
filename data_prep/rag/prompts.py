"""The prompts of the retrieval task: questions in splits, each with the plan of a frozen planner.

Questions come from MedQA's files or, for the local variant, from an invented world of stones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

import data_prep.rag.invented as stones
from data_prep.contract import DataSettings, Tools
from data_prep.rag.index import Source, Vectors, ensure_index, find_index, refuse_other_encoder
from data_prep.rag.plans import Plan, PlanCache, template_plan
from data_prep.rag.sources import Question, read_questions
from data_prep.splits import Fractions, sample_sets, split_sets
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, Message, PromptRecord
from environments.chat import ChatModel, EndpointModel, ModelSettings
from environments.contract import Encoder, EncoderSettings
from environments.rag.reader import ExtractiveReader
from environments.rag.retrieval import RetrieverName, read_manifest
from equipoise.files.hub import UNKNOWN, encoder_identity, local_copy, model_identity
from equipoise.files.records import named_faults

TASK = "rag"

SYSTEM_PROMPT = (
    "You write search queries that find what a question needs in a library. You are given the "
    "question and a plan. Reply with exactly three lines and nothing else:\n"
    "Query 1: <words to search for>\nQuery 2: <words to search for>\nQuery 3: <words to search for>"
)

#: More questions without a plan than this share are not an accident.
_MOST_UNPLANNED = 0.1
_WHOLE = "all"
_SPLITS = (TRAIN_SPLIT, VALIDATION_SPLIT, TEST_SPLIT)
#: The strata of the invented questions: whether training asks about the words at all.
TRAINED_WORDS, UNTRAINED_WORDS = "trained words", "untrained words"
#: How the folders are called in which the index of the invented corpus is made anew at will.
INVENTED_INDEX = "invented-"


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """The sources of questions, index and plans; with no file named, the invented world."""

    num_samples: int | None = Field(default=None, ge=3, description="questions; null for all")
    questions: dict[str, str] = Field(
        default={}, description="a file per split, or one to split: all"
    )
    corpus: str = Field(default="", description="what a missing index is built from")
    index: str = Field(default="", description="folder of the index, that of env.rag")
    retriever: RetrieverName = "bm25"  #: that of env.rag
    encoder: EncoderSettings = EncoderSettings()
    show_options: bool = Field(default=False, description="to planner and rewriter")
    planner: ModelSettings = ModelSettings()  #: who writes the plans
    plans: str = Field(
        default="", description="every plan made so far; beside the index if not named"
    )
    fractions: Fractions = Fractions()
    seed: int = Field(default=0, ge=0, description="of invented questions, sample and splits")

    @field_validator("questions")
    @classmethod
    def _known_splits(cls, questions: dict[str, str]) -> dict[str, str]:
        splits = set(questions)
        if splits and splits != {_WHOLE} and not {TRAIN_SPLIT, TEST_SPLIT} <= splits:
            raise ValueError(f"names a file for {_WHOLE}, or one for train and one for test")
        if extras := sorted(splits - {_WHOLE, *_SPLITS}):
            raise ValueError(f"unknown split: {', '.join(extras)}")
        return questions

    @model_validator(mode="after")
    def _own_folder(self) -> Self:
        if (self.corpus or self.questions) and self.index_folder.name.startswith(INVENTED_INDEX):
            raise ValueError(
                "the index of your own corpus needs a folder of its own: name it with "
                "env.rag.index=indexes/mine (for equipoise prepare: index=indexes/mine)"
            )
        return self

    @property
    def index_folder(self) -> Path:
        """The folder of the index; without a name, that of the invented corpus in the cache."""
        in_cache = f"~/.cache/equipoise/rag/{INVENTED_INDEX}{self.seed}"
        return Path(self.index or in_cache).expanduser()

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone; a corpus joins them."""
        return not self.questions and not self.corpus


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The questions that have a plan, each in its split.

    Raises `ValueError` where a file cannot be read or too many questions have no plan.
    """
    records = unplanned_records(settings)
    if settings.planner.is_stand_in:
        plans = {question_of(r).id: template_plan(plan_features(r.metadata)) for r in records}
    else:
        plans = plan_cache(settings).read(questions_of(records))
    without = len(records) - len(plans)
    if without > _MOST_UNPLANNED * len(records):
        raise ValueError(
            f"{without:,} of {len(records):,} questions have no plan: --planner-only makes those "
            "that are missing and says why one fails"
        )
    pairs = [(record, plans.get(question_of(record).id)) for record in records]
    return [with_plan(record, plan) for record, plan in pairs if plan]


# --- questions -----------------------------------------------------------------------------------


def unplanned_records(settings: PromptSettings) -> list[PromptRecord]:
    """The questions in their splits, without messages."""
    records = _of_files(settings) if settings.questions else _of_stones(settings)
    if settings.num_samples is not None:
        number = min(settings.num_samples, len(records))
        records = sample_sets(records, number, settings.seed, stratum="stratum")
    return records if records[0].split else _split(records, settings)


def _of_files(settings: PromptSettings) -> list[PromptRecord]:
    return [
        _record(question, "" if split == _WHOLE else split, {"stratum": split}, settings)
        for split, path in settings.questions.items()
        for question in read_questions(local_copy(path))
    ]


def _of_stones(settings: PromptSettings) -> list[PromptRecord]:
    """The invented questions in their splits, none on untrained words among those to train on.

    What is left out of training so is the local model's to see, which has to know all words.
    """
    records = []
    for stone in stones.questions(settings.seed):
        is_trained = stones.is_trained(stone.kind, settings.seed)
        about = {
            "stratum": TRAINED_WORDS if is_trained else UNTRAINED_WORDS,
            "stone": [stone.kind.colour, stone.kind.shape],
            "asked": [stone.role, stones.ROLES[stone.role]],
        }
        records.append(_record(stone.question, "", about, settings))
    return [
        record
        for record in _split(records, settings)
        if record.split != TRAIN_SPLIT or record.metadata["stratum"] == TRAINED_WORDS
    ]


def _split(records: Sequence[PromptRecord], settings: PromptSettings) -> list[PromptRecord]:
    return split_sets(records, settings.fractions.model_dump(), settings.seed, stratum="stratum")


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


def question_of(record: PromptRecord) -> Question:
    about = record.metadata
    return Question(about["question"], about["options"], about["gold"], tuple(about["relevant"]))


def questions_of(records: Sequence[PromptRecord]) -> list[Question]:
    return [question_of(record) for record in records]


# --- plans ---------------------------------------------------------------------------------------


def plan_cache(settings: PromptSettings) -> PlanCache:
    """The plans that the planner of these settings has made so far."""
    path = Path(settings.plans or f"{settings.index_folder}.plans.jsonl").expanduser()
    return PlanCache(path, identity_of(settings.planner), with_options=settings.show_options)


def identity_of(settings: ModelSettings) -> str:
    """The key of a model's stored answers; needs no opening or loading of the model."""
    if settings.model_name:
        return model_identity(settings.model_name)
    return settings.endpoint.identity if settings.endpoint else ExtractiveReader.identity


def plan_features(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The features of a template plan: one for all stones, one for all other questions."""
    return stones.PLAN if "stone" in metadata else ("what sets this case apart",)


def with_plan(record: PromptRecord, plan: Plan) -> PromptRecord:
    """The record with its prompt: question, options where they are shown, plan."""
    about = record.metadata
    options = [f"{letter}. {text}" for letter, text in about["options"].items()]
    lines = options if about["options_shown"] else []
    user = "\n".join([about["question"], *lines, plan.to_text()])
    messages: tuple[Message, ...] = (
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user},
    )
    return replace(record, messages=messages, metadata={**about, "plan": plan.model_dump()})


# --- the index and the plans are made -------------------------------------------------------------


def prepare(settings: PromptSettings, tools: Tools) -> None:
    """Make what is missing of the index and the plans.

    A dry run makes nothing. Raises `ValueError` with the parts that cannot be made.
    """
    records = unplanned_records(settings)
    _make_index(settings, tools)
    if planner := _opened(settings.planner, tools):
        _make_plans(planner, questions_of(records), settings, tools)


def _make_index(settings: PromptSettings, tools: Tools) -> None:
    folder = settings.index_folder
    vectors = None
    if settings.retriever != "bm25" and tools.dry_run:
        identity = encoder_identity(settings.encoder)
        vectors = Vectors(None if UNKNOWN in identity else identity, _no_encoder)
    elif settings.retriever != "bm25":
        encoder = tools.encoder(settings.encoder)
        vectors = Vectors(encoder.identity, lambda: encoder)
    if settings.questions and not settings.corpus:
        manifest = read_manifest(folder)
        refuse_other_encoder(manifest, folder, vectors.identity if vectors else None)
        tools.say(f"index: {manifest.passages:,} passages in {folder}")
    elif not tools.dry_run or find_index(_source(settings), folder, vectors):
        ensure_index(_source(settings), folder, vectors, tools.say)
    else:
        tools.say(f"index: none in {folder} yet; a run builds it, or --planner-only")


def _source(settings: PromptSettings) -> Source:
    if settings.corpus:
        return Source.of_path(local_copy(settings.corpus))
    seed = settings.seed
    ours = settings.index_folder.name.startswith(INVENTED_INDEX)
    return Source(stones.corpus_hash(seed), lambda: stones.corpus(seed), replaces=ours)


def _no_encoder() -> Encoder:
    raise ValueError("the index needs an encoder to be built: --planner-only builds it")


def _make_plans(
    planner: ChatModel, questions: Sequence[Question], settings: PromptSettings, tools: Tools
) -> None:
    """Make the plans that are missing. Raises `ValueError` where the planner does not answer."""
    cache = plan_cache(settings)
    if problem := cache.check(questions, planner):
        raise ValueError(f"the planner does not answer: {problem}")
    if tools.dry_run:
        return
    _, reasons = cache.complete(questions, planner, tools.say)
    for reason in dict.fromkeys(reasons):
        tools.say(f"a plan failed and will be asked for again at the next start: {reason}")


def _opened(settings: ModelSettings, tools: Tools) -> ChatModel | None:
    """The model that is named; None for the stand-in, and where nothing may be asked."""
    if tools.dry_run and not tools.trial:
        return None
    if settings.endpoint:
        return EndpointModel(settings.endpoint)
    return tools.chat_model(settings.model_name) if settings.model_name else None


# --- checks of prompts ----------------------------------------------------------------------------


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """List the prompts that the environment could not score, from any source."""
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
