"""MedQA's four-option questions in the form in which their authors and the hub publish them.

Read are a JSON list or JSON lines of objects with a `question`, an `answer` (the text) and
`options`, an object of letters. `answer_idx` is the letter where there is one. Other keys are left
alone.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, StringConstraints, ValidationError, model_validator

from environments.rag.reader import LETTERS
from equipoise.files.records import DataError, json_lines, parse_json, read_source, row_faults

_KIND = "file of questions"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


@dataclass(frozen=True, slots=True)
class Question:
    """A question with four options. `relevant` names the documents known to answer it."""

    text: str
    options: Mapping[str, str]
    gold: str
    relevant: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Hash of the question, so that it has the same name in every file."""
        parts = json.dumps([self.text, sorted(self.options.values())])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file. Raises `DataError` with everything that is wrong."""
    questions: list[Question] = []
    problems: list[str] = []
    for location, row in _rows(path, problems):
        try:
            read = _Row.model_validate(row)
        except ValidationError as error:
            problems.append(f"{location}: {row_faults(error)}")
        else:
            options = dict(sorted(read.options.items()))
            questions.append(Question(read.question, options, str(read.gold)))
    if problems or not questions:
        raise DataError("questions.invalid-rows", path, _KIND, problems or ["holds no question"])
    return list({question.id: question for question in questions}.values())


def _rows(path: Path, problems: list[str]) -> list[tuple[str, Any]]:
    """(place, value) for each question of a JSON list or of JSON lines."""
    text = read_source(path, _KIND)
    if not text.lstrip().startswith("["):
        return [(f"line {number}", row) for number, row in json_lines(text, problems)]
    try:
        listed = parse_json(text)
    except ValueError as error:
        problems.append(str(error))
        return []
    return [(f"question {number}", row) for number, row in enumerate(listed, start=1)]


class _Row(BaseModel, strict=True):
    question: Text
    options: dict[Text, Text]
    answer: str | None = None
    answer_idx: str | None = None

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if sorted(self.options) != list(LETTERS) or len(set(self.options.values())) < len(LETTERS):
            raise ValueError(f"the options are not {', '.join(LETTERS)}, each with its own text")
        if self.gold not in self.options:
            raise ValueError("its answer is none of its options")
        return self

    @property
    def gold(self) -> str | None:
        """The letter of the answer; None where letter and text disagree or name no option."""
        by_text = [key for key, text in self.options.items() if text == str(self.answer).strip()]
        if self.answer_idx is None:
            return by_text[0] if by_text else None
        return self.answer_idx if self.answer is None or by_text == [self.answer_idx] else None
