"""MedQA in the forms in which it is published."""

import json

import pytest

from data_prep.rag.sources import Question, read_questions
from tests.refusals import refusal

FOUR = {"A": "one", "B": "two", "C": "three", "D": "four"}


def row(**changes):
    return {"question": "Which?", "options": FOUR, "answer": "three", "answer_idx": "C"} | changes


def write(path, *rows, as_list=False):
    lines = json.dumps(rows) if as_list else "".join(f"{json.dumps(r)}\n" for r in rows)
    path.write_text(lines)
    return path


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize(
    "found",
    [
        row(options=dict(reversed(FOUR.items())), meta_info="step1"),
        row(answer_idx=None),
        row(answer=None),
    ],
)
def test_every_form_gives_the_same_question(tmp_path, found, as_list):
    path = write(tmp_path / "q.json", found, found, as_list=as_list)
    assert read_questions(path) == [Question("Which?", FOUR, "C")]  # twice is once


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([], "dictionary"),
        (row(question=" "), "question"),
        (row(options=None), "options"),
        (row(options=["A. one", "B. two", "C. three", "D. four"]), "options"),
        (row(options={"A": "one", "B": "one", "C": "three", "D": "x"}), "options"),
        (row(options={"A": 1}), "options.A"),
        (row(options={"A": "one", "B": "three"}), "A, B"),
        (row(options=FOUR | {"E": "five"}), "A, B, C, D"),
        (row(answer="nine", answer_idx=None), "answer"),
        (row(answer_idx="B"), "answer"),
        (row(answer=None, answer_idx="E"), "answer"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, wrong, reason):
    path = write(tmp_path / "q.jsonl", row(), wrong)
    with refusal("questions.invalid-rows", "line 2", reason):
        read_questions(path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "questions.invalid-rows | no question"),
        (b"[{", "questions.invalid-rows"),
        (b"\xff", "source.other-encoding"),
        (None, "source.unreadable-file"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, code):
    if content is not None:
        (tmp_path / "q.json").write_bytes(content)
    with refusal(code):
        read_questions(tmp_path / "q.json")
