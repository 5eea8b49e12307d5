"""The reader of replies: every case of cases.jsonl, and what holds of any text."""

import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.pubmedqa import LABELS
from environments.pubmedqa.reply import TAGS, parse_reply

CASES = [
    json.loads(line)
    for line in (files("environments.pubmedqa") / "cases.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_cases(case: dict[str, Any]) -> None:
    reply = parse_reply(case["reply"] * case.get("times", 1))
    assert (reply.answer, reply.tags_in_place) == (case["answer"], case["tags_in_place"])
    assert bool(reply.problem) == (reply.answer is None)


@pytest.mark.parametrize("dropped", range(4))
def test_each_tag_counts_by_itself(dropped: int) -> None:
    """Without one tag the others stay in place, unless what stands before them no longer fits."""
    parts = ["<reasoning>", "Fell.", "</reasoning>", "", "<answer>", "yes", "</answer>"]
    text = "".join(part for i, part in enumerate(parts) if i != 2 * dropped)
    # Without </reasoning> there is text before <answer>; without <answer>, before nothing at all.
    assert parse_reply(text).tags_in_place == {0: 3, 1: 2, 2: 3, 3: 3}[dropped]


pieces = st.lists(
    st.sampled_from([*TAGS, *LABELS, " ", "\n", "eyes", "Yes.", "text"]), max_size=12
).map("".join)


@given(pieces)
def test_all_tags_in_place_is_exactly_the_form(text: str) -> None:
    reply = parse_reply(text)
    assert 0 <= reply.tags_in_place <= 4
    if reply.keeps_format:
        assert reply.answer in LABELS
        assert [text.count(tag) for tag in TAGS] == [1, 1, 1, 1]
        assert text.strip().startswith("<reasoning>")
        assert text.strip().endswith("</answer>")


@given(pieces, st.sampled_from(LABELS))
def test_the_last_answer_decides(before: str, label: str) -> None:
    assert parse_reply(f"{before}<answer>{label}</answer>").answer == label


@given(st.text())
def test_text_without_an_answer_element_has_no_answer(text: str) -> None:
    if "<answer>" not in text:
        assert parse_reply(text).answer is None
