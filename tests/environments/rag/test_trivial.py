"""Trivial ways to search: what they copy, and that they keep the format."""

from hypothesis import given
from hypothesis import strategies as st

from environments.base import Rollout
from environments.rag.queries import (
    Queries,
    Unparseable,
    copied_replies,
    parse_queries,
)
from tests.environments.rag.conftest import GOLD, rollouts

PLAN = {
    "discriminating_features": ["amber", "ribbed"],
    "best_guess": "Arlen",
    "reasoning": "It fits.",
    "confirming_evidence": "its origin",
    "alternative_if_wrong": "green",
}
QUESTION = "It was found. It is amber! What is its origin? Tell me."


def copied(**metadata: object) -> dict[str, tuple[str, ...]]:
    (rollout,) = rollouts(GOLD, plan=PLAN, question=QUESTION, **metadata)
    replies = {name: parse_queries(texts[0]) for name, texts in copied_replies([rollout]).items()}
    assert all(isinstance(reply, Queries) and not reply.surplus for reply in replies.values())
    return {name: reply.texts for name, reply in replies.items()}


def test_plan_question_and_options_are_copied() -> None:
    assert copied() == {
        "copied_plan": ("amber", "ribbed", "Arlen its origin"),
        "copied_question": ("It was found.", "It is amber!", "What is its origin? Tell me."),
        "copied_options": ("Borvik", "Arlen", "Calder Dunmar"),
    }


#: Every mark of reasoning begins with one of the characters that are left out.
NO_REASONING = st.characters(exclude_characters="<[\u25c1")


def replies_that_copy(question: str, features: list[str]) -> list[str]:
    plan = PLAN | {"discriminating_features": features}
    options = dict(zip("ABCD", features, strict=False))
    metadata = {"plan": plan, "question": question, "options": options}
    copies = copied_replies([Rollout("q", "q", "test", "", "", metadata)])
    return [reply for (reply,) in copies.values()]


@given(
    st.text(NO_REASONING, max_size=900),
    st.lists(st.text(NO_REASONING, max_size=50), min_size=1, max_size=4),
)
def test_no_text_breaks_the_format(question: str, features: list[str]) -> None:
    for reply in replies_that_copy(question, features):
        assert isinstance(parse_queries(reply), Queries)


def test_a_copy_that_begins_to_reason_is_no_answer() -> None:
    for reply in replies_that_copy("Why <think> so?", ["<think>"]):
        assert isinstance(parse_queries(reply), Unparseable)
