"""MedQA's questions in the forms in which they are published.

Read are a JSON list or JSON lines of objects with a `question`, an `answer` (the text) and
`options`, which are an object of letters (the authors' four-option files), a list of
{"key", "value"} (BigBIO) or a list of texts with their letter ("A. ..."). `answer_idx` is the
letter where there is one. Other keys are left alone.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_prep.text_files import DataError, json_lines, parse_json, read_source
from environments.rag.reader import LETTERS

#: What becomes of a question with five options.
FiveOptions = Literal["refuse", "drop_one"]

_KIND = "file of questions"
_LETTERED = re.compile(r"\s*([A-E])[.):]\s*(.+)", re.DOTALL)


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


def read_questions(path: Path, five_options: FiveOptions = "refuse") -> list[Question]:
    """The questions of a file. Raises `DataError` with everything that is wrong.

    With `drop_one` a wrong option of five is left out, chosen by a hash of the question, and the
    others keep their order; figures on such questions are not those of the published four.
    """
    questions: list[Question] = []
    problems: list[str] = []
    for location, row in _rows(path, problems):
        question = _question(row, five_options)
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


def _question(row: Any, five_options: FiveOptions) -> Question | str:
    """The question of an object, or what is wrong with it."""
    if not isinstance(row, dict):
        return "no JSON object"
    text, options = row.get("question"), _options(row.get("options"))
    if not isinstance(text, str) or not text.strip():
        return "has no question"
    if options is None:
        return "has no options that can be read"
    gold = _gold(row, options)
    if gold is None:
        return "its answer is none of its options"
    if len(options) == len(LETTERS) + 1:
        if five_options == "refuse":
            return (
                "has five options; take the four-option files, or set five_options to drop_one "
                "and compare the result with no published one"
            )
        options, gold = _without_one(text, options, gold)
    if list(options) != list(LETTERS):
        return f"has the options {', '.join(options)}, not {', '.join(LETTERS)}"
    return Question(text.strip(), options, gold)


def _options(value: Any) -> dict[str, str] | None:
    """The options by letter, sorted; None if they cannot be read."""
    pairs = [_pair(item) for item in (value.items() if isinstance(value, dict) else value or ())]
    options = dict(pair for pair in pairs if pair)
    distinct = len(set(options.values())) == len(options) == len(pairs)
    return dict(sorted(options.items())) if options and distinct else None


def _pair(item: Any) -> tuple[str, str] | None:
    """Letter and text of an option."""
    if isinstance(item, dict):
        item = (item.get("key"), item.get("value"))
    if isinstance(item, str):
        match = _LETTERED.fullmatch(item)
        item = match.groups() if match else ()
    texts = len(item) == 2 and all(isinstance(part, str) and part.strip() for part in item)
    return (item[0].strip(), item[1].strip()) if texts else None


def _gold(row: Mapping[str, Any], options: Mapping[str, str]) -> str | None:
    """The letter of the answer; None where letter and text disagree or name no option."""
    letter, answer = row.get("answer_idx"), row.get("answer")
    by_text = [key for key, text in options.items() if text == str(answer).strip()]
    if letter is None:
        return by_text[0] if by_text else None
    agrees = answer is None or by_text == [letter]
    return letter if letter in options and agrees else None


def _without_one(text: str, options: Mapping[str, str], gold: str) -> tuple[dict[str, str], str]:
    """Four of five options, lettered anew, and the letter of the answer among them."""
    distractors = [letter for letter in options if letter != gold]
    dropped = min(
        distractors, key=lambda letter: hashlib.sha256(f"{text}{letter}".encode()).digest()
    )
    letters = [letter for letter in options if letter != dropped]
    lettered = {new: options[old] for new, old in zip(LETTERS, letters, strict=True)}
    return lettered, LETTERS[letters.index(gold)]
