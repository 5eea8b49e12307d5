"""Preparation of the retrieval task's prompts: an index and plans."""

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
    plan_cache,
    questions_of,
    unplanned_records,
)
from data_prep.rag.sources import Question
from environments.chat import ChatModel, EndpointModel, ModelSettings
from environments.encoder import Encoder
from environments.rag.corpus import read_manifest


def prepare(settings: PromptSettings, tools: Tools) -> None:
    """Make what is missing of the index and the plans.

    A dry run makes nothing. Raises `ValueError` with what cannot be made.
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
