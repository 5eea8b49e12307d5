"""Preparation of the retrieval task's prompts: an index, plans, answers without retrieval."""

from collections.abc import Sequence

import data_prep.rag.invented as stones
from data_prep.contract import Tools
from data_prep.hub import UNKNOWN, local_copy
from data_prep.rag.encoder import encoder_identity
from data_prep.rag.index import (
    Source,
    Vectors,
    ensure_index,
    find_index,
    refuse_other_encoder,
)
from data_prep.rag.prompts import (
    INVENTED_INDEX,
    PromptSettings,
    known_answers,
    plan_cache,
    questions_of,
    unplanned_records,
)
from data_prep.rag.sources import Question
from environments.base import TRAIN_SPLIT, PromptRecord
from environments.chat import ChatModel, EndpointModel, ModelSettings
from environments.encoder import Encoder
from environments.rag.corpus import read_manifest
from environments.rag.reader import ChatGenerator, ExtractiveReader


def prepare(settings: PromptSettings, tools: Tools) -> None:
    """Make what is missing of the index, the plans, and the answers without retrieval.

    A dry run makes nothing. Raises `ValueError` with what cannot be made.
    """
    records = unplanned_records(settings)
    _make_index(settings, tools)
    if planner := _opened(settings.planner, tools):
        _make_plans(planner, questions_of(records), settings, tools)
    if settings.known_share < 1:
        _complete_answers([r for r in records if r.split == TRAIN_SPLIT], settings, tools)


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


def _complete_answers(
    trained: Sequence[PromptRecord], settings: PromptSettings, tools: Tools
) -> None:
    # Opened first: a model of the hub has an identity once its copy is on this machine.
    generator = None if tools.dry_run else _opened(settings.generator, tools)
    answers, questions = known_answers(settings), questions_of(trained)
    if not tools.dry_run and (generator or settings.generator.is_stand_in):
        reader = ChatGenerator(generator) if generator else ExtractiveReader()
        answers.complete(questions, reader)
    correct_count = len(answers.correct_ids(questions))
    tools.say(
        f"{correct_count:,} of {len(questions):,} training questions are answered without "
        f"retrieval; {settings.known_share:.0%} of them are trained on"
    )
