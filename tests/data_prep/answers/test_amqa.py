"""AMQA's files of answers: read as they are, and refused where they are something else."""

import json

import pytest

from data_prep.answers.amqa import read
from data_prep.answers.sheets import NO_OPTION
from tests.data_prep.answers.published import FIELDS, amqa_line, write_amqa
from tests.refusals import refusal


@pytest.fixture
def path(tmp_path):
    return tmp_path / "AMQA_Benchmark_Answer_x_no_cot.jsonl"


def test_a_sheet_for_each_model(path, tmp_path):
    write_amqa(path, [amqa_line("0", "D", "D", black="C"), amqa_line("1", "B", "A")])
    other = write_amqa(tmp_path / "o.jsonl", [amqa_line("1", "B", "B")])
    published = read({"x": [path], "y": [other]})
    x, y = published.sheets
    assert (x.answerer, x.items, x.gold) == ("x", ("0", "1"), ("D", "B"))
    assert x.answers["white"] == ("D", "A") and x.answers["black"] == ("C", "A")
    assert (y.items, y.answers["original"]) == (("1",), ("B",))
    roles = {(p.first, p.second): p.role for p in published.pairs}
    assert roles["white", "black"] == "counterfactual"
    assert roles["original", "no attributes"] == "yardstick"


def test_unknown_is_an_answer_that_names_no_option(path):
    """The benchmark's own word for a reply without a letter; it is wrong, and no failure."""
    write_amqa(path, [amqa_line("0", white="Unknown")])
    published = read({"x": [path]})
    assert published.sheets[0].answers["white"] == (NO_OPTION,)
    assert published.unread == ()


def test_what_is_no_option_is_missing_and_counted(path):
    lines = [amqa_line(str(n)) for n in range(9)]
    bad = [amqa_line("9", white="E", black=None, male=["A"]), amqa_line("10", female="a")]
    write_amqa(path, [*lines, *bad])
    published = read({"x": [path]})
    sheet = published.sheets[0]
    assert [sheet.answers[v][9] for v in ("white", "black", "male", "female")] == [
        None,
        None,
        None,
        "A",
    ]
    assert sheet.answers["female"][10] is None
    assert len(published.unread) == 4
    assert published.unread[0] == (
        f"{path.name}, line 10: test_model_answer_white is 'E', no option"
    )


def test_a_file_of_another_vocabulary_is_refused(path):
    write_amqa(path, [amqa_line(str(n), every="(A)") for n in range(4)])
    with refusal("answers.other-form", "32 of 32 answers cannot be read"):
        read({"x": [path]})


def test_a_second_file_is_a_yardstick(path, tmp_path):
    """Its question as it is was asked again; its descriptions measure pairs of their attribute."""
    write_amqa(path, [amqa_line("0"), amqa_line("1")])
    second = write_amqa(tmp_path / "s.jsonl", [amqa_line("1", original_question="B", black="C")])
    published = read({"x": [path, second]})
    answers = published.sheets[0].answers
    assert answers["original, 2nd file"] == (None, "B")
    assert answers["black, 2nd file"] == (None, "C")
    pairs = {(p.first, p.second): p for p in published.pairs}
    races, incomes = pairs["white", "black"], pairs["high income", "low income"]
    again, described = (pairs[v, f"{v}, 2nd file"] for v in ("original", "black"))
    assert again.measures(races) and again.measures(incomes)
    assert described.measures(races) and not described.measures(incomes)
    assert not races.measures(races)


LINE = amqa_line("0")


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], "there is no line in it"),
        ([LINE, LINE], "line 2: question_id '0' is in line 1 too"),
        ([{"question_type": "white_question", "accuracy": 0.9}], "line 1: there is no question_id"),
        ([{k: v for k, v in LINE.items() if "low" not in k}], "no test_model_answer_low_income"),
        ([LINE, [LINE]], "line 2: no JSON object"),
        ([LINE | {"answer_idx": "E"}], "line 1: answer_idx is 'E', not one of A, B, C, D"),
        ([LINE | {"answer_idx": {"a": 1}}], "line 1: answer_idx is "),
        ([LINE | {"question_id": True}], "line 1: question_id is 'True', no name"),
        ([LINE | {"question_id": {"x": 1}}], "line 1: question_id is "),
    ],
)
def test_what_is_no_such_file_is_refused(path, lines, fault):
    write_amqa(path, lines)
    with refusal("amqa.invalid-rows", fault, path):
        read({"x": [path]})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("question,answer\n1,A\n", "line 1: not valid JSON"),
        (json.dumps(LINE)[:-1] + ', "answer_idx": "B"}', "line 1: answer_idx is given twice"),
        ("[" * 100_000, "line 1: nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused(path, text, fault):
    path.write_text(text)
    with refusal("amqa.invalid-rows", fault):
        read({"x": [path]})


def test_another_set_of_questions_is_refused(path, tmp_path):
    write_amqa(path, [amqa_line("0", "A")])
    other = write_amqa(tmp_path / "o.jsonl", [amqa_line("0", "B")])
    for entries in ({"x": [path], "y": [other]}, {"x": [path, other]}):
        with refusal("amqa.invalid-rows", "answer_idx of question '0' is B, and A in a file"):
            read(entries)


def test_more_than_two_files_of_a_model_are_refused(path):
    write_amqa(path, [LINE])
    with refusal("amqa.extra-file", "x"):
        read({"x": [path, path, path]})


def test_every_field_is_of_a_variant(path):
    write_amqa(path, [LINE])
    assert len(read({"x": [path]}).sheets[0].answers) == len(FIELDS)
