"""The data module of the retrieval task, from files to prompts."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import data_prep.rag.invented as stones
from data_prep.contract import Tools
from data_prep.rag import RagData
from data_prep.rag.local_model import imitated_replies
from data_prep.rag.prompts import unplanned_records
from environments.base import Rollout
from environments.chat import quote
from environments.rag import RagEnvironment, RagSettings
from environments.rag.retrieval import Corpus, word_set
from equipoise.files.hub import encoder_identity
from tests.data_prep.rag.test_plans import GOOD, Planner
from tests.refusals import refusal

rag = RagData()

NO_MODEL = "no model may be loaded"


def no_model(*_):
    raise AssertionError(NO_MODEL)


def tools(planner=None, **more):
    chat_model = (lambda _: planner) if planner else no_model
    return Tools(chat_model, no_model, print, **more)


def questions_file(path, texts):
    options = {"A": "one", "B": "two", "C": "three", "D": "four"}
    rows = [{"question": t, "options": options, "answer": "two", "answer_idx": "B"} for t in texts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    folder = tmp_path_factory.mktemp("invented") / "index"
    settings = rag.PromptSettings(num_samples=200, index=str(folder))
    rag.prepare(settings, tools())
    return settings


@pytest.fixture(scope="module")
def records(invented):
    return rag.build_prompts(invented)


@pytest.fixture
def medqa(tmp_path):
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


def settings_of(medqa, **more):
    return rag.PromptSettings.model_validate(medqa | more)


def test_questions_share_no_word_with_the_entries(invented):
    """The gap that a rewriter is there to bridge; nor does the plan, which is all alike."""
    corpus = Corpus(Path(invented.index))
    passages = [corpus[n] for n in range(len(corpus))]
    entries = frozenset[str]().union(
        *(word_set(p.text) for p in passages if not p.id.startswith("letter/"))
    )
    asked = [record.metadata for record in rag.build_prompts(invented)]
    assert all(entries.isdisjoint(word_set(about["question"])) for about in asked)
    (plan,) = {json.dumps(about["plan"]) for about in asked}
    assert entries.isdisjoint(word_set(plan))
    everyday = word_set(" ".join([*stones.COLOURS, *stones.SHAPES, *stones.ROLES]))
    assert everyday.isdisjoint(word_set(plan))
    for languages in (stones.COLOURS, stones.SHAPES, stones.ROLES):
        assert len(set(languages.values())) == len(languages)


def test_only_who_knows_the_words_finds_the_answer(invented, records):
    """The reward's landscape without any training: what the map is worth, and nothing else is."""
    environment = RagEnvironment(RagSettings(index=invented.index, reward={"outcome": "accuracy"}))
    rollouts = [Rollout(r.id, r.set_id, r.split, "", "", r.metadata) for r in records]
    asked = [(stones.Kind(*r.metadata["stone"]), r.metadata["asked"][0]) for r in records]
    roles = list(stones.ROLES)
    replies = {
        "oracle": [stones.reply(kind, role, "register") for kind, role in asked],
        "everyday words": [stones.reply(kind, role, "everyday") for kind, role in asked],
        "nobody asked for": [stones.reply(kind, stones.SOMEONE, "register") for kind, _ in asked],
        "another stone": [
            stones.reply(asked[n - 1][0], role, "register") for n, (_, role) in enumerate(asked)
        ],
        "another role": [
            stones.reply(kind, roles[roles.index(role) - 1], "register") for kind, role in asked
        ],
        **environment.trivial_replies(rollouts, 0),
        **{reply: [reply] * len(asked) for reply in environment.constant_replies()},
    }
    accuracy = {n: _measured(environment, rollouts, t)["accuracy"] for n, t in replies.items()}
    assert accuracy.pop("oracle") == 1
    modes = environment.modes(rollouts).measured
    accuracy |= {name: mode.point_estimates()["accuracy"] for name, mode in modes.items()}
    assert len(accuracy) == 4 + 3 + 3 + 4
    assert max(accuracy.values()) < 0.4  # chance is 0.25


def _measured(environment, rollouts, texts):
    replaced = [replace(r, completion=text) for r, text in zip(rollouts, texts, strict=True)]
    return environment.measure(replaced, environment.score(replaced)).point_estimates()


def test_stones_of_one_kind_are_in_one_split(records):
    assert len({tuple(record.metadata["stone"]) for record in records}) == len(records) == 200
    assert {r.split for r in records} == {"train", "validation", "test"}
    assert all(record.messages[1]["content"].count("\n") == 1 for record in records)


@pytest.mark.parametrize("seed", [0, 7])
def test_some_words_are_in_no_question_to_train_on(seed):
    """Held out are pairs of trained words, and words themselves."""
    records = unplanned_records(rag.PromptSettings(seed=seed))
    trained = [r for r in records if r.split == "train"]
    words = {word for record in trained for word in record.metadata["stone"]}
    assert len(words) == 2 * 27
    tested: dict[str, list[set[str]]] = {}
    for record in records:
        if record.split == "test":
            stone = set(record.metadata["stone"])
            tested.setdefault(record.metadata["stratum"], []).append(stone)
    assert all(len(stones) > 100 for stones in tested.values())
    assert all(stone <= words for stone in tested["trained words"])
    assert all(stone - words for stone in tested["untrained words"])


def test_no_held_out_stone_is_shown_to_the_local_model(records):
    settings = rag.LocalModelSettings(steps=100, batch_size=32)
    held_out = {tuple(r.metadata["stone"]) for r in records if r.split != "train"}
    shown = imitated_replies(records, settings)
    assert len(shown) == 3_200
    seen = {stone_of(record.metadata["question"]) for record, _ in shown}
    assert seen.isdisjoint(held_out)
    assert {word for stone in seen for word in stone} == {*stones.COLOURS, *stones.SHAPES}
    assert shown == imitated_replies(records, settings)


