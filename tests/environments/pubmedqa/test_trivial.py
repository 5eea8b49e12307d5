"""Rewards of replies that read nothing, none of which passes for a faithful one."""

from statistics import fmean

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
