"""The prompts of the dharma task in splits: invented ones, or those of a file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator

from data_prep.dharma.invented import MOST_PROMPTS, invented_prompts
from data_prep.dharma.sources import import_prompts
from data_prep.splits import sample_names, split_sets
from environments.base import TEST_SPLIT, TRAIN_SPLIT, VALIDATION_SPLIT, PromptRecord

FRACTIONS: Mapping[str, float] = {TRAIN_SPLIT: 0.65, VALIDATION_SPLIT: 0.1, TEST_SPLIT: 0.25}


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Which scope prompts a run uses."""

    num_samples: int | None = Field(
        None, ge=16, description="prompts, of a source at most; null for all"
    )
    source: Path | None = Field(None, description="JSONL to import; null for the prompts made here")
    seed: int = Field(0, ge=0, description="of sample and splits")

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.source is None and (self.num_samples or 0) > MOST_PROMPTS:
            raise ValueError(
                f"num_samples {self.num_samples:,} is more than there are: {MOST_PROMPTS:,}"
            )
        return self

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone."""
        return self.source is None


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """Scope prompts in splits, no wording in two of them.

    Raises `DataError` with every bad line of the source, `ValueError` for a source too small.
    """
    if settings.source is None:
        records = invented_prompts(settings.num_samples or MOST_PROMPTS, settings.seed)
    else:
        records = import_prompts(settings.source)
        taken = sample_names((r.id for r in records), settings.num_samples, settings.seed)
        records = [record for record in records if record.id in taken]
    split = split_sets(records, FRACTIONS, settings.seed, stratum="wording")
    return [replace(record, set_id=record.id) for record in split]
