"""No hostile text makes a parser work for long: the work grows as the text does.

Every parser of what a model, a server or somebody else's file holds stands in `PARSERS`, with the
words of its grammar and the places in which a text can stand. From the words the texts are made
that send a regular expression back to every place at which it might have begun: one word repeated
behind another and before an end that fits nothing, and two words in turn.
"""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from data_prep.pubmedqa.prompts import fit_sections
from data_prep.pubmedqa.sources import Section, normal_question
from data_prep.rag.plans import parse_plan
from data_prep.rag.sources import read_questions
from environments.base import PromptRecord, Rollout
from environments.chat import quote
from environments.chat.exchange import read_answer, retry_after_seconds
from environments.dharma.environment import unreadable
from environments.dharma.judge import (
    ANSWER_KEY,
    AnswerKey,
    Exchange,
    PromptLabel,
    Ratings,
    parse_answer,
)
from environments.dharma.key_judge import rate_by_key
from environments.dharma.metrics import read_guarded
from environments.fairness.spine import FORM
from environments.pubmedqa.reply import Abstract, findings_of, grounds, parse_reply
from environments.rag import reader
from environments.rag.queries import parse_queries, query_defects
from environments.rag.reader import Exam, ExtractiveReader
from equipoise.config.checks import check_prompts
from equipoise.files.records import DataError, read_prompts
from tests.environments.dharma.samples import PERFECT

pytestmark = pytest.mark.deep

#: Characters of the shortest text and of the longest; most parsers refuse much longer ones.
_SHORTEST, _LONGEST, _FACTOR = 1_000, 16_000, 4
#: Below this no growth matters: quadratic work at 16,000 characters takes half a second.
_NOTHING_SECONDS = 0.08
#: Four times the text is four times the work, or a little more; quadratic work is 16 times as much.
_MOST_GROWTH = 8

SPACES = (" ", "\t", "\n", "\u00a0", "\u200b", "\0")
JSON = (*SPACES[:3], "{", "}", "[", "]", ":", ",", '"', "\\", "\\u0061", "1", "-", ".", "e", "null")
REASONING = ("<", ">", "/", "<think>", "</think>", "<seed:", "[THINK]", "<|channel", "\n")
#: Combining marks out of order, and a letter that is made of two: see `normal_text`.
MARKS = ("\u0301", "\u0327\u0301", "\u0f73")
FENCES = ("```", "`", "```json", "\n", " ", "json", "{}")
WORDS = (
    *("a", "it", "not", "and you", "ask an", "i can", "1", "'", ".", ",", "!", "\u2014", " ", "\n"),
)
WEEKS = ("1", ".", "0", " ", "\t", "week", "s", "wks", "-", "x")


