"""The prompts of the choice task: a source's questions, all of them in the test split."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from data_prep.choice.sources import (
    Question,
    read_amqa_gender,
    read_amqa_income,
    read_amqa_race,
    read_diversity_med_qa,
    read_medperturb_gender,
    read_medperturb_tone,
    read_medqa,
    read_nurse_vignettes,
    read_q_pain,
)
from data_prep.contract import DataSettings
from data_prep.splits import sample_names
from data_prep.text_files import named_faults
from environments.addresses import AbsolutePath
from environments.base import TEST_SPLIT, Message, PromptRecord
from environments.choice.environment import format_text

TASK = "choice"

SourceName = Literal[
    "nurse_vignettes",
    "diversity_med_qa",
    "q_pain",
    "medperturb_gender",
    "medperturb_tone",
    "medqa",
    "amqa_race",
    "amqa_income",
    "amqa_gender",
]
#: Reads the questions of a source. Raises `DataError`.
_READ: Mapping[SourceName, Callable[[Path], list[Question]]] = {
    "nurse_vignettes": read_nurse_vignettes,
    "diversity_med_qa": read_diversity_med_qa,
    "q_pain": read_q_pain,
    "medperturb_gender": read_medperturb_gender,
    "medperturb_tone": read_medperturb_tone,
    "medqa": read_medqa,
    "amqa_race": read_amqa_race,
    "amqa_income": read_amqa_income,
    "amqa_gender": read_amqa_gender,
}


class PromptSettings(DataSettings, extra="forbid", frozen=True):
    """Which questions are asked, and where they are: no data of others comes with the project."""

    source: SourceName  #: the test set that is asked
    path: AbsolutePath = Field(description="the source's file; of q_pain the folder of its five")
    num_samples: int | None = Field(
        None, ge=1, description="prompts at most, in whole sets; null for all"
    )
    seed: int = Field(0, ge=0, description="of the sample")

    @property
    def invented(self) -> bool:
        """Whether the prompts are made here, and may be shown to anyone: never."""
        return False


def build_prompts(settings: PromptSettings) -> list[PromptRecord]:
    """The questions in whole counterfactual sets. Raises `DataError` with every bad line."""
    questions = _READ[settings.source](settings.path)
    names = dict.fromkeys(question.set_id for question in questions)
    number = None
    if settings.num_samples is not None:
        number = max(1, settings.num_samples * len(names) // len(questions))
    set_ids = sample_names(names, number, settings.seed)
    return [
        _record(settings.source, question) for question in questions if question.set_id in set_ids
    ]


def _record(source: SourceName, question: Question) -> PromptRecord:
    message: Message = {
        "role": "user",
        "content": f"{question.text.strip()}\n\n{format_text(question.labels)}",
    }
    system: list[Message] = []
    if question.system.strip():
        system.append({"role": "system", "content": question.system.strip()})
    return PromptRecord(
        id=f"{question.set_id} / {question.variant}",
        task=TASK,
        messages=(*system, message),
        set_id=question.set_id,
        split=TEST_SPLIT,
        metadata={
            "source": source,
            "part": question.part or source,
            "variant": question.variant,
            "labels": list(question.labels),
            "options": list(question.options),
            "gold": question.gold,
            "ordered": question.ordered,
        },
    )


def prompt_problems(records: Sequence[PromptRecord]) -> list[str]:
    """Prompts of another split: what tests a model is not trained on."""
    record_ids = [record.id for record in records if record.split != TEST_SPLIT]
    return named_faults(
        {"prompts that are not of the test split, and nothing may train": record_ids}
    )
