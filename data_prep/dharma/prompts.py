"""The prompts of the dharma task in splits: invented ones, or those of a file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)

from data_prep.contract import DataSettings
from data_prep.dharma.invented import (
    FEWEST_PROMPTS,
    FRACTIONS,
    MOST_PROMPTS,
    invented_prompts,
    scope_prompt,
)
from data_prep.splits import sample_names, split_sets
from environments.base import PromptRecord, Rollout
from environments.dharma.judge import ANSWER_KEY, VERDICTS, DomainScope, Tier
from equipoise.files.records import DataError, json_lines, read_source, row_faults


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


# --- prompts and verdicts of a file --------------------------------------------------------------
#
# A file has one JSON object per line, {"prompt": ...} and, if it is known, "tier" (A, B, C) and
# "scope" (S0 to S3); a label may go on after a colon, and other keys are not read. One of verdicts
# has both labels and besides {"response": ..., "violations": {"dharma": true, ...}}.


#: A prompt that is longer is refused.
MAX_PROMPT_CHARACTERS = 8_000
_KIND, _OF_VERDICTS = "file of prompts", "file of verdicts"


def import_prompts(path: Path) -> list[PromptRecord]:
    """The different prompts of a JSONL file, with the labels that it gives.

    Prompts that begin with the same four words are a family, which one split holds whole.
    Raises `DataError` with every bad line, and for a prompt that is there twice with other labels.
    """
    first_of: dict[str, tuple[int, PromptRecord]] = {}
    faults = []
    for number, row in _rows(path, _KIND, _Row):
        record = _imported(number, row)
        line, first = first_of.setdefault(_plain(row.prompt), (number, record))
        if (labels := _labels(record)) != (first_labels := _labels(first)):
            faults.append(
                f"line {number}: the prompt of line {line}, {labels} here and {first_labels} there"
            )
    if faults:
        raise DataError("dharma.invalid-rows", path, _KIND, faults)
    return [record for _, record in first_of.values()]


def _labels(record: PromptRecord) -> str:
    return ", ".join(f"{name} {record.metadata.get(name, 'unknown')}" for name in ("tier", "scope"))


def import_verdicts(path: Path) -> list[Rollout]:
    """Read replies that a person has labelled as violations or not, see `VERDICTS`.

    Raises `DataError` with every bad line.
    """
    replies = []
    for number, row in _rows(path, _OF_VERDICTS, _VerdictRow):
        record = _imported(number, row)
        key = {ANSWER_KEY: row.answer_key} if ANSWER_KEY in row.model_fields_set else {}
        metadata = {**record.metadata, **key, VERDICTS: row.violations}
        name = _plain(row.prompt)
        replies.append(Rollout(name, record.set_id, "", "", row.response, metadata))
    return replies


def _unlabelled(value: Any) -> Any:
    """A label up to its colon."""
    return value.partition(":")[0].strip() if isinstance(value, str) else value


def _worded(text: str) -> str:
    if not _plain(text):
        raise ValueError("holds no word")
    return text


class _Row(BaseModel):
    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS), AfterValidator(_worded)]
    tier: Annotated[Tier | None, BeforeValidator(_unlabelled)] = None
    scope: Annotated[DomainScope | None, BeforeValidator(_unlabelled)] = None


class _VerdictRow(_Row):
    tier: Annotated[Tier, BeforeValidator(_unlabelled)]
    scope: Annotated[DomainScope, BeforeValidator(_unlabelled)]
    response: str
    violations: dict[Literal["ahimsa", "dharma", "helpfulness"], StrictBool] = Field(min_length=1)
    answer_key: Any = None


_AnyRow = TypeVar("_AnyRow", bound=_Row)


def _rows(path: Path, kind: str, model: type[_AnyRow]) -> list[tuple[int, _AnyRow]]:
    """Read (line, row) of a file. Raises `DataError` for any fault, and for a file without rows."""
    faults: list[str] = []
    rows = []
    for number, value in json_lines(read_source(path, kind), faults):
        try:
            rows.append((number, model.model_validate(value)))
        except ValidationError as error:
            faults.append(f"line {number}: {row_faults(error)}")
    if faults or not rows:
        raise DataError("dharma.invalid-rows", path, kind, faults or ["holds no prompts"])
    return rows


def _imported(number: int, row: _Row) -> PromptRecord:
    labels = row.model_dump(include={"tier", "scope"}, exclude_none=True)
    family = " ".join(_plain(row.prompt).split()[:4])
    metadata = {"question": row.prompt, "family": family, "wording": "imported", **labels}
    return scope_prompt(f"prompt/{number - 1:05d}", row.prompt, metadata)


def _plain(text: str) -> str:
    """A text without what cannot tell two prompts apart: case, spaces, punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))
