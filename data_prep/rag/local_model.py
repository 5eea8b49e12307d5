"""The small model of the retrieval task, which imitates somebody who searches vaguely."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from data_prep.faults import UnsuitablePromptsError
from data_prep.imitation import imitating_model
from data_prep.rag import invented as stones
from data_prep.rag.plans import template_plan
from data_prep.rag.prompts import TASK, plan_features, with_plan
from data_prep.warm_start import WarmStart
from environments.base import TRAIN_SPLIT, PromptRecord

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to write vague "
    "search queries about invented stones, and its generator is a rule that looks for an option in "
    "what was found. It exists to show and to test the pipeline on a machine without a GPU. What "
    "training does to it says nothing of any clinical model, of medical retrieval or of any corpus."
)


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates somebody who asks vaguely."""

    steps: int = Field(1600, ge=1)
    precise_share: float = Field(
        default=0.35, ge=0, le=1, description="of the replies, whose queries name the marks"
    )


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started rewriter, from `cache` if it is there."""
    return imitating_model(imitated_replies(records, settings), settings, cache)


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
    shown = []
    for _ in range(settings.steps * settings.batch_size):
        kind = pool[rng.integers(len(pool))]
        question, reply = stones.warm_start_example(kind, settings.precise_share, rng)
        record = PromptRecord("", TASK, (), "", TRAIN_SPLIT, _shown(question))
        plan = template_plan(plan_features({"marks": kind}))
        shown.append((with_plan(record, plan), reply))
    return shown


def _shown(question: str) -> dict[str, Any]:
    return {"question": question, "options": {}, "options_shown": False}
