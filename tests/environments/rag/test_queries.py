"""Replies are read as three queries, and faults of the queries are found."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.rag.sources import read_questions
from environments.base import Rollout
from environments.rag.queries import (
    MAX_QUERY_CHARACTERS,
    NUMBER_OF_QUERIES,
    Queries,
    copied_replies,
    name_an_option,
    parse_queries,
    query_defects,
    sentences,
)
from environments.rag.retrieval import words_of
from environments.replies import Unparseable
from tests.environments.rag.conftest import GOLD, PLAN, rollouts

LINES = (files("environments.rag") / "cases.jsonl").read_text("utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]
QUESTION = "Which antidote helps a man who drank ethylene glycol?"
MEDQA = (
    *(Path(__file__).resolve().parents[3].parent / "shared" / "data" / "medqa").glob("*4opt*.json"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_cases_that_are_listed(case):
    found = parse_queries(case["reply"])
    if case["queries"] is None:
        assert isinstance(found, Unparseable)
        assert found.reason
    else:
        assert found == Queries(tuple(case["queries"]), case["surplus"])


@given(st.text(max_size=400))
def test_no_text_raises(text):
    assert isinstance(parse_queries(text), Queries | Unparseable)


words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
one_query = st.lists(words, min_size=1, max_size=8).map(" ".join)


@given(st.tuples(one_query, one_query, one_query))
def test_what_is_written_in_the_format_is_read_again(texts):
    reply = "\n".join(f"Query {n}: {text}" for n, text in enumerate(texts, start=1))
    assert parse_queries(reply) == Queries(texts)


def test_a_query_may_be_so_long_and_no_longer():
    longest = "x" * MAX_QUERY_CHARACTERS
    reply = "Query 1: {}\nQuery 2: y\nQuery 3: z"
    assert isinstance(parse_queries(reply.format(longest)), Queries)
    assert isinstance(parse_queries(reply.format(longest + "x")), Unparseable)


@pytest.mark.parametrize(
    ("queries", "defects"),
    [
        (("ethylene glycol antidote", "fomepizole", "anion gap"), (None, None, None)),
        (("", "!?", "of the and"), ("empty", "empty", "empty")),
        (("anion gap", "Gap, anion!", "anion gap osmolar"), (None, "repeated", None)),
        (("u v w x y", "v w x y z", "g"), (None, None, None)),
        (("v w x y", "v w x y z", "g"), (None, "repeated", None)),
        ((QUESTION, "fomepizole", "glycol"), ("copied", None, None)),
        ((f"{QUESTION} and more", "x", "y"), ("copied", None, None)),
    ],
)
def test_defects(queries, defects):
    assert query_defects(queries, QUESTION) == defects


OPTIONS = ("Fomepizole infusion", "Oral sodium bicarbonate", "Ethylene glycol", "Oral charcoal")


@pytest.mark.parametrize(
    ("queries", "named"),
    [
        (("fomepizole infusion dose", "", ""), True),
        (("a dose of charcoal by oral route", "", ""), True),
        (("infusion", "crystals", "FOMEPIZOLE!"), True),  # dealt out, in another order
        (("fomepizole", "", ""), True),  # a part that no other option has
        (("sodium level", "", ""), True),
        (OPTIONS[:NUMBER_OF_QUERIES], True),
        (("oral antidote", "", ""), False),  # a part of two options
        (("ethylene glycol antidote", "", ""), False),  # of the question
        (("antidote of a toxic alcohol", "4-methylpyrazole", ""), False),  # a synonym is not seen
        (("", "", ""), False),
    ],
)
def test_queries_that_name_an_option(queries, named):
    assert name_an_option(queries, QUESTION, OPTIONS) is named


def gold(question):
    return question.options[question.gold]


def dealt_out(words):
    return [" ".join(words[n::NUMBER_OF_QUERIES]) for n in range(NUMBER_OF_QUERIES)]


@pytest.mark.skipif(not MEDQA, reason="MedQA's questions are not here")
@pytest.mark.parametrize(
    ("attack", "least", "most"),
    [
        (lambda q, _: [gold(q)], 0.99, 1.0),
        (lambda q, _: dealt_out(words_of(gold(q))), 0.99, 1.0),
        (lambda q, _: list(q.options.values()), 0.99, 1.0),
        (lambda q, _: [" ".join(words_of(gold(q))[:2])], 0.75, 0.85),
        (lambda q, _: words_of(gold(q))[:1], 0.45, 0.55),
        (lambda q, _: sentences(q.text), 0.0, 0.0),
        (lambda _, other: [gold(other)], 0.0, 0.01),
        (lambda _, other: sentences(other.text)[:NUMBER_OF_QUERIES], 0.0, 0.05),
    ],
    ids=[
        *("the name", "the name dealt out", "all names", "its first two words", "its first word"),
        *("the question", "another question's answer", "another question"),
    ],
)
def test_attacks_on_the_measure_with_real_options(attack, least, most):
    """The figures of docs/rag.md: what is seen of an answer, and what is taken for one."""
    questions = read_questions(MEDQA[0])
    others = [*questions[1:], questions[0]]
    named = [
        name_an_option(attack(question, other), question.text, list(question.options.values()))
        for question, other in zip(questions, others, strict=True)
    ]
    assert least <= sum(named) / len(named) <= most


FOUR_SENTENCES = "It was found. It is amber! What is its origin? Tell me."


def copied(**metadata):
    guess = {"best_guess": "Arlen", "confirming_evidence": "its origin"}
    plan = PLAN | guess | {"discriminating_features": ["amber", "ribbed"]}
    (rollout,) = rollouts(GOLD, plan=plan, question=FOUR_SENTENCES, **metadata)
    replies = {name: parse_queries(texts[0]) for name, texts in copied_replies([rollout]).items()}
    assert all(isinstance(reply, Queries) and not reply.surplus for reply in replies.values())
    return {name: reply.texts for name, reply in replies.items()}


def test_plan_question_and_options_are_copied():
    assert copied() == {
        "copied_plan": ("amber", "ribbed", "Arlen its origin"),
        "copied_question": ("It was found.", "It is amber!", "What is its origin? Tell me."),
        "copied_options": ("Borvik", "Arlen", "Calder Dunmar"),
    }


#: Every mark of reasoning begins with one of the characters that are left out.
NO_REASONING = st.characters(codec="utf-8", exclude_characters="<[\u25c1")


def replies_that_copy(question, features):
    plan = PLAN | {"discriminating_features": features}
    options = dict(zip("ABCD", features, strict=False))
    metadata = {"plan": plan, "question": question, "options": options}
    copies = copied_replies([Rollout("q", "q", "test", "", "", metadata)])
    return [reply for (reply,) in copies.values()]


@given(
    st.text(NO_REASONING, max_size=900),
    st.lists(st.text(NO_REASONING, max_size=50), min_size=1, max_size=4),
)
def test_no_text_breaks_the_format(question, features):
    for reply in replies_that_copy(question, features):
        assert isinstance(parse_queries(reply), Queries)


def test_a_copy_that_begins_to_reason_is_no_answer():
    for reply in replies_that_copy("Why <think> so?", ["<think>"]):
        assert isinstance(parse_queries(reply), Unparseable)