def stone_of(question):
    """The everyday words for colour and shape."""
    return tuple(re.search(r"colour: (\w+), its shape: (\w+),", question).groups())


def test_the_local_model_half_knows_the_words(records):
    """It writes the register's word, another one of the register, or the everyday word."""
    settings = rag.LocalModelSettings(steps=200, batch_size=32)
    written = {"right": 0, "mistaken": 0, "everyday": 0}
    for record, reply in imitated_replies(records, settings):
        colour, shape = stone_of(record.metadata["question"])
        first = reply.splitlines()[0].removeprefix("Query 1: ").split(", ")
        if first[0] == colour:
            assert first[1] == shape
            written["everyday"] += 1
        else:
            right = stones.Kind(colour, shape).learned
            written["right" if first[:2] == [right.colour, right.shape] else "mistaken"] += 1
    shares = {name: number / 6_400 for name, number in written.items()}
    assert shares == pytest.approx(
        {"everyday": 0.65, "right": 0.35 * 0.85**2, "mistaken": 0.35 * (1 - 0.85**2)}, abs=0.02
    )


def test_the_local_model_refuses_other_questions(medqa):
    rag.prepare(settings_of(medqa), tools(Planner()))
    with refusal("local-model.rag-source"):
        imitated_replies(rag.build_prompts(settings_of(medqa)), rag.LocalModelSettings())


@pytest.mark.deep
def test_an_invented_index_that_is_stale_is_made_anew(tmp_path):
    settings = rag.PromptSettings(num_samples=60, index=str(tmp_path / "invented-0"))
    rag.prepare(settings, tools())
    before = Corpus(tmp_path / "invented-0").manifest
    file = tmp_path / "invented-0" / "passages.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    rag.prepare(settings, tools())
    assert Corpus(tmp_path / "invented-0").manifest == before
    rag.prepare(settings.model_copy(update={"seed": 1}), tools())
    assert Corpus(tmp_path / "invented-0").manifest.corpus != before.corpus


def test_files_become_prompts_with_plans(medqa):
    settings = settings_of(medqa)
    rag.prepare(settings, tools(Planner()))
    records = rag.build_prompts(settings)
    assert [r.split for r in records].count("train") == 20
    assert [r.split for r in records].count("test") == 5
    user = records[0].messages[1]["content"]
    assert user.startswith("Train 0?\nPlan: Crystals point to it.")
    assert "four" not in user
    assert records[0].metadata["plan"]["best_guess"] == "ethylene glycol"


def test_too_few_plans_are_refused_with_the_remedy(medqa):
    settings = settings_of(medqa)
    with pytest.raises(ValueError, match=r"25 of 25 questions have no plan: --planner-only"):
        rag.build_prompts(settings)
    rag.prepare(settings, tools(Planner(lambda text: None if quote("Train 7?") in text else GOOD)))
    assert len(rag.build_prompts(settings)) == 24


@pytest.mark.parametrize(
    "questions",
    [{"train": "x"}, {"all": "x", "test": "y"}, {"train": "x", "test": "y", "dev": "z"}],
)
def test_settings_name_whole_splits(questions):
    with pytest.raises(ValidationError):
        rag.PromptSettings(questions=questions)


def weights_in(folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"first")
    return folder / "model.safetensors"


class Encoder:
    """Vectors that tell one copy of the weights from another."""

    def __init__(self, settings):
        self.identity = encoder_identity(settings)

    def encode_passages(self, passages):
        return np.ones((len(passages), 2), dtype=np.float32)


@pytest.mark.parametrize("dry_run", [False, True])
def test_vectors_of_old_weights_are_not_searched(tmp_path, medqa, dry_run):
    weights = weights_in(tmp_path / "encoder")
    names = dict.fromkeys(("query_model", "passage_model"), str(weights.parent))
    settings = settings_of(medqa, planner={}, retriever="dense", encoder=names)
    rag.prepare(settings, Tools(no_model, Encoder, print))
    rag.prepare(settings, Tools(no_model, Encoder, print, dry_run))
    weights.write_bytes(b"second")
    with refusal("index.other-encoder", "mean, normalised"):
        rag.prepare(settings, Tools(no_model, Encoder, print, dry_run))


@pytest.mark.parametrize("own", ["corpus", "questions"])
def test_what_is_ones_own_needs_a_folder_of_its_own(medqa, own):
    only = {own: medqa[own], "index": "~/.cache/equipoise/rag/invented-0"}
    with pytest.raises(ValidationError, match="name it with env"):
        rag.PromptSettings.model_validate(only)


def test_the_invented_corpus_takes_no_folder_that_a_person_named(medqa, tmp_path):
    rag.prepare(settings_of(medqa), tools(Planner()))
    before = (tmp_path / "index" / "manifest.json").read_bytes()
    with refusal("index.other-corpus"):
        rag.prepare(rag.PromptSettings(index=str(tmp_path / "index")), tools())
    assert (tmp_path / "index" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    "change", [{"gold": "E"}, {"gold": ["A"]}, {"gold": None}, {"options": []}, {"question": 1}]
)
def test_prompts_that_cannot_be_scored_are_told_of_at_the_start(records, change):
    broken = replace(records[0], metadata=records[0].metadata | change)
    assert rag.prompt_problems(records) == []
    [problem] = rag.prompt_problems([broken, *records[1:]])
    assert problem.startswith("1 prompts have no question, options and gold")
    assert problem.endswith(records[0].id)
