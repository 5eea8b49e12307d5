"""Reading a generator's answer strictly, and asking for it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Failure
from environments.chat import MATERIAL, ChatReply, quote
from environments.rag.reader import (
    LETTERS,
    Answer,
    ChatGenerator,
    Exam,
    ExtractiveReader,
    parse_answer,
    request_of,
)
from tests.environments.models import Scripted

EXAM = Exam.of("Which?", {"B": "two", "A": "one"}, ("First passage.", "Second passage."))


def answer(letter):
    return json.dumps({"reasoning": "A seems wrong, so B.", "answer": letter})


def scripted(*replies):
    told = iter(replies)
    return Scripted(lambda _: next(told))


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        (answer("B"), "B"),
        ('{"answer": "B"}', None),
        ('{"reasoning": "x", "answer": "b"}', None),
        ('{"reasoning": "x", "answer": "AB"}', None),
        ('{"reasoning": "x", "answer": ["B"]}', None),
    ],
)
def test_what_is_an_answer(reply, letter):
    """Text around an answer is tested for all readers in tests/environments/test_readers.py."""
    assert parse_answer(reply, LETTERS) == letter


@given(st.text(max_size=300))
def test_no_reply_raises(reply):
    parse_answer(reply, LETTERS)


def test_the_prompt_numbers_the_documents_and_letters_the_options():
    request = request_of(EXAM)
    assert request.messages[1]["content"] == (
        f"Documents:\n[1] {quote('First passage.')}\n[2] {quote('Second passage.')}\n\n"
        f"Question: {quote('Which?')}\n\nOptions:\nA. {quote('one')}\nB. {quote('two')}"
    )
    assert MATERIAL in request.messages[0]["content"]
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
def test_the_extractive_reader(documents, letter):
    options = {"A": "Borvik", "B": "Arlen", "C": "Calder", "D": "Dunmar"}
    exam = Exam.of("Where do amber ribbed stones come from?", options, documents)
    assert ExtractiveReader().answer([exam]) == [Answer(letter)]


def test_a_generator_is_asked_before_it_is_needed():
    sound = scripted(answer("A"))
    assert ChatGenerator(sound).check() is None
    assert sound.requests
    refused = scripted(ChatReply(None, Failure("rejected", "HTTP 401")))
    assert ChatGenerator(refused).check() == "generator: HTTP 401"
    assert ChatGenerator(scripted("Yes.")).check()
