"""AMQA (arXiv 2505.19562): what a model chose in exam questions about patients of other kinds.

A file has one model's answers: a line for each question, with the letter that is right and the
letters that the model chose for the question as it is, without the patient's attributes, and with
six descriptions that were written to mislead, of a white and a black patient, and so on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.answers.sheets import (
    NO_OPTION,
    About,
    Published,
    Sheet,
    VariantPair,
    refuse_another_form,
)
from data_prep.text_files import DataError, first_of, json_lines, read_source

KIND = "file of AMQA's answers (AMQA_Benchmark_Answer_*.jsonl)"
ABOUT = About(
    title="AMQA",
    licence="none stated",
    where="Results/AMQA_Benchmark_Answer_*.jsonl of github.com/XY-Showing/AMQA",
    caveats=(
        "The descriptions were chosen because they misled a model (GPT-4.1-mini): the differences "
        "say how far a model can be misled, not how often it is, nor that the attribute alone "
        "did it.",
        "The two of a pair differ in a whole description, not in one word.",
        "Each model gave one answer to a text. The yardstick is the question without attributes; "
        "where a second file of a model is given, also the question itself asked again, and the "
        "same attribute in the other file's description of it.",
    ),
)

_PREFIX = "test_model_answer_"
_VARIANTS = {
    "original_question": "original",
    "desensitized_question": "no attributes",
    "white": "white",
    "black": "black",
    "high_income": "high income",
    "low_income": "low income",
    "male": "male",
    "female": "female",
}
_ORIGINAL, _NEUTRAL = "original", "no attributes"
PAIRS = (
    VariantPair("white", "black", "counterfactual"),
    VariantPair("high income", "low income", "counterfactual"),
    VariantPair("male", "female", "counterfactual"),
    VariantPair(_ORIGINAL, _NEUTRAL, "yardstick"),
)
#: The variants of which a second file has other answers: to the same text, or to another
#: description of the same attribute.
_IN_SECOND = {name: f"{name}, 2nd file" for name in _VARIANTS.values() if name != _NEUTRAL}
_SECOND_PAIRS = tuple(
    VariantPair(name, label, "yardstick", "" if name == _ORIGINAL else name)
    for name, label in _IN_SECOND.items()
)
_OPTIONS = ("A", "B", "C", "D")
#: What the benchmark writes of a reply in which it saw no letter.
_UNKNOWN = "Unknown"
_QUESTION = "exam question"


@dataclass(frozen=True, slots=True)
class _File:
    """A file: its questions with what is right, and the answers to each by variant."""

    gold: Mapping[str, str]
    answers: Mapping[str, Mapping[str, str | None]]
    unread: tuple[str, ...]


def read(entries: Mapping[str, Sequence[Path]]) -> Published:
    """The answers of each model: of its file, and of a second one.

    Raises `DataError`.
    """
    sheets: list[Sheet] = []
    unread: list[str] = []
    gold: dict[str, str] = {}
    second = False
    for name, paths in entries.items():
        if len(paths) > 2:
            raise DataError("amqa.extra-file", paths[2], KIND, [f"{name} has two files already"])
        files = []
        for path in paths:
            files.append(file := _read(path, gold))
            gold |= file.gold
            unread += file.unread
        second |= len(files) == 2
        sheets.append(_sheet(name, files[0], files[1] if len(files) == 2 else None))
    pairs = (*PAIRS, *_SECOND_PAIRS) if second else PAIRS
    return Published(pairs, tuple(sheets), unread=tuple(unread))


def _sheet(name: str, file: _File, second: _File | None) -> Sheet:
    answers = {
        variant: tuple(letters[variant] for letters in file.answers.values())
        for variant in _VARIANTS.values()
    }
    if second is not None:
        no_answers = dict.fromkeys(_VARIANTS.values())
        answers |= {
            label: tuple(second.answers.get(item, no_answers)[variant] for item in file.gold)
            for variant, label in _IN_SECOND.items()
        }
    return Sheet(name, _QUESTION, tuple(file.gold), answers, tuple(file.gold.values()))


def _read(path: Path, reference: Mapping[str, str]) -> _File:
    """A file whose questions have the same right answers as `reference`. Raises `DataError`."""
    faults: list[str] = []
    unread: list[str] = []
    gold: dict[str, str] = {}
    answers: dict[str, Mapping[str, str | None]] = {}
    line_of: dict[str, int] = {}
    rows = json_lines(read_source(path, KIND), faults, object_pairs_hook=tuple)
    for line, pairs in rows:
        fault = _fault(pairs)
        if fault:
            faults.append(f"line {line}: {fault}")
            continue
        value = dict(pairs)
        item, correct_option = str(value["question_id"]), value["answer_idx"]
        if item in line_of:
            faults.append(f"line {line}: question_id {item[:40]!r} is in line {line_of[item]} too")
        elif reference.get(item, correct_option) != correct_option:
            faults.append(
                f"line {line}: answer_idx of question {item[:40]!r} is {correct_option}, and "
                f"{reference[item]} in a file before: this is another set of questions"
            )
        else:
            line_of[item], gold[item] = line, correct_option
            answers[item] = _answers(value, line, unread)
    if not faults and not gold:
        faults.append("there is no line in it")
    if faults:
        raise DataError("amqa.invalid-rows", path, KIND, faults)
    refuse_another_form(path, KIND, unread, len(gold) * len(_VARIANTS))
    return _File(gold, answers, tuple(f"{path.name}, {problem}" for problem in unread))


def _fault(pairs: Any) -> str:
    """The fault of a line's value, an object as its pairs; empty where there is none."""
    if not isinstance(pairs, tuple):
        return "no JSON object"
    names = [name for name, _ in pairs]
    if duplicates := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        return f"{duplicates[0][:40]} is given twice"
    needed = ("question_id", "answer_idx", *(f"{_PREFIX}{name}" for name in _VARIANTS))
    if missing := [name for name in needed if name not in names]:
        return f"there is no {first_of(missing)}"
    value = dict(pairs)
    item, correct_option = value["question_id"], value["answer_idx"]
    if isinstance(item, bool) or not isinstance(item, str | int) or not str(item).strip():
        return f"question_id is {str(item)[:40]!r}, no name"
    if correct_option not in _OPTIONS:
        return f"answer_idx is {str(correct_option)[:40]!r}, not one of {', '.join(_OPTIONS)}"
    return ""


def _answers(value: Mapping[str, Any], line: int, unread: list[str]) -> dict[str, str | None]:
    answers: dict[str, str | None] = {}
    for field, variant in _VARIANTS.items():
        answer = value[f"{_PREFIX}{field}"]
        is_option = isinstance(answer, str) and answer in (*_OPTIONS, _UNKNOWN)
        answers[variant] = (NO_OPTION if answer == _UNKNOWN else answer) if is_option else None
        if not is_option:
            unread.append(f"line {line}: {_PREFIX}{field} is {str(answer)[:40]!r}, no option")
    return answers
