"""The data module of the retrieval task, from files to prompts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from data_prep import rag
from data_prep.faults import UnsuitablePromptsError
from data_prep.hooks import Tools
from data_prep.rag import invented as stones
from data_prep.rag.encoder import encoder_identity
from data_prep.rag.known import KnownAnswers
from data_prep.rag.local_model import imitated_replies
from data_prep.rag.plans import PlanCache
from data_prep.rag.prompts import questions_of
from data_prep.rag.sources import Question
from environments.base import PromptRecord
from environments.chat import quote
from environments.encoder import EncoderSettings, Vectors
from environments.rag_accuracy import RagEnvironment, RagSettings
from environments.rag_accuracy.corpus import Corpus, UnusableIndexError
from environments.rag_accuracy.reader import ExtractiveReader
from tests.data_prep.rag.test_plans import GOOD, Planner

NO_MODEL = "no model may be loaded"


def no_model(*_: object) -> None:
    raise AssertionError(NO_MODEL)


def tools(planner: Planner | None = None, **more: object) -> Tools:
    chat_model = (lambda _: planner) if planner else no_model
    return Tools(chat_model, no_model, print, **more)


def questions_file(path: Path, texts: list[str]) -> str:
    options = {"A": "one", "B": "two", "C": "three", "D": "four"}
    rows = [{"question": t, "options": options, "answer": "two", "answer_idx": "B"} for t in texts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def invented(tmp_path_factory: pytest.TempPathFactory) -> rag.PromptSettings:
    folder = tmp_path_factory.mktemp("invented") / "index"
    settings = rag.PromptSettings(num_samples=200, index=str(folder))
    rag.prepare(settings, tools())
    return settings


@pytest.fixture(scope="module")
def records(invented: rag.PromptSettings) -> list[PromptRecord]:
    return rag.build_prompts(invented)


@pytest.fixture
def medqa(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "books.jsonl").write_text(
        "".join(json.dumps({"id": f"{n}", "text": f"Passage {n}."}) + "\n" for n in range(9))
    )
    return {
        "questions": {
            "train": questions_file(tmp_path / "train.jsonl", [f"Train {n}?" for n in range(20)]),
            "test": questions_file(tmp_path / "test.jsonl", [f"Test {n}?" for n in range(5)]),
        },
        "corpus": str(tmp_path / "books.jsonl"),
        "index": str(tmp_path / "index"),
        "planner": {"model_name": "a/model"},
        "plans": str(tmp_path / "plans.jsonl"),
    }


def settings_of(medqa: dict[str, object], **more: object) -> rag.PromptSettings:
    return rag.PromptSettings.model_validate(medqa | more)


# --- the invented world -------------------------------------------------------------------------


def test_the_corpus_has_facts_and_distractors(invented: rag.PromptSettings) -> None:
    corpus = Corpus(Path(invented.index))
    ids = [corpus[n].id for n in range(len(corpus))]
    assert len(corpus) > 8_000
    assert len(set(ids)) == len(ids)
    assert sum(not name.startswith("note/") for name in ids) == 36 * 36 * 4


def test_every_question_has_its_one_fact(
    invented: rag.PromptSettings, records: list[PromptRecord]
) -> None:
    corpus = Corpus(Path(invented.index))
    text_of = {corpus[n].id: corpus[n].text for n in range(len(corpus))}
    for record in records:
        found = record.metadata
        (fact,) = found["relevant"]
        assert text_of[fact].endswith(f" is {found['options'][found['gold']]}.")
        assert all(mark in text_of[fact] for mark in found["marks"])
        assert len(set(found["options"].values())) == 4


def test_stones_of_one_kind_are_in_one_split(records: list[PromptRecord]) -> None:
    marks = [tuple(record.metadata["marks"]) for record in records]
    assert len(set(marks)) == len(records) == 200
    assert {r.split for r in records} == {"train", "validation", "test"}
    assert all(record.messages[1]["content"].count("\n") == 1 for record in records)


def test_prompts_depend_on_the_settings_alone(invented: rag.PromptSettings) -> None:
    assert rag.build_prompts(invented) == rag.build_prompts(invented)
    other = invented.model_copy(update={"seed": 1})
    assert rag.build_prompts(other) != rag.build_prompts(invented)


def test_the_letters_of_the_answers_are_even(invented: rag.PromptSettings) -> None:
    golds = [question.gold for _, question in stones.questions(0)]
    assert all(0.2 < golds.count(letter) / len(golds) < 0.3 for letter in "ABCD")


def test_no_held_out_stone_is_shown_to_the_local_model(records: list[PromptRecord]) -> None:
    settings = rag.LocalModelSettings(steps=100, batch_size=32)
    held_out = {tuple(r.metadata["marks"]) for r in records if r.split != "train"}
    shown = imitated_replies(records, settings)
    assert len(shown) == 3_200
    for record, _ in shown:
        marks = record.metadata["question"].split("Marks: ")[1].split(", and no")[0]
        assert tuple(marks.split(", ")) not in held_out
    assert shown == imitated_replies(records, settings)


def test_the_local_model_refuses_other_questions(medqa: dict[str, object]) -> None:
    rag.prepare(settings_of(medqa), tools(Planner()))
    with pytest.raises(UnsuitablePromptsError, match="invented stones"):
        imitated_replies(rag.build_prompts(settings_of(medqa)), rag.LocalModelSettings())


def test_an_invented_index_that_is_stale_is_made_anew(tmp_path: Path) -> None:
    settings = rag.PromptSettings(num_samples=60, index=str(tmp_path / "invented-0"))
    rag.prepare(settings, tools())
    before = Corpus(tmp_path / "invented-0").manifest
    file = tmp_path / "invented-0" / "passages.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    rag.prepare(settings, tools())
    assert Corpus(tmp_path / "invented-0").manifest == before
    rag.prepare(settings.model_copy(update={"seed": 1}), tools())
    assert Corpus(tmp_path / "invented-0").manifest.corpus != before.corpus


# --- questions from files -----------------------------------------------------------------------


def test_files_become_prompts_with_plans(medqa: dict[str, object]) -> None:
    settings = settings_of(medqa)
    rag.prepare(settings, tools(Planner()))
    records = rag.build_prompts(settings)
    assert [r.split for r in records].count("train") == 20
    assert [r.split for r in records].count("test") == 5
    user = records[0].messages[1]["content"]
    assert user.startswith("Train 0?\nPlan: Crystals point to it.")
    assert "four" not in user
    assert records[0].metadata["plan"]["best_guess"] == "ethylene glycol"


def test_without_a_planner_a_template_is_filled_in(
    medqa: dict[str, object], records: list[PromptRecord]
) -> None:
    settings = settings_of(medqa, planner={})
    rag.prepare(settings, tools())
    assert (
        " Search for: what sets this case apart."
        in rag.build_prompts(settings)[0].messages[1]["content"]
    )
    first, second = records[0].metadata["marks"]
    assert f"Search for: {first}, {second}, not who found it." in records[0].messages[1]["content"]


def test_options_are_shown_only_when_configured(medqa: dict[str, object]) -> None:
    settings = settings_of(medqa, show_options=True)
    letter = json.dumps(json.loads(GOOD) | {"best_guess": "B"})
    planner = Planner(lambda _: letter)
    rag.prepare(settings, tools(planner))
    record = rag.build_prompts(settings)[0]
    assert "B. two" in record.messages[1]["content"]
    assert record.metadata["options_shown"] is True
    assert f"B. {quote('two')}" in planner.asked[1]  # after the first question


def test_one_file_is_split(medqa: dict[str, object]) -> None:
    whole = {"all": medqa["questions"]["train"]}
    settings = settings_of(medqa, questions=whole, num_samples=10)
    planner = Planner()
    rag.prepare(settings, tools(planner))
    splits = [record.split for record in rag.build_prompts(settings)]
    assert sorted(set(splits)) == ["test", "train", "validation"]
    assert len(splits) == 10
    assert len(planner.asked) == 1 + 10  # the first question, and no plan for what is not used


def test_too_few_plans_are_refused_with_the_remedy(medqa: dict[str, object]) -> None:
    settings = settings_of(medqa)
    with pytest.raises(ValueError, match=r"25 of 25 questions have no plan: --planner-only"):
        rag.build_prompts(settings)
    rag.prepare(settings, tools(Planner(lambda text: None if quote("Train 7?") in text else GOOD)))
    assert len(rag.build_prompts(settings)) == 24


def test_a_dry_run_asks_no_model(medqa: dict[str, object]) -> None:
    rag.prepare(settings_of(medqa, known_share=0.5), tools(dry_run=True))
    assert not Path(str(medqa["plans"])).exists()


def test_without_corpus_and_index_there_is_a_clear_error(medqa: dict[str, object]) -> None:
    with pytest.raises(UnusableIndexError, match="there is no index"):
        rag.prepare(settings_of(medqa, corpus=""), tools())


def test_questions_answered_without_retrieval_can_be_left_out(medqa: dict[str, object]) -> None:
    answers = {f"Train {n}?": "B" if n < 8 else "A" for n in range(20)}

    def answer(text: str) -> str:
        for question, letter in answers.items():
            if text.startswith(f"Question: {quote(question)}"):
                return json.dumps({"reasoning": "", "answer": letter})
        return GOOD

    model = Planner(answer)
    said: list[str] = []
    chosen = Tools(lambda _: model, no_model, said.append)
    generator = {"model_name": "a/generator"}
    sizes = {}
    for share in (1.0, 0.5, 0.0):
        settings = settings_of(medqa, generator=generator, known_share=share)
        rag.prepare(settings, chosen)
        sizes[share] = [record.split for record in rag.build_prompts(settings)].count("train")
    assert sizes == {1.0: 20, 0.5: 16, 0.0: 12}
    assert any("8 of 20 training questions are answered without retrieval" in s for s in said)
    assert sum(text.startswith("Question: ") for text in model.asked) == 20  # asked once


@pytest.mark.parametrize(
    "questions",
    [{"train": "x"}, {"all": "x", "test": "y"}, {"train": "x", "test": "y", "dev": "z"}],
)
def test_settings_name_whole_splits(questions: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        rag.PromptSettings(questions=questions)


# --- the dry run --------------------------------------------------------------------------------


def test_a_dry_run_scores_canned_queries(
    invented: rag.PromptSettings, records: list[PromptRecord]
) -> None:
    environment = RagEnvironment(RagSettings(index=invented.index))
    rows = {
        what: (figure, note) for what, figure, note in rag.check(invented, records, environment)
    }
    assert rows["plans"] == ("200", "of 200 prompts")
    assert rows["canned step"][0] == "8 of 8 scored"
    assert "documents found" in rows["index"][1]


@pytest.mark.parametrize(
    ("settings", "row"),
    [({"retriever": "dense"}, "encoder"), ({"generator": {"model_name": "m"}}, "generator")],
)
def test_a_dry_run_loads_no_model(
    invented: rag.PromptSettings,
    records: list[PromptRecord],
    settings: dict[str, object],
    row: str,
) -> None:
    environment = RagEnvironment(RagSettings.model_validate({"index": invented.index} | settings))
    rows = rag.check(invented, records, environment)
    assert f"the {row} is not loaded in a dry run" in rows[-1]


def weights_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    return folder / "model.safetensors"


def test_a_planner_in_this_process_is_known_by_its_weights(
    tmp_path: Path, medqa: dict[str, object]
) -> None:
    weights = weights_in(tmp_path / "planner")
    settings = settings_of(medqa | {"planner": {"model_name": str(weights.parent)}})
    rag.prepare(settings, tools(Planner()))
    assert len(rag.build_prompts(settings)) == 25
    weights.write_bytes(b"second")
    with pytest.raises(ValueError, match="25 of 25 questions have no plan"):
        rag.build_prompts(settings)


def test_an_answer_that_no_generator_could_have_given_is_asked_for_again(tmp_path: Path) -> None:
    question = Question("Which?", {letter: letter.lower() for letter in "ABCD"}, "A")
    known = KnownAnswers(tmp_path / "known.jsonl", "reader")
    known.complete([question], ExtractiveReader())
    assert known.right([question]) == {question.id}
    (kept,) = [json.loads(line) for line in known._file.path.read_text().splitlines()]
    for value in (5, None, "E", ["A"], {}):
        known._file.append({kept["key"]: value})
        assert known.right([question]) == set()
        known.complete([question], ExtractiveReader())
        assert known.right([question]) == {question.id}


def test_a_generator_in_this_process_is_known_by_its_weights(
    tmp_path: Path, medqa: dict[str, object]
) -> None:
    """What the old weights answered without retrieval says nothing of the new ones."""
    weights = weights_in(tmp_path / "generator")
    right, wrong = (Planner(lambda _, letter=letter: _answer(letter)) for letter in "BA")
    settings = settings_of(
        medqa, planner={}, generator={"model_name": str(weights.parent)}, known_share=0.0
    )
    rag.prepare(settings, tools(right))
    assert not any(r.split == "train" for r in rag.build_prompts(settings))
    weights.write_bytes(b"second")
    assert sum(r.split == "train" for r in rag.build_prompts(settings)) == 20
    rag.prepare(settings, tools(wrong))
    assert sum(r.split == "train" for r in rag.build_prompts(settings)) == 20
    assert len(wrong.asked) == 20


def _answer(letter: str) -> str:
    return json.dumps({"reasoning": "", "answer": letter})


class Encoder:
    """Vectors that tell one copy of the weights from another."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.identity = encoder_identity(settings)

    def encode_passages(self, passages: list[tuple[str, str]]) -> Vectors:
        return np.ones((len(passages), 2), dtype=np.float32)


