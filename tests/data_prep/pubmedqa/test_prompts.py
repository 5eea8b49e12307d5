"""The prompt of a question, and abstracts fitted to a budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.pubmedqa.prompts import (
    context_text,
    estimate_tokens,
    fit_sections,
    prompt_record,
    question_of,
)
from data_prep.pubmedqa.sources import Item, Section

ABSTRACT = (
    Section("BACKGROUND", "Nobody knew. It was open."),
    Section("METHODS", "We asked 60 adults. P < .05 was taken vs. placebo."),
    Section("RESULTS", "Pain fell by 12.5%. Fever did not."),
)
ITEM = Item("101", "Does it work?", ABSTRACT, "yes")


def test_the_prompt() -> None:
    record = prompt_record(ITEM, "train", 3, 960)
    assert (record.id, record.set_id, record.split, record.task) == (
        "101",
        "101",
        "train",
        "pubmedqa",
    )
    assert [message["role"] for message in record.messages] == ["system", "user"]
    assert record.messages[1]["content"] == (
        "Context:\n"
        "BACKGROUND: Nobody knew. It was open.\n"
        "METHODS: We asked 60 adults. P < .05 was taken vs. placebo.\n"
        "RESULTS: Pain fell by 12.5%. Fever did not.\n"
        "\n"
        "Question: Does it work?"
    )
    assert record.metadata["gold"] == "yes"
    assert record.messages[1]["content"].startswith(f"Context:\n{record.metadata['context']}\n")
    assert question_of(record) == "Does it work?"


RESULTS = "RESULTS: Pain fell by 12.5%. Fever did not."
METHODS = "METHODS: We asked 60 adults. P < .05 was taken vs. placebo."


@pytest.mark.parametrize(
    ("budget", "kept"),
    [
        (200, context_text(ABSTRACT)),
        (50, f"BACKGROUND: It was open.\n{METHODS}\n{RESULTS}"),
        (33, f"METHODS: P < .05 was taken vs. placebo.\n{RESULTS}"),
        (18, RESULTS),
        (9, "RESULTS: Fever did not."),
        (5, "RESULTS: not."),
    ],
    ids=["all", "half a section", "half of the next", "one section", "one sentence", "one word"],
)
def test_sentences_are_left_out_from_the_beginning(budget: int, kept: str) -> None:
    assert context_text(fit_sections(ABSTRACT, budget)) == kept


words = st.lists(st.sampled_from(["Pain", "fell", "by", "12.5%", "mitochondria."]), min_size=1)
sections = st.lists(
    st.builds(Section, st.sampled_from(["", "RESULTS"]), words.map(" ".join)),
    min_size=1,
    max_size=4,
)


@given(sections, st.integers(1, 80))
def test_what_is_kept_fits_and_is_the_end_of_the_abstract(
    abstract: list[Section], budget: int
) -> None:
    kept = fit_sections(abstract, budget)
    said = " ".join(section.text for section in kept).strip()
    assert " ".join(section.text for section in abstract).endswith(said)
    if said:
        assert estimate_tokens(context_text(kept)) <= budget


@given(sections, st.integers(1, 80))
def test_more_room_keeps_more(abstract: list[Section], budget: int) -> None:
    less, more = (
        " ".join(section.text for section in fit_sections(abstract, size)).strip()
        for size in (budget, budget + 1)
    )
    assert more.endswith(less)


def test_the_question_is_never_cut() -> None:
    long = Item("9", "Does it work " + "very " * 400 + "well?", ABSTRACT, "yes")
    with pytest.raises(ValueError, match="the question of 9 alone fills the prompt: raise prompt"):
        prompt_record(long, "train", 3, 300)
    assert question_of(prompt_record(long, "train", 3, 960)) == long.question
