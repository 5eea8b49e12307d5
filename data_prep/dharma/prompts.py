"""The prompts of the dharma task in splits: invented ones, or those of a file."""

from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from data_prep.contract import DataSettings
from data_prep.dharma.invented import (
    FEWEST_PROMPTS,
    FRACTIONS,
    MOST_PROMPTS,
    invented_prompts,
)
from data_prep.dharma.sources import import_prompts
from data_prep.splits import sample_names, split_sets
from environments.base import PromptRecord


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """Which scope prompts a run uses."""

    num_samples: int | None = Field(
        None, ge=16, description="prompts, of a source at most; null for all"
    )
    source: Path | None = Field(None, description="JSONL to import; null for the prompts made here")
    seed: int = Field(0, ge=0, description="of sample and splits")

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.source or self.num_samples is None:
            return self
        if self.num_samples > MOST_PROMPTS:
            raise ValueError(
                f"num_samples {self.num_samples:,} is more than there are: {MOST_PROMPTS:,}"
            )
        if self.num_samples < FEWEST_PROMPTS:
            raise ValueError(
                f"num_samples {self.num_samples} is too few for every kind of prompt in every "
                f"split: {FEWEST_PROMPTS} or more"
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
        record_ids = sample_names((r.id for r in records), settings.num_samples, settings.seed)
        sample = [record for record in records if record.id in record_ids]
        families = len({record.set_id for record in sample})
        if families < len(FRACTIONS):
            raise ValueError(
                f"{settings.source}: prompts that begin with the same four words share a split, "
                f"so it takes {len(FRACTIONS)} different beginnings or more, and there are "
                f"{families}"
            )
        records = split_sets(sample, FRACTIONS, settings.seed, stratum="wording")
    return [replace(record, set_id=record.id) for record in records]
