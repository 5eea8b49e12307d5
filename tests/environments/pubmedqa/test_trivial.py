"""Rewards of replies that read nothing, none of which passes for a faithful one."""

from statistics import fmean

import pytest

from environments.base import Rollout
from environments.pubmedqa import LABELS, PubMedQAEnvironment, PubMedQASettings
from environments.pubmedqa.environment import copied_reasons
from environments.pubmedqa.reply import parse_reply, reply_text

QUESTION = "Does Belorin reduce pain?"
DECIDES = "Pain fell in the treated group (P = .01)."
OTHER = "Nausea was the same in both of the arms (P = .61)."
CONTEXT = f"METHODS: We gave Belorin to 40 adults with pain.\nRESULTS: {OTHER} {DECIDES}"

ENVIRONMENT = PubMedQAEnvironment(PubMedQASettings())


def rollout(completion, gold="yes"):
    metadata = {"gold": gold, "context": CONTEXT, "question": QUESTION, "finding": DECIDES}
    return Rollout("q", "q", "test", "", completion, metadata)


def value(completion, gold="yes"):
    [score] = ENVIRONMENT.score([rollout(completion, gold)])
    assert score.value is not None
    return score.value


def test_a_right_answer_with_a_true_quote_to_the_point_is_the_best_reply():
    faithful = value(reply_text(f'"{DECIDES}"', "yes"))
    others = {
        name: value(reply_text(reasoning, "yes"))
        for name, reasoning in {
            "another finding": f'"{OTHER}"',
            "no finding": '"We gave Belorin to 40 adults with pain."',
            "both findings": f'"{OTHER} {DECIDES}"',
            "one word": '"Pain" fell.',
            "none": "Pain fell.",
            "made up": '"Pain fell in all of the adults."',
            "a number made up": f'"{DECIDES}" (P = .04)',
        }.items()
    }
    assert faithful == pytest.approx(3.8)
    assert {name for name, found in others.items() if found >= faithful} == set()
    # A false quote is worse than none.
    for name in ("made up", "a number made up"):
        assert others[name] == pytest.approx(1.8)
    assert others["none"] == pytest.approx(2.8)
    assert value(reply_text(f'"{DECIDES}"', "no")) < min(others.values())


def test_no_constant_reply_comes_near_a_faithful_one():
    replies = ENVIRONMENT.constant_replies()
    assert {parse_reply(reply).answer for reply in replies} == set(LABELS)
    assert all(parse_reply(reply).keeps_format for reply in replies)
    best = max(fmean(value(reply, gold) for gold in LABELS) for reply in replies)
    faithful = fmean(value(reply_text(f'"{DECIDES}"', gold), gold) for gold in LABELS)
    assert faithful - best > 1.5


def test_copied_reasons_take_the_commonest_answer_and_a_true_sentence():
    answers = ("no", "no", "yes")
    rollouts = [rollout(reply_text("Pain fell.", answer)) for answer in answers]
    found = ENVIRONMENT.trivial_replies(rollouts, 0)
    replies = {name: parse_reply(given[0]) for name, given in found.items()}
    assert {name.rpartition(", ")[2]: reply.reasoning for name, reply in replies.items()} == {
        "first finding": f'"{OTHER}"',
        "last finding": f'"{DECIDES}"',
        "any finding": replies["commonest answer, any finding"].reasoning,
        "finding closest to the question": f'"{DECIDES}"',
        "first words of each finding": (
            '"Nausea was the same in both" "Pain fell in the treated group"'
        ),
    }
    assert {reply.answer for reply in replies.values()} == {"no"}
    assert all(len(given) == len(rollouts) for given in found.values())


def test_copied_reasons_do_not_look_at_the_gold_answer():
    rollouts = [rollout("unreadable", gold) for gold in ("no", "maybe", "maybe")]
    again = [rollout("unreadable", gold) for gold in ("yes", "yes", "yes")]
    assert copied_reasons(rollouts, LABELS, 1) == copied_reasons(again, LABELS, 1)
