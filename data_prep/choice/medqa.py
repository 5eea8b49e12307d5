"""MedQA's four-option questions as they are: exam questions with an answer, in one variant."""

from pathlib import Path

from data_prep.choice.question import Question, with_options
from data_prep.rag.sources import read_questions

_VARIANT = "as published"


def read(path: Path) -> list[Question]:
    """The questions of a file, in any form in which MedQA is published. Raises `DataError`."""
    return [
        Question(
            set_id=question.id,
            variant=_VARIANT,
            part="",
            text=with_options(
                f"{question.text}\n", tuple(question.options), tuple(question.options.values())
            ),
            labels=tuple(question.options),
            options=tuple(question.options.values()),
            gold=question.gold,
        )
        for question in read_questions(path)
    ]
