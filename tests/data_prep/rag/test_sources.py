"""MedQA in the forms in which it is published."""

import json
from pathlib import Path

import pytest

from data_prep.rag.sources import Question, read_questions
from data_prep.text_files import DataError
from tests.refusals import refusal

FOUR = {"A": "one", "B": "two", "C": "three", "D": "four"}
FIVE = FOUR | {"E": "five"}
DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "medqa"


def row(**changes: object) -> dict[str, object]:
    return {"question": "Which?", "options": FOUR, "answer": "three", "answer_idx": "C"} | changes


def write(path: Path, *rows: object, as_list: bool = False) -> Path:
    lines = json.dumps(rows) if as_list else "".join(f"{json.dumps(r)}\n" for r in rows)
    path.write_text(lines)
    return path


@pytest.mark.parametrize(
    "found",
    [
        row(),
        row(options=[{"key": k, "value": v} for k, v in FOUR.items()]),
        row(options=[f"{k}. {v}" for k, v in FOUR.items()], answer_idx=None),
        row(options=dict(reversed(FOUR.items())), meta_info="step1", metamap_phrases=[]),
        row(answer=None),
    ],
)
@pytest.mark.parametrize("as_list", [True, False])
def test_every_form_gives_the_same_question(
    tmp_path: Path, found: dict[str, object], as_list: bool
) -> None:
    path = write(tmp_path / "q.json", found, as_list=as_list)
    assert read_questions(path) == [Question("Which?", FOUR, "C")]


def test_five_options_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", row(options=FIVE))
    with refusal("questions.invalid-rows", "line 1: has five options"):
        read_questions(path)


@pytest.mark.parametrize("gold", FIVE)
def test_five_options_become_four_with_the_answer_among_them(tmp_path: Path, gold: str) -> None:
    path = write(tmp_path / "q.jsonl", row(options=FIVE, answer=FIVE[gold], answer_idx=gold))
    (found,) = read_questions(path, "drop_one")
    assert list(found.options) == ["A", "B", "C", "D"]
    assert found.options[found.gold] == FIVE[gold]
    kept = list(found.options.values())
    assert kept == [text for text in FIVE.values() if text in kept]
    assert read_questions(path, "drop_one") == [found]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([], "no JSON object"),
        (None, "no JSON object"),
        (row(question=" "), "has no question"),
        (row(options=None), "no options that can be read"),
        (row(options=["one", "two", "three", "four"]), "no options that can be read"),
        (row(options={"A": "one", "B": "one", "C": "three", "D": "x"}), "no options"),
        (row(options={"A": 1}), "no options"),
        (row(options={"A": "one", "B": "three"}, answer_idx="B"), "options A, B, not A, B, C, D"),
        (row(answer="nine", answer_idx=None), "its answer is none"),
        (row(answer_idx="B"), "its answer is none"),
        (row(answer=None, answer_idx="E"), "its answer is none"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, wrong: object, reason: str) -> None:
    path = write(tmp_path / "q.jsonl", row(), wrong)
    with refusal("questions.invalid-rows", reason):
        read_questions(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no question"),
        (b"\xff", "UTF-8"),
        (b"[{", "JSON"),
        (b"[" * 10_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "q.json").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_questions(tmp_path / "q.json")
    with refusal("source.unreadable-file"):
        read_questions(tmp_path / "none.json")


def test_a_question_that_stands_twice_is_one(tmp_path: Path) -> None:
    assert len(read_questions(write(tmp_path / "q.jsonl", row(), row()))) == 1


@pytest.fixture
def medqa() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"MedQA's files are not in {DATA}")
    return DATA


def test_the_published_files(medqa: Path) -> None:
    four = read_questions(medqa / "medqa_us_4opt_train_subset_1030.json")
    assert len(four) == 1030
    assert all(list(question.options) == list("ABCD") for question in four)
    five = medqa / "medqa_us_5opt_dev_1272.json"
    with refusal("questions.invalid-rows", "has five options"):
        read_questions(five)
    mapped = read_questions(five, "drop_one")
    assert 1260 <= len(mapped) <= 1272
    shares = [sum(q.gold == letter for q in mapped) / len(mapped) for letter in "ABCD"]
    assert min(shares) > 0.15