@pytest.mark.parametrize("dry_run", [False, True])
def test_vectors_of_old_weights_are_not_searched(
    tmp_path: Path, medqa: dict[str, object], dry_run: bool
) -> None:
    weights = weights_in(tmp_path / "encoder")
    names = dict.fromkeys(("query_model", "passage_model"), str(weights.parent))
    settings = settings_of(medqa, planner={}, retriever="dense", encoder=names)
    rag.prepare(settings, Tools(no_model, Encoder, print))
    rag.prepare(settings, Tools(no_model, Encoder, print, dry_run))
    weights.write_bytes(b"second")
    with pytest.raises(UnusableIndexError, match=r"was built with sha256:.*, not with sha256:"):
        rag.prepare(settings, Tools(no_model, Encoder, print, dry_run))


def test_a_dry_run_says_nothing_of_an_encoder_that_was_never_here(
    tmp_path: Path, medqa: dict[str, object]
) -> None:
    folder = str(weights_in(tmp_path / "encoder").parent)
    here = dict.fromkeys(("query_model", "passage_model"), folder)
    away = dict.fromkeys(here, "nobody/has-this")
    rag.prepare(
        settings_of(medqa, planner={}, retriever="dense", encoder=here),
        Tools(no_model, Encoder, print),
    )
    settings = settings_of(medqa, planner={}, retriever="dense", encoder=away)
    rag.prepare(settings, Tools(no_model, Encoder, print, dry_run=True))


