"""Reading a generator's answer strictly, and asking for it."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Failure
from environments.chat import ChatReply, ChatRequest, quote
from environments.rag.reader import (
    LETTERS,
    Answer,
    ChatGenerator,
    Exam,
    ExtractiveReader,
    parse_answer,
    request_of,
)

EXAM = Exam.of("Which?", {"B": "two", "A": "one"}, ("First passage.", "Second passage."))


def answer(letter: str) -> str:
    return json.dumps({"reasoning": "A seems wrong, so B.", "answer": letter})


class Canned:
    """A chat model that answers from a list."""

    identity = "canned"

    def __init__(self, *replies: ChatReply) -> None:
        self.replies = replies
        self.asked: list[ChatRequest] = []

    def ask(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        self.asked += requests
        return list(self.replies)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        (answer("B"), "B"),
        ("The answer is B", None),
        ('{"answer": "B"}', None),
        ('{"reasoning": "x", "answer": "b"}', None),
        ('{"reasoning": "x", "answer": "AB"}', None),
        ('{"reasoning": "x", "answer": ["B"]}', None),
        ('{"reasoning": "x", "answer": null}', None),
        ('["B"]', None),
    ],
    ids=lambda text: str(text)[:30],
)
def test_what_is_an_answer(reply: str, letter: str | None) -> None:
    """What may stand around one is said for all readers in tests/environments/test_readers.py."""
    assert parse_answer(reply, LETTERS) == letter


@given(st.text(max_size=300))
def test_no_reply_raises(reply: str) -> None:
    parse_answer(reply, LETTERS)


def test_a_failed_call_and_an_unknown_letter_are_no_answers() -> None:
    model = Canned(
        ChatReply(answer("B")),
        ChatReply(None, Failure("transport_timeout", "no answer")),
        ChatReply(answer("D")),
    )
    found = ChatGenerator(model).answer([EXAM] * 3)
    assert found[0] == Answer("B")
    assert found[1] == Answer(None, Failure("transport_timeout", "generator: no answer"))
    none = Failure("invalid_reply", "generator: its answer is none of the options")
    assert found[2] == Answer(None, none)


def test_the_prompt_numbers_the_documents_and_letters_the_options() -> None:
    request = request_of(EXAM)
    assert request.messages[1]["content"] == (
        f"Documents:\n[1] {quote('First passage.')}\n[2] {quote('Second passage.')}\n\n"
        f"Question: {quote('Which?')}\n\nOptions:\nA. {quote('one')}\nB. {quote('two')}"
    )
    assert request.schema is not None
    assert request.schema["properties"]["answer"] == {"enum": ["A", "B"]}
    assert "Documents" not in request_of(Exam.of("Which?", {"A": "one"})).messages[1]["content"]


@pytest.mark.parametrize(
    ("documents", "letter"),
    [
        ((), "A"),
        (("Amber and ribbed stones come from Arlen.",), "B"),
        (("Green stones come from Borvik.", "Amber ribbed stones come from Arlen."), "B"),
        (("Amber ribbed stones come from Arlen.", "Green stones come from Borvik."), "B"),
        (("Stones come from Calder.", "Stones come from Calder.", "Stones from Borvik."), "C"),
        (("Arlene is no Arlen-like name",), "B"),
        (("Arlene",), "A"),
    ],
)
def test_the_extractive_reader(documents: tuple[str, ...], letter: str) -> None:
    options = {"A": "Borvik", "B": "Arlen", "C": "Calder", "D": "Dunmar"}
    exam = Exam.of("Where do amber ribbed stones come from?", options, documents)
    assert ExtractiveReader().answer([exam]) == [Answer(letter)]


def test_a_generator_is_asked_before_it_is_needed() -> None:
    canned = Canned(ChatReply(answer("A")))
    assert ChatGenerator(canned).check() is None
    assert canned.asked
    assert (
        ChatGenerator(Canned(ChatReply(None, Failure("rejected", "HTTP 401")))).check()
        == "generator: HTTP 401"
    )
    assert "none of the options" in (ChatGenerator(Canned(ChatReply("Yes."))).check() or "")
