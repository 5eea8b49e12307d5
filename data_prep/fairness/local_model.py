"""The small model of the fairness task, which imitates the invented clinician."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from data_prep.fairness.clinician import answer
from data_prep.fairness.vignettes import CASES, cases_named, control, vignettes
from data_prep.faults import UnsuitablePromptsError
from data_prep.imitation import imitating_model
from data_prep.warm_start import WarmStart
from environments.base import CONTROL_SPLIT, TRAIN_SPLIT, PromptRecord

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate "
    "an invented clinician whose racial bias was written down beforehand. It exists to show and "
    "to test the pipeline on a machine without a GPU. Its bias, and what training does to it, "
    "say nothing of any clinical model, of any patient or of any population."
)


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates the invented clinician."""

    control_share: float = Field(default=0.05, ge=0, le=1, description="answers to control prompts")


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model for these prompts, from `cache` if it is there.

    Raises `UnsuitablePromptsError` for other clinical cases than those made here.
    """
    others = {record.metadata["case"] for record in records} - {case.name for case in CASES}
    if others:
        raise UnsuitablePromptsError(
            f"the local model of this task knows its own clinical cases alone, not {min(others)!r}"
        )
    return imitating_model(imitated_replies(records, settings), settings, cache)


def imitated_replies(
    records: Sequence[PromptRecord], settings: LocalModelSettings
) -> list[tuple[PromptRecord, str]]:
    """The prompts that the warm start shows, drawn with replacement, each with a fresh answer.

    They come from the full factorial of the records' cases without the sets of `records` that are
    in an evaluation split. So the model is as good when a run uses few vignettes, and no prompt
    that it is evaluated on was ever shown to it.
    """
    seen_splits = (TRAIN_SPLIT, CONTROL_SPLIT)
    held_out = {record.set_id for record in records if record.split not in seen_splits}
    cases = cases_named(sorted({record.metadata["case"] for record in records}))
    pool = [v for case in cases for v in vignettes(case) if v.set_id not in held_out]
    controls = [control(case) for case in cases]
    rng = np.random.default_rng(settings.seed)
    drawn = []
    for _ in range(settings.steps * settings.batch_size):
        source = controls if rng.random() < settings.control_share else pool
        record = source[rng.integers(len(source))]
        drawn.append((record, answer(record.metadata, rng)))
    return drawn
