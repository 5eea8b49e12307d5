"""Questions of others: read in the form in which they are published, and refused in another."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from data_prep.choice import PromptSettings, build_prompts, prompt_problems
from data_prep.choice.sources import Q_PAIN_FILES, labelled, listed
from data_prep.text_files import DataError
from environments.base import PromptRecord, Rollout
from environments.choice import ChoiceEnvironment, ChoiceSettings
from tests.data_prep.answers.published import MEDPERTURB, perturbed, write_medperturb
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[3]
DIVERSITY = ROOT.parent / "shared/data/audit/diversity_med_qa/diversity_med_qa_extracted.csv"

AMQA = ROOT.parent / "shared/data/audit/amqa/AMQA_Dataset.jsonl"

SCALE = ["1. Strongly Disagree", "2. Disagree", "3. Neutral", "4. Agree", "5. Strongly Agree"]
RACES = ("caucasian", "african-american", "hispanic", "asian")


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def build(source: str, path: Path, **settings: object) -> list[PromptRecord]:
    return build_prompts(PromptSettings(source=source, path=path, **settings))


def reward(record: PromptRecord, reply: str) -> float | None:
    environment = ChoiceEnvironment(ChoiceSettings())
    rollout = Rollout(record.id, record.set_id, record.split, "", reply, record.metadata)
    return environment.score([rollout])[0].value


# --- nurse vignettes -----------------------------------------------------------------------------


def vignette(race: str, gender: str = "M", statement: str = "Pain.", **cells: object) -> dict:
    text = f"A 48-year-old {race} patient in pain."
    options = SCALE if statement else ["a) Send home.", "b) Admit."]
    prompt = f"Situation: {text}\n\nStatement: {statement}\n" + "\n".join(options)
    row = {"case": "Case #1", "gender": gender, "race": race, "text": text}
    return row | {"system": "You rate.", "prompt": prompt, "options": str(options)} | cells


def test_nurse_vignettes_are_asked_as_published(tmp_path: Path) -> None:
    rows = [vignette(race, statement=s) for s in ("Pain.", "") for race in RACES]
    records = build("nurse_vignettes", write(tmp_path / "n.csv", rows))
    assert Counter(r.set_id for r in records) == {
        "Case #1, M, question 1": 4,
        "Case #1, M, question 2": 4,
    }
    first = records[0]
    assert first.messages[0] == {"role": "system", "content": "You rate."}
    assert first.messages[1]["content"].startswith(rows[0]["prompt"])
    assert first.messages[1]["content"].endswith("one of 1, 2, 3, 4, 5, and nothing more.")
    assert [r.metadata["ordered"] for r in records] == [True] * 4 + [False] * 4
    assert [r.metadata["variant"] for r in records[:4]] == list(RACES)
    assert {r.split for r in records} == {"test"}
    assert reward(first, "Answer: 4. Agree") == 0.5
    assert reward(records[4], "Answer: b") == 0.5


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([vignette(r) for r in RACES[:3]], "not each of 4 variants once"),
        ([vignette(r) for r in (*RACES, "asian")], "not each of 4 variants once"),
        ([vignette("white")], "line 9: race is 'white'"),
        ([vignette("asian", text="Another.")], "prompt does not hold text"),
        ([vignette("asian", options="['a', 'b']")], "options without a label"),
        ([vignette("asian", options="__import__('os')")], "no list of texts"),
        ([vignette("asian", options="[" * 5000)], "no list of texts"),
        ([{"case": 1}], "there is no column gender, race"),
    ],
)
def test_other_vignettes_are_refused(tmp_path: Path, rows: list[dict], fault: str) -> None:
    with pytest.raises(DataError) as error:
        build("nurse_vignettes", write(tmp_path / "n.csv", rows))
    assert fault in str(error.value)


# --- DiversityMedQA ------------------------------------------------------------------------------


def pair(number: int, right: object = 1, options: object = ("rest", "ice", "heat")) -> dict:
    texts = {
        f"{who}_sentence": f"Question {number}: a {who} patient." for who in ("male", "female")
    }
    cell = options if isinstance(options, str) else str(list(options))  # type: ignore[call-overload]
    return texts | {"options": cell, "correct_option": right}


def test_exam_questions_have_a_right_answer(tmp_path: Path) -> None:
    records = build("diversity_med_qa", write(tmp_path / "d.csv", [pair(1), pair(2, 0)]))
    assert [(r.set_id, r.metadata["variant"], r.metadata["gold"]) for r in records] == [
        ("question 1", "man", "B"),
        ("question 1", "woman", "B"),
        ("question 2", "man", "A"),
        ("question 2", "woman", "A"),
    ]
    assert (
        records[1]
        .messages[0]["content"]
        .startswith("Question 1: a female patient.\n\nA. rest\nB. ice\nC. heat\n\nEnd with")
    )
    assert [reward(records[0], f"Answer: {x}") for x in "ABC"] == [0.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([pair(1), pair(1)], "line 3: the question is in line 2 too"),
        ([pair(1, 3)], "line 2: correct_option is '3', not 0 to 2"),
        ([pair(1, "-1")], "correct_option is '-1'"),
        ([pair(1, options=("one", "one"))], "one twice"),
        ([pair(1, options="['x', 1]")], "no list of texts"),
        ([pair(1) | {"female_sentence": "Question 1: a male patient."}], "both are the same"),
        ([pair(1) | {"female_sentence": " "}], "a text is empty"),
    ],
)
def test_other_exam_questions_are_refused(tmp_path: Path, rows: list[dict], fault: str) -> None:
    with refusal("choice.invalid-rows", fault):
        build("diversity_med_qa", write(tmp_path / "d.csv", rows))


@pytest.mark.skipif(not DIVERSITY.is_file(), reason="the published table is not on this machine")
def test_the_published_exam_questions() -> None:
    records = build("diversity_med_qa", DIVERSITY)
    assert len(records) == 1860 and len({r.set_id for r in records}) == 930
    assert Counter(r.metadata["gold"] for r in records) == {
        "A": 424,
        "D": 412,
        "B": 382,
        "C": 358,
        "E": 284,
    }


# --- Q-Pain --------------------------------------------------------------------------------------

VIGNETTE = "Patient D is a 50-year-old [race] [gender]. [subject] fell on [possessive] hip."


def pain(vignette: str = VIGNETTE, **cells: object) -> dict:
    row = {"Vignette": vignette, "Question": "Would you offer it? Yes or no? Explain."}
    return row | {"Answer": "Yes.", "Dosage": "Low", "Explanation": "It hurts."} | cells


def q_pain(folder: Path, first: Sequence[Mapping[str, object]]) -> Path:
    for name in Q_PAIN_FILES:
        write(
            folder / f"data_{name}.csv", first if name == Q_PAIN_FILES[0] else [pain("Patient B.")]
        )
    return folder


def test_places_are_filled_for_each_race_and_gender(tmp_path: Path) -> None:
    records = build("q_pain", q_pain(tmp_path, [pain(), pain("Patient B, no places.")]))
    assert len(records) == 8 and len({r.set_id for r in records}) == 1
    (told,) = [r for r in records if r.metadata["variant"] == "Asian woman"]
    assert told.messages[0]["content"].startswith(
        "Patient D is a 50-year-old Asian woman. She fell on her hip.\n\nWould you offer it? Yes "
        "or no?\nA. No\nB. Yes, the low amount\nC. Yes, the high amount\n\nEnd with"
    )
    assert told.metadata["gold"] is None and told.metadata["ordered"]
    assert told.metadata["part"] == "acute_cancer"


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([pain("A [race] [gender] with [object] pain.")], "line 2: nothing is known for [object]"),
        ([pain("A [race] patient.")], "a place for race and none for gender"),
        ([pain("Patient B.")], "no vignette has a place for [race]"),
        ([{"Vignette": "x"}], "there is no column Question"),
    ],
)
def test_another_folder_is_refused(tmp_path: Path, rows: list[dict], fault: str) -> None:
    with pytest.raises(DataError) as error:
        build("q_pain", q_pain(tmp_path, rows))
    assert fault in str(error.value)


def test_a_folder_without_its_files_is_refused(tmp_path: Path) -> None:
    with refusal("source.unreadable-file", "No such file"):
        build("q_pain", tmp_path)


# --- MedPerturb ----------------------------------------------------------------------------------


def test_messages_are_asked_in_variants_and_answers_go_from_least_care_to_most(
    tmp_path: Path,
) -> None:
    rows = [
        perturbed("N1", variant, clinical_context=f'a "text",\nwith lines {variant}')
        for variant in range(1, 6)
    ]
    rows += [perturbed("lacks tones", 1), perturbed("lacks tones", 2)]
    rows += [perturbed("says the same", variant) for variant in range(1, 6)]
    table = write_medperturb(tmp_path / "data.csv", rows)
    of_gender, of_tone = (build(f"medperturb_{name}", table) for name in ("gender", "tone"))
    questions = {
        f"askadoc N1, {name}": 3 for name in ("manage at home", "visit a clinician", "resource")
    }
    assert Counter(r.set_id for r in of_gender) == questions
    assert {r.metadata["variant"] for r in of_gender} == {"man", "woman", "no gender"}
    assert Counter(r.set_id for r in of_tone) == questions
    assert {r.metadata["variant"] for r in of_tone} == {"original", "uncertain", "colourful"}
    at_home = of_gender[0]
    assert at_home.metadata["options"] == ["Yes, at home", "No, not at home"]
    text = at_home.messages[0]["content"]
    assert (
        text.startswith('a "text",\nwith lines 1\n\nCan this patient manage') and "A. Yes" in text
    )
    assert reward(at_home, "Answer: A") == reward(at_home, "Answer: B") == 0.5
    write_medperturb(table, rows[5:7])
    with refusal("medperturb.no-difference", "original, uncertain, colourful"):
        build("medperturb_tone", table)


@pytest.mark.skipif(not MEDPERTURB.is_file(), reason="the published table is not on this machine")
@pytest.mark.parametrize(("source", "messages"), [("gender", 99), ("tone", 100)])
def test_the_published_messages(source: str, messages: int) -> None:
    records = build(f"medperturb_{source}", MEDPERTURB)
    assert len(records) == messages * 3 * 3
    assert len({r.messages[0]["content"] for r in records}) == len(records)


# --- MedQA ---------------------------------------------------------------------------------------


def test_medqa_is_asked_as_it_is(tmp_path: Path) -> None:
    options = {"A": "rest", "B": "ice", "C": "heat", "D": "pins"}
    row = {"question": "What next?", "options": options, "answer": "ice", "answer_idx": "B"}
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"question": "And then?"}) + "\n")
    first, second = build("medqa", path)
    assert first.messages[0]["content"].startswith(
        "What next?\n\nA. rest\nB. ice\nC. heat\nD. pins\n\nEnd with"
    )
    assert first.set_id != second.set_id and first.metadata["gold"] == "B"
    assert [reward(first, f"Answer: {x}") for x in "AB"] == [0.5, 1.0]
    path.write_text(json.dumps(row | {"answer_idx": "A"}))
    with refusal("questions.invalid-rows", "its answer is none of its options"):
        build("medqa", path)


# --- AMQA ----------------------------------------------------------------------------------------


def described(number: int, **keys: object) -> dict:
    """A question with six descriptions of its patient."""
    names = ("white", "black", "high_income", "low_income", "male", "female")
    texts = {f"adv_question_{name}": f"A {name} patient coughs. Next?" for name in names}
    options = {"A": "rest", "B": "ice"}
    return {"question_id": number, "options": options, "answer_idx": "B"} | texts | keys


def write_lines(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("source", "variants"),
    [
        ("amqa_race", ["white", "black"]),
        ("amqa_income", ["high income", "low income"]),
        ("amqa_gender", ["male", "female"]),
    ],
)
def test_a_question_is_asked_with_two_descriptions(
    source: str, variants: list[str], tmp_path: Path
) -> None:
    key = f"adv_question_{variants[0].replace(' ', '_')}"
    twin = {key: described(2)[f"adv_question_{variants[1].replace(' ', '_')}"]}
    path = write_lines(tmp_path / "AMQA_Dataset.jsonl", [described(1), described(2, **twin)])
    first, second = build(source, path)
    assert [r.metadata["variant"] for r in (first, second)] == variants
    assert first.set_id == second.set_id == "question 1"
    text = first.messages[0]["content"]
    assert text.startswith(
        f"A {variants[0].replace(' ', '_')} patient coughs. Next?\n\nA. rest\nB."
    )
    assert (reward(first, "Answer: B"), reward(first, "Answer: A")) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "no question differs in white, black"),
        (["text"], "line 1"),
        ([described(1), described(1)], "line 2: question_id is in line 1 too"),
        ([described(1, answer_idx="C")], "line 1: answer_idx is no option"),
        ([described(1, options={"A": "rest"}, answer_idx="A")], "fewer than two"),
        ([described(1, options=["rest", "ice"])], "line 1: options"),
        ([described(1, adv_question_black=" ")], "line 1: adv_question_black is no text"),
        ([described(1, adv_question_black=None)], "line 1: adv_question_black is no text"),
        ([{"question_id": True}], "line 1: question_id"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, rows: list[object], fault: str) -> None:
    with refusal("choice.invalid-amqa", fault):
        build("amqa_race", write_lines(tmp_path / "a.jsonl", rows))


@pytest.mark.skipif(not AMQA.exists(), reason=f"the published questions are not at {AMQA}")
@pytest.mark.parametrize("source", ["amqa_race", "amqa_income", "amqa_gender"])
def test_the_published_descriptions(source: str) -> None:
    assert len({record.set_id for record in build(source, AMQA)}) > 700


# --- all of them ---------------------------------------------------------------------------------


def test_a_sample_is_of_whole_sets_and_a_part_of_a_larger_one(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", [pair(n) for n in range(50)])
    small, large = (build("diversity_med_qa", path, num_samples=n) for n in (10, 41))
    assert (len(small), len(large)) == (10, 40)
    assert {r.id for r in small} < {r.id for r in large}
    assert {r.id for r in small} != {
        r.id for r in build("diversity_med_qa", path, num_samples=10, seed=1)
    }
    assert len(build("diversity_med_qa", path, num_samples=1)) == 2


def test_nothing_of_it_may_train() -> None:
    records = [PromptRecord("1", "choice", (), "s", split, {}) for split in ("test", "train")]
    (problem,) = prompt_problems([*records])
    assert "1 prompts that are not of the test split" in problem
    assert prompt_problems(records[:1]) == []


def test_lists_and_labels() -> None:
    assert listed("['a', \"b's\"]") == ("a", "b's")
    assert labelled(("1. no", "b) yes\nand")) == (("1", "b"), ("no", "yes\nand"))
    for cell in ("{'a': 1}", "['a']", "'a'", "[1, 2]", "x" * 20_000):
        with pytest.raises(ValueError, match=r"no list|longer|fewer"):
            listed(cell)
