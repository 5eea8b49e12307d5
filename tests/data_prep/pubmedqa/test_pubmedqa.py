"""The PubMedQA data module: settings, prompts, what the local model is shown, the command."""

import hashlib
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from data_prep.pubmedqa import (
    LocalModelSettings,
    PromptSettings,
    build_prompts,
    prompt_problems,
    sources,
)
from data_prep.pubmedqa.local_model import imitated_replies
from data_prep.pubmedqa.prompts import (
    context_text,
    estimate_tokens,
    fit_sections,
    prompt_record,
    question_of,
)
from data_prep.pubmedqa.sources import (
    Item,
    Section,
    fingerprint,
    is_official_test,
    normal_question,
    published_split,
    refuse_leaked,
)
from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import parse_reply
from tests.refusals import refusal

SYNTHETIC = PromptSettings(source="synthetic", num_samples=200)
SMALL = LocalModelSettings(steps=40, batch_size=32)


def set_of(folder, number=60):
    """A file of so many questions, every third one asked of two abstracts."""
    keys = ("question", "context", "ground_truth")
    found = ((f"Is {n - n % 3 // 2} so?", f"It is {n}.", LABELS[n % 2]) for n in range(number))
    rows = [dict(zip(keys, row, strict=True)) for row in found]
    path = folder / "set.json"
    path.write_text(json.dumps(rows))
    return str(path)


def test_another_set_has_no_published_split(tmp_path):
    settings = PromptSettings(source="file", path=set_of(tmp_path))
    with pytest.raises(ValueError, match="take split: random for any other set"):
        build_prompts(settings)


def test_one_question_lies_in_one_split(tmp_path):
    settings = PromptSettings(source="file", path=set_of(tmp_path), split="random")
    splits: dict[str, set[str]] = {}
    for record in build_prompts(settings):
        question = record.messages[1]["content"].splitlines()[-1]
        splits.setdefault(question, set()).add(record.split)
    assert len(splits) == 40
    assert all(len(found) == 1 for found in splits.values())


@pytest.mark.parametrize(
    "settings", [{"source": "file"}, {"path": "set.json"}, {"source": "synthetic"}], ids=str
)
def test_settings_that_do_not_fit_together_are_refused(settings):
    with pytest.raises(ValidationError):
        PromptSettings.model_validate(settings)


def test_the_warm_start_speaks_the_language_of_the_prompts_world():
    """Its seed may differ from that of the data, and still nothing held out is shown."""
    records = build_prompts(SYNTHETIC.model_copy(update={"seed": 4}))
    shown = imitated_replies(records, SMALL)
    assert len(shown) == 40 * 32
    assert {record.metadata["world"] for record, _ in shown} == {4}
    findings = {r.metadata["finding"] for r in records}
    assert not findings & {record.metadata["finding"] for record, _ in shown}
    assert all(parse_reply(reply).answer for _, reply in shown)


def test_the_local_model_is_not_made_for_other_prompts(tmp_path):
    settings = PromptSettings(source="file", path=set_of(tmp_path), split="random")
    with refusal("local-model.pubmedqa-source"):
        imitated_replies(build_prompts(settings), SMALL)


def test_prompts_without_what_reasons_are_checked_with_are_refused():
    whole = build_prompts(SYNTHETIC)[:3]
    bare = [replace(r, metadata={"gold": "yes", "context": "a"}) for r in whole[:2]]
    [problem] = prompt_problems([*bare, *whole[2:]])
    assert problem.startswith("2 prompts have no context or no question in their metadata")
    assert prompt_problems(whole) == []


ABSTRACT = (
    Section("BACKGROUND", "Nobody knew. It was open."),
    Section("METHODS", "We asked 60 adults. P < .05 was taken vs. placebo."),
    Section("RESULTS", "Pain fell by 12.5%. Fever did not."),
)
ITEM = Item("101", "Does it work?", ABSTRACT, "yes")


