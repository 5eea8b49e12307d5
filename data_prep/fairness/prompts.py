"""The prompts of the fairness task: vignettes in splits, then the control prompts."""

from typing import Self

from pydantic import BaseModel, Field, model_validator

from data_prep.fairness.vignettes import SETS_PER_CASE, cases_named, control, vignettes
from data_prep.splits import Fractions, sample_sets, split_counts, split_sets, whole_sets
from environments.base import PromptRecord
from environments.disparity import RACES


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Which vignettes a run uses. The defaults are the full factorial of every clinical case."""

    num_samples: int | None = Field(None, description="vignettes in whole sets; null for all")
    cases: list[str] = Field([], description="clinical cases; [] for all")
    fractions: Fractions = Fractions()
    seed: int = Field(0, ge=0, description="of sample and splits")

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        sets = SETS_PER_CASE * len(cases_named(self.cases))
        if self.num_samples is not None:
            sets = whole_sets(self.num_samples, len(RACES), sets)
        split_counts(sets, self.fractions.model_dump())
        return self

    @property
    def invented(self) -> bool:
        """All of them are, so they may be shown to anyone."""
        return True


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The vignettes with their splits, then one control prompt per clinical case."""
    cases = cases_named(settings.cases)
    records = [record for case in cases for record in vignettes(case)]
    if settings.num_samples is not None:
        records = sample_sets(records, settings.num_samples, settings.seed)
    records = split_sets(records, settings.fractions.model_dump(), settings.seed)
    return records + [control(case) for case in cases]
