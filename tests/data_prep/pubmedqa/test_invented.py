"""Invented abstracts and their hasty reader."""

import itertools
from collections import Counter

import numpy as np

from data_prep.pubmedqa.invented import (
    CURTNESS,
    HASTE,
    SHARES,
    Abstract,
    abstracts,
    hasty_reply,
    invented_items,
)
from environments.pubmedqa.reply import parse_reply


def drawn(number: int, seed: int = 0) -> list[Abstract]:
    return list(itertools.islice(abstracts(np.random.default_rng(seed)), number))


def test_the_question_asks_for_one_of_two_findings_that_differ() -> None:
    for abstract in drawn(300):
        item = abstract.item("x")
        asked, other = abstract.findings[abstract.asked], abstract.findings[1 - abstract.asked]
        assert item.question.endswith(f"reduce {asked.outcome}?")
        assert item.gold == asked.label != other.label
        assert asked.outcome != other.outcome
        assert [s.label for s in item.sections] == ["BACKGROUND", "METHODS", "RESULTS"]
        assert item.sections[2].text == f"{abstract.findings[0].text} {abstract.findings[1].text}"


def test_neither_place_nor_finding_gives_the_answer_away() -> None:
    found = drawn(4000)
    first = [abstract.asked == 0 for abstract in found]
    assert 0.47 < np.mean(first) < 0.53
    for label in SHARES:
        places = [abstract.asked for abstract in found if abstract.item("x").gold == label]
        assert 0.42 < np.mean(places) < 0.58


def test_labels_are_about_as_frequent_as_in_pubmedqa() -> None:
    counts = Counter(item.gold for item in invented_items(4000, 0))
    for label, share in SHARES.items():
        assert abs(counts[label] / 4000 - share) < 0.03


def test_items_are_distinct_and_follow_from_the_seed() -> None:
    items = invented_items(3000, 5)
    assert len({(item.question, item.sections) for item in items}) == 3000
    assert len({item.id for item in items}) == 3000
    assert invented_items(3000, 5) == items
    assert invented_items(100, 5) == items[:100]
    assert invented_items(100, 6) != items[:100]


def test_the_reader_is_right_as_often_as_its_haste_says() -> None:
    rng = np.random.default_rng(1)
    found = [(abstract, parse_reply(hasty_reply(abstract, rng))) for abstract in drawn(4000)]
    right = {0: [], 1: []}
    for abstract, reply in found:
        right[abstract.asked].append(reply.answer == abstract.item("x").gold)
        assert reply.answer in {finding.label for finding in abstract.findings}
    assert np.mean(right[0]) == 1.0  # the first finding is the one that was asked for
    assert abs(np.mean(right[1]) - (1 - HASTE)) < 0.04
    assert abs(np.mean([not reply.keeps_format for _, reply in found]) - CURTNESS) < 0.015


def test_the_answer_follows_from_the_finding_that_is_quoted() -> None:
    rng = np.random.default_rng(2)
    for abstract in drawn(500):
        reply = parse_reply(hasty_reply(abstract, rng))
        if reply.keeps_format:
            [quoted] = [f for f in abstract.findings if f.text in reply.reasoning]
            assert reply.answer == quoted.label