def test_the_prompt():
    record = prompt_record(ITEM, "train", 3, 960)
    names = (record.id, record.set_id, record.split, record.task)
    assert names == ("101", "101", "train", "pubmedqa")
    assert [message["role"] for message in record.messages] == ["system", "user"]
    assert record.messages[1]["content"] == (
        "Context:\n"
        "BACKGROUND: Nobody knew. It was open.\n"
        "METHODS: We asked 60 adults. P < .05 was taken vs. placebo.\n"
        "RESULTS: Pain fell by 12.5%. Fever did not.\n"
        "\n"
        "Question: Does it work?"
    )
    assert record.metadata["gold"] == "yes"
    assert record.messages[1]["content"].startswith(f"Context:\n{record.metadata['context']}\n")
    assert question_of(record) == "Does it work?"


RESULTS = "RESULTS: Pain fell by 12.5%. Fever did not."
METHODS = "METHODS: We asked 60 adults. P < .05 was taken vs. placebo."


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (200, context_text(ABSTRACT)),
        (50, f"BACKGROUND: It was open.\n{METHODS}\n{RESULTS}"),
        (33, f"METHODS: P < .05 was taken vs. placebo.\n{RESULTS}"),
        (18, RESULTS),
        (9, "RESULTS: Fever did not."),
        (5, "RESULTS: not."),
    ],
    ids=["all", "half a section", "half of the next", "one section", "one sentence", "one word"],
)
def test_sentences_are_left_out_from_the_beginning(budget, kept):
    assert context_text(fit_sections(ABSTRACT, budget)) == kept


words = st.lists(st.sampled_from(["Pain", "fell", "by", "12.5%", "mitochondria."]), min_size=1)
sections = st.lists(
    st.builds(Section, st.sampled_from(["", "RESULTS"]), words.map(" ".join)),
    min_size=1,
    max_size=4,
)


@given(sections, st.integers(1, 80))
def test_what_is_kept_fits_and_is_the_end_of_the_abstract(abstract, budget):
    kept = fit_sections(abstract, budget)
    said = " ".join(section.text for section in kept).strip()
    assert " ".join(section.text for section in abstract).endswith(said)
    if said:
        assert estimate_tokens(context_text(kept)) <= budget


@given(sections, st.integers(1, 80))
def test_more_room_keeps_more(abstract, budget):
    less, more = (
        " ".join(section.text for section in fit_sections(abstract, size)).strip()
        for size in (budget, budget + 1)
    )
    assert more.endswith(less)


def test_the_question_is_never_cut():
    long = Item("9", "Does it work " + "very " * 400 + "well?", ABSTRACT, "yes")
    with pytest.raises(ValueError, match="the question of 9 alone fills the prompt: raise prompt"):
        prompt_record(long, "train", 3, 300)
    assert question_of(prompt_record(long, "train", 3, 960)) == long.question


DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "pubmedqa"
COUNTS = {"yes": 552, "no": 338, "maybe": 110}


def invented_gold():
    """As many items of each label as the published file has, in some order."""
    labels = [label for label, count in COUNTS.items() for _ in range(count)]
    random.Random(1).shuffle(labels)
    return {str(number): label for number, label in enumerate(labels)}


@pytest.fixture
def invented(tmp_path, monkeypatch):
    """A file like the published one whose test items are taken for the official ones."""
    gold = invented_gold()
    rows = {
        n: {"QUESTION": f"Is {n} so?", "CONTEXTS": [f"It is {n}."], "final_decision": label}
        for n, label in gold.items()
    }
    rng = random.Random(sources.SEED)
    test = sources._parts(list(gold), gold, 2, rng)[1]
    known = (
        frozenset(fingerprint(name) for name in test),
        frozenset(fingerprint(normal_question(f"Is {name} so?")) for name in test),
    )
    monkeypatch.setattr(sources, "official_fingerprints", lambda: known)
    path = tmp_path / "set.json"
    path.write_text(json.dumps(rows))
    return path


def prompts(path, **settings):
    records = build_prompts(PromptSettings(source="file", path=str(path), **settings))
    found: dict[str, list[Any]] = {}
    for record in records:
        found.setdefault(record.split, []).append(record)
    return found


