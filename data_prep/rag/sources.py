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
from typing import Any

from data_prep.text_files import DataError, json_lines, parse_json, read_source
from environments.rag.reader import LETTERS

_KIND = "file of questions"


@dataclass(frozen=True, slots=True)
class Question:
    """A question with four options. `relevant` names the documents known to answer it."""

    text: str
    options: Mapping[str, str]
    gold: str
    relevant: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """A hash of what is asked, so that a question has one name in every file."""
        parts = json.dumps([self.text, sorted(self.options.values())])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def read_questions(path: Path) -> list[Question]:
    """The questions of a file. Raises `DataError` with everything that is wrong."""
    questions: list[Question] = []
    problems: list[str] = []
    for location, row in _rows(path, problems):
        question = _question(row)
        if isinstance(question, str):
            problems.append(f"{location}: {question}")
        else:
            questions.append(question)
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


def _question(row: Any) -> Question | str:
    """The question of an object, or what is wrong with it."""
    if not isinstance(row, dict):
        return "no JSON object"
    text, options = row.get("question"), _options(row.get("options"))
    if not isinstance(text, str) or not text.strip():
        return "has no question"
    if options is None:
        return "has no options that can be read: they are an object, letter -> text"
    if list(options) != list(LETTERS):
        return f"has the options {', '.join(options)}, not {', '.join(LETTERS)}"
    gold = _gold(row, options)
    return Question(text.strip(), options, gold) if gold else "its answer is none of its options"


def _options(value: Any) -> dict[str, str] | None:
    """The options by letter, sorted; None if they cannot be read."""
    if not isinstance(value, dict) or not value:
        return None
    if not all(isinstance(text, str) and text.strip() for text in value.values()):
        return None
    options = {letter.strip(): text.strip() for letter, text in sorted(value.items())}
    return options if len(set(options.values())) == len(value) else None


def _gold(row: Mapping[str, Any], options: Mapping[str, str]) -> str | None:
    """The letter of the answer; None where letter and text disagree or name no option."""
    letter, answer = row.get("answer_idx"), row.get("answer")
    by_text = [key for key, text in options.items() if text == str(answer).strip()]
    if letter is None:
        return by_text[0] if by_text else None
    agrees = answer is None or by_text == [letter]
    return letter if letter in options and agrees else None
