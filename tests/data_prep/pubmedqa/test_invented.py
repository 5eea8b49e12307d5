"""Invented abstracts, the languages of the splits and of the warm start, and the hasty reader."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from data_prep.pubmedqa import LocalModelSettings, PromptSettings, build_prompts
from data_prep.pubmedqa.invented import (
    CURTNESS,
    HASTE,
    PARTS,
    SHARES,
    hasty_reply,
    invented_items,
    training_abstracts,
)
from data_prep.pubmedqa.local_model import imitated_replies
from environments.base import PromptRecord
from environments.pubmedqa.reply import closeness, parse_reply

WARM_START = "warm start"
#: A finding of an invented abstract: the outcome, its rank, what is said of it, its P value.
FINDING = re.compile(r"Mean (\w+ \w+ \w+) \((?:primary|secondary)\) ([\w ]+?) \(P=[.\d]+\)\.")


def drawn(number, seed=0):
    return training_abstracts(number, seed, seed)


def test_the_question_asks_for_one_of_two_findings_that_differ():
    for abstract in drawn(300):
        item = abstract.item("x", 7)
        asked, other = abstract.findings[abstract.target], abstract.findings[1 - abstract.target]
        assert asked.outcome in item.question
        assert item.gold == asked.label != other.label
        # Only the finding that decides is to the point of the question.
        assert closeness(asked.text, item.question) >= 2
        assert closeness(other.text, item.question) == 0
        assert [s.label for s in item.sections] == ["METHODS", "RESULTS"]
        assert item.sections[1].text == f"{abstract.findings[0].text} {abstract.findings[1].text}"
        assert item.extra == {"finding": asked.text, "world": 7}


def test_every_split_has_its_share_of_every_label():
    items = invented_items(2000, 0)
    assert {split: len(found) for split, found in items.items()} == {
        "train": 1400,
        "validation": 200,
        "test": 400,
    }
    for found in items.values():
        counts = Counter(item.gold for item in found)
        for label, share in SHARES.items():
            assert abs(counts[label] - share * len(found)) <= 1


def test_the_reader_is_right_as_often_as_its_haste_says():
    rng = np.random.default_rng(1)
    found = [(abstract, parse_reply(hasty_reply(abstract, rng))) for abstract in drawn(4000)]
    right: dict[int, list[bool]] = {0: [], 1: []}
    for abstract, reply in found:
        right[abstract.target].append(reply.answer == abstract.findings[abstract.target].label)
        assert reply.answer in {finding.label for finding in abstract.findings}
    assert np.mean(right[0]) == 1.0  # the first finding is the one that was asked for
    assert abs(np.mean(right[1]) - (1 - HASTE)) < 0.04
    assert abs(np.mean([not reply.keeps_format for _, reply in found]) - CURTNESS) < 0.015


def test_the_answer_follows_from_the_finding_that_is_quoted():
    rng = np.random.default_rng(2)
    for abstract in drawn(500):
        reply = parse_reply(hasty_reply(abstract, rng))
        if reply.keeps_format:
            [quoted] = [f for f in abstract.findings if f'"{f.text}"' in reply.reasoning]
            assert reply.answer == quoted.label


def world(seed):
    """All prompts that a run shows, by part: those of the warm start and of every split."""
    settings = PromptSettings(source="synthetic", num_samples=2400, seed=seed)
    records = build_prompts(settings)
    shown = imitated_replies(records, LocalModelSettings(steps=100, seed=seed))
    parts = {split: [r for r in records if r.split == split] for split in PARTS}
    return parts | {WARM_START: [record for record, _ in shown]}


def question(record):
    return record.messages[-1]["content"].rpartition("Question: ")[2]


def findings(record):
    return FINDING.findall(str(record.metadata["context"]))


def drug(record):
    return re.findall(r"METHODS: (\w+)", str(record.metadata["context"]))[0]


def wording(record):
    names = {drug(record): "DRUG"} | {outcome: "OUTCOME" for outcome, _ in findings(record)}
    text = question(record)
    for name, sign in names.items():
        text = text.replace(name, sign)
    return text


def sentences(record):
    return re.split(r"(?<=[.?])\s+", record.messages[-1]["content"])


DECIDING: dict[str, Callable[[PromptRecord], Iterable[object]]] = {
    "findings and question": lambda r: [(tuple(findings(r)), question(r))],
    "outcomes": lambda r: [outcome for outcome, _ in findings(r)],
    "verdicts": lambda r: [verdict for _, verdict in findings(r)],
    "wordings of the question": lambda r: [wording(r)],
    "questions": lambda r: [question(r)],
    "sentences": sentences,
}


@pytest.fixture(scope="module")
def parts():
    return world(3)


def test_nothing_that_decides_is_common_to_two_parts(parts):
    for name, of_prompt in DECIDING.items():
        said = {part: {x for r in parts[part] for x in of_prompt(r)} for part in parts}
        for one, other in itertools.combinations(said, 2):
            assert said[one], name
            assert not said[one] & said[other], (name, one, other)


def test_no_two_splits_have_a_drug_in_common_and_the_warm_start_knows_all(parts):
    """A name decides nothing; one that a tiny model never saw broke its replies."""
    drugs = {part: {drug(r) for r in records} for part, records in parts.items()}
    known = drugs.pop(WARM_START)
    for one, other in itertools.combinations(drugs.values(), 2):
        assert one
        assert not one & other
    assert set.union(*drugs.values()) <= known


def test_every_word_of_a_held_out_finding_stands_in_the_warm_start(parts):
    """Held out is what the words say together; a tiny model cannot understand a new word."""

    def words(part):
        return {
            word for r in parts[part] for pair in findings(r) for word in " ".join(pair).split()
        }

    assert words("test") <= words(WARM_START)
    assert len(words("test")) > 30