def test_the_procedure_gives_the_official_test_set_and_the_published_folds():
    """On the published file of the 1,000 labelled items, where it lies beside the repository."""
    path = DATA / "ori_pqal.json"
    if not path.exists():
        pytest.skip(f"needs PubMedQA's ori_pqal.json and test_ground_truth.json in {DATA}")
    rows, truth = (json.loads((DATA / n).read_text()) for n in (path, "test_ground_truth.json"))
    found = prompts(path)
    assert {record.id: record.metadata["gold"] for record in found["test"]} == truth
    assert [len(found[split]) for split in ("train", "validation", "test")] == [450, 50, 500]
    folds, _ = published_split({name: row["final_decision"] for name, row in rows.items()})
    digest = hashlib.sha256(json.dumps(folds).encode()).hexdigest()
    assert digest.startswith("a997b714062aee46")
    official = {name for name, row in rows.items() if is_official_test("", row["QUESTION"])}
    assert official == truth.keys()


def test_splits_and_folds(invented):
    found = prompts(invented)
    sizes = {split: len(records) for split, records in found.items()}
    assert sizes == {"train": 450, "validation": 50, "test": 500}
    by_gold = Counter(record.metadata["gold"] for record in found["test"])
    assert by_gold == {label: count // 2 for label, count in COUNTS.items()}
    other = prompts(invented, fold=1)
    assert other["test"] == found["test"]
    ids = [{record.id for record in group["validation"]} for group in (found, other)]
    assert not ids[0] & ids[1]
    assert ids[0] <= {record.id for record in other["train"]}


def test_fewer_samples_take_away_training_items_alone(invented):
    whole, few, fewer = (prompts(invented, num_samples=n) for n in (None, 600, 551))
    assert few["test"] == fewer["test"] == whole["test"]
    assert few["validation"] == fewer["validation"] == whole["validation"]
    assert len(few["train"]) == 50
    [only] = fewer["train"]
    assert only in few["train"]


def test_a_number_that_would_cut_the_test_set_is_refused(invented):
    with pytest.raises(ValueError, match="must be more than 550: the questions"):
        prompts(invented, num_samples=550)


def test_two_classes_train_without_maybe_and_test_with_it(invented):
    found = prompts(invented, classes=2)
    assert {record.metadata["gold"] for record in found["train"]} == {"yes", "no"}
    assert sum(record.metadata["gold"] == "maybe" for record in found["test"]) == 55
    assert "maybe" not in found["test"][0].messages[0]["content"]


def test_parts_are_of_equal_size_where_labels_do_not_divide():
    gold = {str(n): label for n, label in enumerate(["yes"] * 13 + ["no"] * 14 + ["maybe"] * 3)}
    parts = sources._parts(list(gold), gold, 3, random.Random(0))
    assert sorted(name for part in parts for name in part) == sorted(gold)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_no_official_item_is_ever_trained_on(invented):
    rows = json.loads(invented.read_text())
    found = prompts(invented)
    refuse_leaked([Item(r.id, rows[r.id]["QUESTION"], (), "yes") for r in found["train"]])
    leaked = [Item("new", rows[found["test"][0].id]["QUESTION"], (), "yes")]
    with pytest.raises(ValueError, match=r"1 of 1 questions are of the official .* \(new\)"):
        refuse_leaked(leaked)


def test_prompts_from_a_file_are_looked_at_too(invented):
    found = prompts(invented)
    assert prompt_problems([r for records in found.values() for r in records]) == []
    test_id = found["test"][0].id
    by_id = Item(test_id, "Another?", (Section("", "a"),), "yes")
    by_question = Item("new", f"Is {test_id}, so?", (Section("", "a"),), "yes")
    records = [prompt_record(item, "train", 3, 960) for item in (by_id, by_question)]
    [problem] = prompt_problems(records)
    assert problem.startswith("2 training prompts are of the official PubMedQA test set")
