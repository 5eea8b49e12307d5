"""The data module of the fairness task: vignettes in splits, control prompts, the local model.

    python -m data_prep.fairness --output data --num-samples 2304 --seed 0

writes data/prompts.jsonl and its manifest.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from data_prep.fairness.clinician import answer
from data_prep.fairness.vignettes import CASES, SETS_PER_CASE, cases_named, control, vignettes
from data_prep.faults import UnsuitablePromptsError, named_faults
from data_prep.records import write_prompts
from data_prep.splits import Fractions, sample_sets, split_counts, split_sets, whole_sets
from data_prep.warm_start import WarmStart
from environments.base import CONTROL_SPLIT, TRAIN_SPLIT, PromptRecord
from environments.disparity import RACES

LOCAL_MODEL_NOTICE = (
    "The local model is a very small language model, trained from random weights to imitate "
    "an invented clinician whose racial bias was written down beforehand. It exists to show and "
    "to test the pipeline on a machine without a GPU. Its bias, and what training does to it, "
    "say nothing of any clinical model, of any patient or of any population."
)


class PromptSettings(BaseModel, extra="forbid", frozen=True):
    """Which vignettes a run uses. The defaults are the full factorial of every clinical case."""

    num_samples: int | None = Field(None, description="vignettes in whole sets; null for all")
    cases: list[str] = Field([], description="clinical cases; [] for all")
    fractions: Fractions = Fractions()
    seed: int = Field(0, ge=0)

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


class LocalModelSettings(WarmStart, frozen=True):
    """The local model, which imitates the invented clinician."""

    control_share: float = Field(default=0.05, ge=0, le=1, description="answers to control prompts")


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The vignettes with their splits, then one control prompt per clinical case."""
    cases = cases_named(settings.cases)
    records = [record for case in cases for record in vignettes(case)]
    if settings.num_samples is not None:
        records = sample_sets(records, settings.num_samples, settings.seed)
    records = split_sets(records, settings.fractions.model_dump(), settings.seed)
    return records + [control(case) for case in cases]


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """What the environment could not score, wherever the prompts come from."""
    variants = [record for record in records if record.split != CONTROL_SPLIT]
    seen: set[tuple[str, object]] = set()
    twice = []
    for record in variants:
        variant = (record.set_id, record.metadata.get("race"))
        twice += [record.id] if variant in seen else []
        seen.add(variant)
    unknown = [r.id for r in variants if r.metadata.get("race") not in RACES]
    caseless = [r.id for r in records if not isinstance(r.metadata.get("case"), str)]
    return named_faults(
        {
            f"prompts have no race ({', '.join(RACES)}) in their metadata": unknown,
            "prompts have the race of another one of their set": [] if unknown else twice,
            "prompts name no clinical case in their metadata": caseless,
        }
    )


def build_local_model(
    records: Sequence[PromptRecord], settings: LocalModelSettings, cache: Path
) -> Path:
    """The folder of the warm-started model for these prompts, from `cache` if it is there.

    Raises `UnsuitablePromptsError` for other clinical cases than those made here.
    """
    from data_prep.tiny_model import Example, warm_start  # imports torch

    others = {record.metadata["case"] for record in records} - {case.name for case in CASES}
    if others:
        raise UnsuitablePromptsError(
            f"the local model of this task knows its own clinical cases alone, not {min(others)!r}"
        )
    examples = [Example(r.messages, text) for r, text in imitated_answers(records, settings)]
    return warm_start(examples, settings, cache)


def imitated_answers(
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write prompts.jsonl and its manifest from the command line."""
    parser = argparse.ArgumentParser(prog="python -m data_prep.fairness", description=main.__doc__)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder to write to"
    )
    parser.add_argument("--num-samples", type=int, metavar="N", help="vignettes; default: all")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    names = ", ".join(case.name for case in CASES)
    parser.add_argument("--cases", nargs="+", default=[], metavar="CASE", help=f"default: {names}")
    given = vars(parser.parse_args(arguments))
    folder: Path = given.pop("output")
    try:
        settings = PromptSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        parser.error(": ".join([*map(str, first["loc"]), first["msg"]]))
    records = build_prompts(settings)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"module": "data_prep.fairness", "settings": settings.model_dump()}
    write_prompts(folder / "prompts.jsonl", records, about)
    counts = Counter(record.split for record in records)
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    print(f"{folder / 'prompts.jsonl'}: {listed}")  # noqa: T201


if __name__ == "__main__":
    main()