def test_a_plan_cache_is_that_of_its_planner(medqa: dict[str, object]) -> None:
    settings = settings_of(medqa)
    rag.prepare(settings, tools(Planner()))
    questions = questions_of(rag.build_prompts(settings))
    path = Path(settings.plans)
    assert len(PlanCache(path, "a/model@unknown", with_options=False).read(questions)) == 25
    assert PlanCache(path, "another", with_options=False).read(questions) == {}


# --- whose folder the index is -------------------------------------------------------------------


@pytest.mark.parametrize("own", ["corpus", "questions"])
def test_what_is_ones_own_needs_a_folder_of_its_own(medqa: dict[str, object], own: str) -> None:
    only = {own: medqa[own], "index": "~/.cache/equipoise/rag/invented-0"}
    with pytest.raises(ValidationError, match="name it with env"):
        rag.PromptSettings.model_validate(only)


def test_the_invented_corpus_takes_no_folder_that_a_person_named(
    medqa: dict[str, object], tmp_path: Path
) -> None:
    rag.prepare(settings_of(medqa), tools(Planner()))
    before = (tmp_path / "index" / "manifest.json").read_bytes()
    with pytest.raises(UnusableIndexError, match="was built from another corpus"):
        rag.prepare(rag.PromptSettings(index=str(tmp_path / "index")), tools())
    assert (tmp_path / "index" / "manifest.json").read_bytes() == before


def test_plans_lie_beside_the_index_unless_they_are_named(
    medqa: dict[str, object], tmp_path: Path
) -> None:
    rag.prepare(settings_of(medqa, plans=""), tools(Planner()))
    assert (tmp_path / "index.plans.jsonl").exists()


@pytest.mark.parametrize(
    "change", [{"gold": "E"}, {"gold": ["A"]}, {"gold": None}, {"options": []}, {"question": 1}]
)
def test_prompts_that_cannot_be_scored_are_told_of_at_the_start(
    records: list[PromptRecord], change: dict[str, object]
) -> None:
    broken = replace(records[0], metadata=records[0].metadata | change)
    assert rag.prompt_problems(records) == []
    [problem] = rag.prompt_problems([broken, *records[1:]])
    assert problem.startswith("1 prompts have no question, options and gold")
    assert problem.endswith(records[0].id)
