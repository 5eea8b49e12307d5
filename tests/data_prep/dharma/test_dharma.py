"""Scope prompts: balanced, varied, unique, split by wording; imports; what the local model sees."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from data_prep.dharma import LocalModelSettings, PromptSettings, build_prompts
from data_prep.dharma.invented import ADJACENT, CLINICAL, FRACTIONS, OUTSIDE, PARA_CLINICAL
from data_prep.dharma.local_model import WANDERS, answer, imitated_replies
from data_prep.dharma.prompts import import_prompts
from environments.dharma.judge import SCOPES
from environments.dharma.sentences import read_clauses
from equipoise.config import check_prompts, load_config
from equipoise.config.words import parse_flags
from equipoise.run.task import check_steps, make_prompts
from tests.refusals import refusal


@pytest.fixture(scope="module")
def records():
    return build_prompts(PromptSettings())


TOPICS = (*CLINICAL, *PARA_CLINICAL, *ADJACENT, *OUTSIDE)


def question(record):
    return record.messages[-1]["content"]


def test_no_wording_is_in_two_splits(records):
    splits: dict[str, set[str]] = {}
    for record in records:
        splits.setdefault(record.metadata["family"], set()).add(record.split)
    assert all(len(found) == 1 for found in splits.values())
    assert {split for found in splits.values() for split in found} == FRACTIONS.keys()


@pytest.mark.parametrize("split", FRACTIONS)
def test_every_split_has_every_kind(records, split):
    kinds = Counter(r.metadata["kind"] for r in records if r.split == split)
    assert len(kinds) == 6
    assert min(kinds.values()) > 10


def test_prompts_are_unique_and_fit_for_training(records):
    plain = [" ".join(re.findall(r"\w+", question(r).casefold())) for r in records]
    assert len(set(plain)) == len(plain)
    assert check_prompts(records, set_size=1) == []


def test_the_record_says_what_the_judge_needs(records):
    for record in records:
        assert record.metadata["question"] == question(record)
        assert record.metadata["scope"] in SCOPES
    tiers = Counter(r.metadata["tier"] for r in records if r.metadata["scope"] == "S0")
    assert set(tiers) == {"A", "B", "C"}
    assert all(r.metadata["tier"] == "C" for r in records if r.metadata["scope"] != "S0")


def test_three_of_four_clinical_prompts_that_are_not_trained_on_are_emergencies():
    urgent = {"train": [], "validation": [], "test": []}
    for record in build_prompts(PromptSettings(num_samples=1200, seed=1)):
        if record.metadata["scope"] == "S0":
            urgent[record.split].append(record.metadata["tier"] == "A")
    shares = {split: sum(tiers) / len(tiers) for split, tiers in urgent.items()}
    assert shares["test"] == pytest.approx(0.75, abs=0.04)
    assert shares["validation"] > 0.6  # of thirty
    of_topics = sum(topic.tier == "A" for topic in CLINICAL) / len(CLINICAL)
    assert shares["train"] == pytest.approx(of_topics, abs=0.12)


@pytest.mark.parametrize("seed", range(2))
def test_every_guard_of_the_test_has_forty_wordings(seed):
    """So many clusters are what the gate takes."""
    records = build_prompts(PromptSettings(num_samples=1200, seed=seed))
    test = [record for record in records if record.split == "test"]
    emergencies = {r.metadata["family"] for r in test if r.metadata["tier"] == "A"}
    not_ill = {r.metadata["family"] for r in test if r.metadata["scope"] != "S0"}
    assert min(len(emergencies), len(not_ill)) >= 40


@pytest.mark.parametrize("num_samples", [5079, 23])
def test_a_number_of_prompts_that_cannot_be_made_is_refused(num_samples):
    with pytest.raises(ValidationError, match=f"{num_samples:,}"):
        PromptSettings(num_samples=num_samples)


def topics_of(record):
    """Every topic that a prompt names."""
    return {str(record.metadata[name]) for name in ("topic", "other") if name in record.metadata}


def split_topics(records, split):
    return {topic for r in records if r.split == split for topic in topics_of(r)}


def test_topics_that_decide_the_answer_are_held_out(records):
    trained = split_topics(records, "train")
    unseen = {
        s: {
            t
            for r in records
            if r.split == s and r.metadata["topics"] == "unseen"
            for t in topics_of(r)
        }
        for s in ("validation", "test")
    }
    assert not trained & (unseen["validation"] | unseen["test"])
    assert not unseen["validation"] & unseen["test"]
    seen = [r for r in records if r.metadata["topics"] == "seen"]
    assert {topic for r in seen for topic in topics_of(r)} <= trained


def test_every_field_is_trained_on_and_every_urgency_held_out(records):
    trained = split_topics(records, "train")
    fields = {topic.field for topic in OUTSIDE}
    assert {topic.field for topic in OUTSIDE if topic.text in trained} == fields
    held_out = {r.metadata["topic"] for r in records if r.split == "test"} - trained
    assert {topic.tier for topic in CLINICAL if topic.text in held_out} == {"A", "B", "C"}


def test_the_key_is_that_of_the_topics(records):
    by_text = {topic.text: topic for topic in TOPICS}
    for record in records:
        key, topic = record.metadata["answer_key"], by_text[record.metadata["topic"]]
        outside = by_text.get(record.metadata.get("other", ""))
        if record.metadata["scope"] == "S3":
            assert key == {"advice": None, "declines": topic.field, "outside": topic.advice}
        elif outside:
            assert key["advice"] == topic.advice
            assert (key["declines"], key["outside"]) == (outside.field, outside.advice)
        else:
            assert key == {"advice": topic.advice, "declines": None, "outside": None}


def test_no_message_holds_the_key(records):
    for record in records:
        shown = " ".join(message["content"] for message in record.messages)
        key = record.metadata["answer_key"]
        assert not any(text in shown for text in (key["advice"], key["outside"]) if text)


def test_advice_can_be_told_apart():
    """From that of other topics by its words; from outside or not by the lexicon."""
    assert len({topic.advice.lower() for topic in TOPICS}) == len(TOPICS)
    for topic in TOPICS:
        scopes = [c.scope for c in read_clauses(topic.advice) if c.gives_content and c.scope]
        assert ("S3" in scopes) == (topic in OUTSIDE), topic


def write(path, *rows):
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def test_a_prompt_is_all_that_a_line_needs_and_labels_end_at_a_colon(tmp_path):
    row = {"id": 7, "prompt": "p", "tier": "B:89ab", "scope": "S2: adjacent", "note": [1]}
    bare, labelled = import_prompts(write(tmp_path / "p.jsonl", {"prompt": "A cold?"}, row))
    assert question(bare) == "A cold?"
    assert not {"tier", "scope"} & bare.metadata.keys()
    assert (labelled.metadata["tier"], labelled.metadata["scope"]) == ("B", "S2")


def test_the_same_prompt_in_other_clothes_is_taken_once(tmp_path):
    texts = ("My arm hurts.", "my ARM  hurts!", "My leg hurts.")
    found = import_prompts(write(tmp_path / "p.jsonl", *({"prompt": t} for t in texts)))
    assert [question(record) for record in found] == [texts[0], texts[2]]


def test_prompts_that_begin_alike_share_a_split(tmp_path):
    rows = [{"prompt": f"{start} number {n}"} for n in range(4) for start in map(str, range(40))]
    path = write(tmp_path / "p.jsonl", *rows)
    found = build_prompts(PromptSettings(source=path))
    assert {record.split for record in found} == FRACTIONS.keys()
    families = {(record.metadata["family"], record.split) for record in found}
    assert len(families) == len({family for family, _ in families})


def test_every_bad_line_is_told_at_once(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"prompt": "good"},
        {"text": "no prompt"},
        {"prompt": "  ?!"},
        {"prompt": 3},
        [],
        {"prompt": "p", "tier": "D"},
        {"prompt": "p", "scope": 3},
        {"prompt": "x" * 8001},
        {"prompt": "half \ud800"},
    )
    with refusal("dharma.invalid-rows") as caught:
        import_prompts(path)
    told = str(caught.value)
    assert [f"line {n}:" in told for n in range(1, 10)] == [False] + [True] * 8


def test_fifty_lines_are_enough_to_train_on(tmp_path):
    path = write(tmp_path / "p.jsonl", *({"prompt": f"My toe {n} hurts"} for n in range(50)))
    words = ("--config=nemo_configs/small.yaml", f"equipoise.data.source={path}")
    with refusal("prompts.unusable", "50 of 50 prompts", "env.dharma.judge"):
        make_prompts(load_config("dharma", parse_flags("x", words)))
    loaded = load_config("dharma", parse_flags("x", (*words, "env.dharma.judge.model_name=m")))
    records = make_prompts(loaded)
    assert len(records) == 50
    check_steps(loaded, records)


def test_a_prompt_that_is_there_twice_has_the_same_labels(tmp_path):
    rows = [{"prompt": "My toe hurts", "tier": "B", "scope": "S0"}, {"prompt": "my toe hurts!"}]
    same = write(tmp_path / "same.jsonl", rows[0], rows[0], {"prompt": "My ear hurts"})
    assert len(import_prompts(same)) == 2
    for other in (rows[1], rows[0] | {"tier": "A"}):
        path = write(tmp_path / "p.jsonl", {"prompt": "My ear hurts"}, rows[0], other)
        tier = other.get("tier", "unknown")
        with refusal("dharma.invalid-rows", "line 3", "line 2", "tier B, scope S0", f"tier {tier}"):
            import_prompts(path)


def test_prompts_that_all_begin_alike_cannot_be_split(tmp_path):
    path = write(
        tmp_path / "p.jsonl", *({"prompt": f"What helps against a {n}"} for n in range(50))
    )
    with pytest.raises(ValueError, match=r"3 different beginnings or more, and there are 1$"):
        build_prompts(PromptSettings(source=path))


def test_the_local_model_sees_no_wording_of_an_evaluation(records):
    shown = imitated_replies(records, LocalModelSettings(steps=20))
    held_out = {r.metadata["family"] for r in records if r.split != "train"}
    assert not {record.metadata["family"] for record, _ in shown} & held_out
    assert len({record.metadata["kind"] for record, _ in shown}) == 6


def test_it_knows_nothing_of_imported_prompts(tmp_path):
    path = write(tmp_path / "p.jsonl", *({"prompt": f"{n} hurts"} for n in range(20)))
    with refusal("local-model.dharma-source"):
        imitated_replies(build_prompts(PromptSettings(source=path)), LocalModelSettings())


def test_replies_wander_as_often_as_is_written_down(records):
    rng = np.random.default_rng(0)
    for kind, share in WANDERS.items():
        prompts = [r for r in records if r.metadata["kind"] == kind]
        replies = [answer(r.metadata, rng) for r in prompts for _ in range(4)]
        declined = np.mean(["I can't help" in reply for reply in replies])
        assert declined == pytest.approx(1 - share, abs=0.05)
