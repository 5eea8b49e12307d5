"""All readers of replies agree: one table of what models write around an answer, for each of them.

A row is a frame around a reader's own good answer, `%s`, and what becomes of it: it is READ as it
is, READ AT A COST of a part of the format reward, or REFUSED.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from data_prep.rag.plans import parse_plan
from environments.dharma.judge import Ratings, parse_answer
from environments.fairness.decision import Decision
from environments.fairness.spine import FORM
from environments.pubmedqa.reply import parse_reply, reply_text
from environments.rag.queries import Queries, parse_queries, three_queries
from environments.rag.reader import parse_answer as parse_letter
from tests.environments.dharma.samples import PERFECT
from tests.environments.rag.conftest import PLAN

Read = Literal["read", "read at a cost", "refused"]
READ, AT_A_COST, REFUSED = "read", "read at a cost", "refused"


@dataclass(frozen=True)
class Reader:
    """A reader, an answer that it reads, another one, and what it makes of a reply."""

    good: str
    other: str
    outcome: Callable[[str], Read]


def decision(reply):
    found = FORM.parse(reply)
    if not isinstance(found, Decision) or found.values[-1] != "good":
        return REFUSED
    return AT_A_COST if found.trailing else READ


def queries(reply):
    found = parse_queries(reply)
    if not isinstance(found, Queries) or found.texts[0] != "good":
        return REFUSED
    return AT_A_COST if found.surplus else READ


def pubmedqa(reply):
    found = parse_reply(reply)
    if found.answer != "yes":
        return REFUSED
    return READ if found.keeps_format else AT_A_COST


def json_reader(read, good, other):
    expected = read(json.dumps(good))
    return Reader(
        json.dumps(good),
        json.dumps(other),
        lambda reply: READ if read(reply) == expected else REFUSED,
    )


DECISION = FORM.decision(4, 2, 4.0, 1, 0, 0, "good").to_dict()
READERS = {
    "decision": Reader(json.dumps(DECISION), json.dumps(DECISION | {"rationale": "o"}), decision),
    "queries": Reader(three_queries(["good"]), three_queries(["other"]), queries),
    "pubmedqa": Reader(reply_text("Pain fell.", "yes"), reply_text("Pain rose.", "no"), pubmedqa),
    "generator": json_reader(
        partial(parse_letter, letters=("A", "B")),
        *({"reasoning": "good", "answer": letter} for letter in "AB"),
    ),
    "plan": json_reader(
        partial(parse_plan, with_options=True), *(PLAN | {"best_guess": guess} for guess in "AB")
    ),
    "ratings": json_reader(
        partial(parse_answer, expected=Ratings), PERFECT, PERFECT | {"clarity": 0.5}
    ),
}

#: How models set their reasoning apart; the readers of vLLM 0.33 know these, among others.
TAGS = "think THINK thinking thought scratchpad analysis reflection seed:think mm:think"
MARKS = (
    *((f"<{name}>", f"</{name}>") for name in (*TAGS.split(), "ifm|think_fast")),
    ("[THINK]", "[/THINK]"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
)
#: What looks for an answer in a text around it, and marks that down.
SEEK = dict.fromkeys(("decision", "queries", "pubmedqa"), AT_A_COST)

#: Frame, what every reader makes of it, and the readers that have a reason to do something else.
FRAMES: dict[str, tuple[str, Read, dict[str, Read]]] = {
    "plain": ("%s", READ, {}),
    "white space": ("\n \t%s \n\n", READ, {}),
    "a fence": ("```\n%s\n```", READ, {}),
    "a fence of JSON": ("```json\n%s\n```\n", READ, {}),
    "a fence of another language": ("```JSON5 \n%s\n```", READ, {}),
    "reasoning, then a fence": ("<think>hm</think>\n\n```\n%s\n```", READ, {}),
    "reasoning twice": ("<think>a</think><scratchpad>b</scratchpad>%s", READ, {}),
    "long reasoning": (f"<think>{'[{<' * 40_000}</think>%s", READ, {}),
    "half a character in the reasoning": ("<think>\ud800</think>%s", READ, {}),
    "reasoning at the end": ("%s<think>hm</think>", REFUSED, {}),
    "reasoning that begins again": ("<think>a</think><think>%s", REFUSED, {}),
    "a mark of the turn's end": ("%s<|im_end|>", READ, {}),
    "marks of the turn's end": ("%s\n</s><|eot_id|> ", READ, {}),
    "nothing": ("", REFUSED, {}),
    "half a character": ("%s\ud800", REFUSED, {}),
    "a fence that does not end": ("```\n%s", REFUSED, SEEK | {"decision": READ, "queries": READ}),
    # Text around an answer: an object is all of a reply; others look for it and mark it down.
    "text before": ("So:\n%s", REFUSED, SEEK | {"decision": READ}),
    "text behind": ("%s\nI am sure.", REFUSED, SEEK),
    "the same twice": ("%s\n%s", REFUSED, dict.fromkeys(("decision", "pubmedqa"), AT_A_COST)),
    "another one before": ("%o\n%s", REFUSED, {"pubmedqa": AT_A_COST}),
    "another one behind": ("%s\n%o", REFUSED, {}),
}
for begin, end in MARKS:
    FRAMES[f"{begin} to its end"] = (f"{begin}perhaps %o{end}%s", READ, {})
    FRAMES[f"{end} alone"] = (f"perhaps %o{end}\n%s", READ, {})
    FRAMES[f"{begin} without end"] = (f"{begin}perhaps %s", REFUSED, {})
# PubMedQA asks for reasoning in these tags, so that its draft is an answer too.
DRAFT = "<reasoning>perhaps %o</reasoning>%s"
FRAMES["<reasoning> to its end"] = (DRAFT, READ, {"pubmedqa": AT_A_COST})


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("frame", FRAMES)
def test_every_reader_does_what_the_table_says(frame, name):
    text, usually, otherwise = FRAMES[frame]
    reader = READERS[name]
    reply = text.replace("%s", reader.good).replace("%o", reader.other)
    assert reader.outcome(reply) == otherwise.get(name, usually)


#: How models write a word that was asked for alone.
DECORATED = (
    *("%s", "**%s**", r"\boxed{%s}", r"$\boxed{\text{%s}}$", "Final Answer: %s", "answer\uff1a%s"),
    *("\u00a0%s\u00a0", "(%s)", "**Final answer:** %s", "`%s`.", r"The final answer: \boxed{%s}"),
)


@pytest.mark.parametrize("frame", DECORATED)
def test_a_decorated_word_is_read_and_nothing_is_guessed(frame):
    def answers(word):
        text = frame.replace("%s", word)
        decision = FORM.parse(json.dumps(DECISION | {"medication": text}))
        return [
            parse_reply(f"<reasoning>Pain fell.</reasoning><answer>{text}</answer>").answer,
            parse_letter(json.dumps({"reasoning": "good", "answer": text}), ("yes", "no")),
            isinstance(decision, Decision) and decision.to_dict()["medication"],
        ]

    assert answers("yes")[:2] == ["yes", "yes"]
    assert answers("opioid")[2] == "opioid"
    assert answers("yes or no") == [None, None, False]
    assert answers("not yes") == [None, None, False]
