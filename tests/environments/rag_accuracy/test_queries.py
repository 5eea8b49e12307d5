"""What is read as three queries, and what is wrong with them."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.rag_accuracy.queries import (
    MAX_QUERY_CHARACTERS,
    Queries,
    parse_queries,
    query_defects,
)
from environments.replies import Unparseable

LINES = (files("environments.rag_accuracy") / "cases.jsonl").read_text("utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]
QUESTION = "Which antidote helps a man who drank ethylene glycol?"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_cases_that_are_listed(case) -> None:
    found = parse_queries(case["reply"])
    if case["queries"] is None:
        assert isinstance(found, Unparseable)
        assert found.reason
    else:
        assert found == Queries(tuple(case["queries"]), case["surplus"])


@pytest.mark.parametrize(
    "reply",
    [
        "Query 1: " * 12_000,
        "*" * 100_000,
        "Query 1:" + " " * 100_000,
        "<think>" * 15_000,
        "Query 1: x\n" * 10_000,
        "\x00" * 100_000,
    ],
    ids=lambda reply: reply[:10],
)
def test_100_kilobytes_of_garbage_are_refused(reply: str) -> None:
    assert isinstance(parse_queries(reply), Unparseable)


@given(st.text(max_size=400))
def test_no_text_raises(text: str) -> None:
    assert isinstance(parse_queries(text), Queries | Unparseable)


words = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
one_query = st.lists(words, min_size=1, max_size=8).map(" ".join)


@given(st.tuples(one_query, one_query, one_query))
def test_what_is_written_in_the_format_is_read_again(texts: tuple[str, ...]) -> None:
    reply = "\n".join(f"Query {n}: {text}" for n, text in enumerate(texts, start=1))
    assert parse_queries(reply) == Queries(texts)


def test_a_query_may_be_so_long_and_no_longer() -> None:
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
        (
            ("antidote helps man drank ethylene glycol which who and more", "x", "y"),
            ("copied", None, None),
        ),
    ],
)
def test_defects(queries: tuple[str, ...], defects: tuple[str | None, ...]) -> None:
    assert query_defects(queries, QUESTION) == defects


def test_a_question_without_words_cannot_be_copied() -> None:
    assert query_defects(("x", "y", "z"), "?") == (None, None, None)
