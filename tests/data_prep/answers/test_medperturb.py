"""MedPerturb's table: who is the man, who reads what, and what is refused."""

import pytest

from data_prep.answers.medperturb import read
from data_prep.text_files import DataError
from tests.data_prep.answers.published import MEDPERTURB, perturbed, write_medperturb
from tests.refusals import refusal


def sheet_of(published, answerer="GPT-4", question="visit a clinician"):
    (sheet,) = [s for s in published.sheets if (s.answerer, s.question) == (answerer, question)]
    return sheet


def variants(item, gender="M", **cells):
    return [perturbed(item, n, gender, **cells) for n in range(1, 6)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.csv"


def test_the_man_is_the_original_or_the_swapped_text(path):
    """Whoever the patient was at first: a pair of original and swapped has both directions."""
    first, second = variants("1", "M"), variants("2", "F")
    first[0]["GPT4_VISIT"] = 1
    second[0]["GPT4_VISIT"] = 1
    sheet = sheet_of(read({"x": [write_medperturb(path, [*first, *second])]}))
    assert sheet.items == ("askadoc 1", "askadoc 2")
    assert sheet.answers["original"] == ("yes", "yes")
    assert sheet.answers["man"] == ("yes", "no")
    assert sheet.answers["woman"] == ("no", "yes")
    assert sheet.counted == "yes" and sheet.gold == ()


def test_each_answer_is_of_its_model_and_question(path):
    rows = variants("1")
    rows[3] |= {"LLAMA3-70_RESOURCE": 1}
    published = read({"x": [write_medperturb(path, rows)]})
    yes = [
        (s.answerer, s.question, variant)
        for s in published.sheets
        for variant, answers in s.answers.items()
        if "yes" in answers
    ]
    assert yes == [("Llama-3 70B", "resource", "uncertain")]
    assert len(published.sheets) == 12


def test_readers_are_kept_apart_from_models(path):
    rows = variants("1")
    rows[1] |= {"MANAGE_1": 1, "MANAGE_3": 1}
    published = read({"x": [write_medperturb(path, rows)]})
    (readers,) = [r for r in published.readers if r.question == "manage at home"]
    assert readers.answers["swapped"] == (("yes", "no", "yes"),)
    assert readers.answers["original"] == (("no", "no", "no"),)


def test_an_answer_that_is_neither_is_missing_and_counted(path):
    rows = variants("1")
    rows[0]["GPT4_VISIT"] = "maybe"
    published = read({"x": [write_medperturb(path, rows)]})
    assert sheet_of(published).answers["original"] == (None,)
    assert sheet_of(published).answers["man"] == (None,)
    assert published.unread == ("line 3: GPT4_VISIT is 'maybe', not 0 or 1",)


def test_a_variant_that_is_not_there_is_missing_and_no_failure(path):
    published = read({"x": [write_medperturb(path, variants("1")[:3])]})
    assert sheet_of(published).answers["colourful"] == (None,)
    assert published.unread == ()


def test_texts_that_differ_in_form_are_left_out(path):
    """In them a swapped gender is a conversation: one context stands there twice, besides."""
    talks = [perturbed("9", 2, part="conversational")] * 2
    published = read({"x": [write_medperturb(path, [*variants("1"), *talks])]})
    assert sheet_of(published).items == ("askadoc 1",)
    assert published.notes == (
        "2 rows of the part conversational, whose texts differ in form, are not used.",
    )


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([*variants("1"), perturbed("1", 2)], "line 13: askadoc 1, variant 2, is in line 5 too"),
        ([perturbed("1", 6)], "line 3: dataset_id is '6', not 1 to 5"),
        ([perturbed("1", 1, part="mine")], "line 3: dataset is 'mine'"),
        ([perturbed("1", 1, "X")], "line 3: original_patient_gender is 'X', not M or F"),
        ([perturbed("1", 1), perturbed("1", 2, "F")], "line 5: askadoc 1 has another"),
        ([perturbed("1", 1, part="conversational")], "there is no row of askadoc or oncqa"),
        ([{"question": 1}], "line 1: there is no column dataset, dataset_id"),
    ],
)
def test_what_is_no_such_table_is_refused(path, rows, fault):
    with pytest.raises(DataError) as error:
        read({"x": [write_medperturb(path, rows)]})
    assert fault in str(error.value)


def test_a_table_of_other_answers_is_refused(path):
    rows = [perturbed("1", 1, **{f"{m}_VISIT": "yes" for m in ("GPT4", "LLAMA3", "PALMYRA__MED")})]
    with refusal("answers.other-form", "answers cannot be read"):
        read({"x": [write_medperturb(path, rows)]})


def test_two_files_are_refused(path):
    write_medperturb(path, variants("1"))
    with refusal("medperturb.extra-file"):
        read({"x": [path], "y": [path]})


@pytest.mark.skipif(not MEDPERTURB.is_file(), reason="the published table is not on this machine")
def test_the_published_table():
    published = read({"x": [MEDPERTURB]})
    assert published.unread == ()
    assert {len(sheet.items) for sheet in published.sheets} == {100}
    assert all(None not in answers for s in published.sheets for answers in s.answers.values())
    palmyra = sheet_of(published, "Palmyra-Med", "manage at home").answers
    flips = sum(a != b for a, b in zip(palmyra["man"], palmyra["woman"], strict=True))
    assert flips == 44