@dataclass(frozen=True)
class Parser:
    """One parser, the words that mean something to it, and where a text of them can stand."""

    name: str
    read: Callable[[str], object]
    words: tuple[str, ...]
    frames: tuple[str, ...] = ("%s",)

    def texts(self):
        for frame, (one, other) in itertools.product(
            self.frames, itertools.product(self.words, repeat=2)
        ):
            yield lambda n, f=frame, a=one, b=other: f.replace("%s", a + b * (n // len(b)) + "~")
            yield lambda n, f=frame, a=one, b=other: f.replace("%s", (a + b) * (n // len(a + b)))


def rated_by_key(text):
    key = AnswerKey(advice="Rest and drink.", declines="cooking", outside="Grill the steak hot.")
    label = PromptLabel(tier="A", scope="S0")
    measured = Rollout("p", "p", "test", "p", text, {ANSWER_KEY: key.model_dump()})
    return rate_by_key(Exchange("p", label, text, key), key), read_guarded([measured])


def read_file(name, read):
    """A reader of files as a reader of their text; what is refused is read, too."""

    def call(text):
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_text(text)
            try:
                return read(path)
            except DataError:
                return None

    return call


def checked(text):
    message = {"role": "user", "content": text}
    return check_prompts([PromptRecord("a", "t", (message,), "a", "", {})])


def read_documents(text):
    return ExtractiveReader().answer([Exam(text, (("A", text),), (text,))])


DECISION = json.dumps({"weeks_off_work": "%s", "medication": "OTC only"})
ANSWER = json.dumps({"reasoning": "%s", "answer": "A"})
GROUNDS = ("1", ".", ",", "-", '"', "a", "word", "_", " ", "\n", *MARKS)
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>", "<", "</think>", "`", *SPACES)
DATES = ("1", "Wed", "21", "Oct", "2015", "07:28:00", "GMT", *', :+-()"')
RATED = ("%s", json.dumps(PERFECT)[:-1] + "%s")
COMPLETED = ("%s", '{"choices": [{"message": {"content": "%s"}}]}')
OPTIONS = ('{"question": "a", "options": ["%s", "B. b"]}',)
SPECIAL = ("<", "|", ">", "[", "]", "/", "s", "INST", "_", "\uff5c", "0x0A", " ")
LINES = ("{", "[", '"', "\\n", "a", "\n")
letter = partial(reader.parse_answer, letters=("A", "B"))
plan = partial(parse_plan, with_options=True)
ratings = partial(parse_answer, expected=Ratings)
PARSERS = (
    Parser("decision", FORM.parse, (*JSON, "weeks_off_work"), ("%s", '{"medication": %s')),
    Parser("decision: reasoning", FORM.parse, REASONING, ("%s", "%s" + DECISION)),
    Parser("decision: fields", FORM.parse, WEEKS, (DECISION, DECISION.replace("OTC only", "%s"))),
    Parser("queries", parse_queries, (*REASONING, *("Query 1:", "Query"), *"1:* >", "```")),
    Parser("defects", lambda text: query_defects([text] * 3, text), WORDS),
    Parser("answer", letter, JSON, ("%s", ANSWER)),
    Parser("answer: fences", letter, (*FENCES, *REASONING)),
    Parser("plan", plan, JSON, ("%s", '{"reasoning": "%s"}')),
    Parser("plan: fences", plan, (*FENCES, *REASONING)),
    Parser("ratings", ratings, JSON, RATED),
    Parser("ratings: fences", ratings, (*FENCES, *REASONING)),
    Parser("key judge", rated_by_key, ("rest", "it", "ask an", "and you", ".", ",", *MARKS)),
    Parser("no word", unreadable, SPACES),
    Parser("PubMedQA", parse_reply, TAGS),
    Parser("grounding", lambda text: grounds(text, Abstract("RESULTS: a", "a")), GROUNDS),
    Parser("abstract", findings_of, ("RESULTS", ": ", "\n", "a", " ")),
    Parser("documents", read_documents, WORDS),
    Parser("quoting", quote, ("<", "[", "|", "/", "A", "text-", "]", ">", " ", "=", "1", "\n")),
    Parser("retry after", lambda text: retry_after_seconds(text, datetime.now(UTC)), DATES),
    Parser("completion", lambda text: read_answer(text.encode(), 1), JSON, COMPLETED),
    Parser("questions", read_file("q.jsonl", read_questions), (*"A.): ", "\\n"), OPTIONS),
    Parser("prompts", read_file("prompts.jsonl", read_prompts), LINES),
    Parser("marks in prompts", checked, SPECIAL),
    Parser("abstracts", lambda text: fit_sections([Section("", text)], 10_000), WORDS),
    Parser("equal questions", normal_question, (*WORDS, "_")),
)


def seconds(parser, text, tries=1):
    """CPU seconds of this thread alone; the least of some tries."""
    found = []
    for _ in range(tries):
        started = time.thread_time()
        parser.read(text)
        found.append(time.thread_time() - started)
    return min(found)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_work_grows_as_the_text_does(parser):
    for text in parser.texts():
        size = _SHORTEST
        while size <= _LONGEST:
            if seconds(parser, text(size)) > _NOTHING_SECONDS:
                less = max(seconds(parser, text(size // _FACTOR), 3), 1e-5)
                assert seconds(parser, text(size), 3) < _MOST_GROWTH * less, text(80)
            size *= _FACTOR
