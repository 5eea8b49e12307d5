"""The PubMedQA environment: values, weights, what is never paid for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.base import Rollout
from environments.pubmedqa import LABELS, PubMedQAEnvironment, PubMedQASettings
from environments.pubmedqa.reply import TAGS

CONTEXT = "METHODS: We gave it to forty adults.\nRESULTS: Pain fell in the treated group."
QUESTION = "Does it reduce pain?"
QUOTE = '"Pain fell in the treated group."'


def rollout(completion, gold="yes", prompt=""):
    metadata = {"gold": gold, "context": CONTEXT, "question": QUESTION}
    return Rollout("q1", "q1", "train", prompt, completion, metadata)


def reply(answer, reasoning="Pain fell."):
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>"


def value(completion, gold="yes", prompt="", **settings):
    environment = PubMedQAEnvironment(PubMedQASettings.model_validate(settings))
    [score] = environment.score([rollout(completion, gold, prompt)])
    assert score.value is not None
    return score.value


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (reply("yes", QUOTE), 3.8),
        (reply("yes"), 2.8),
        (reply("yes", '"Pain fell in all adults."'), 1.8),
        (reply("no"), 0.8),
        (reply("no", QUOTE), -0.2),
        (reply("no", '"Pain fell in all adults."'), -0.2),
        (reply("unclear"), -0.4),
        ("<answer>yes</answer>", -0.6),
        ("<answer>yes</answer><reasoning>Pain fell.</reasoning>", -1.0),
        (f"{reply('no')}<answer>yes</answer>", -0.6),
        ("yes", -1.0),
    ],
)
def test_value(completion, expected):
    assert value(completion) == pytest.approx(expected)


@given(st.text() | st.sampled_from([reply(label) for label in LABELS]))
def test_the_prompt_is_never_read(prompt):
    assert value("I cannot say.", prompt=prompt) == -1.0
    assert value(reply("no"), prompt=prompt) == value(reply("no"))


@pytest.mark.parametrize("key", ["context", "question"])
def test_reasons_are_checked_against_the_prompt(key):
    environment = PubMedQAEnvironment(PubMedQASettings())
    metadata = {"gold": "yes", "context": CONTEXT, "question": QUESTION}
    bare = Rollout("q1", "q1", "train", "", reply("yes"), metadata | {key: None})
    with pytest.raises(ValueError, match=f"'q1' has no {key}"):
        environment.score([bare])


@pytest.mark.parametrize("metadata", [{}, {"gold": "perhaps"}, {"gold": None}], ids=str)
def test_a_prompt_without_gold_is_refused(metadata):
    environment = PubMedQAEnvironment(PubMedQASettings())
    with pytest.raises(ValueError, match="'q1' has gold"):
        environment.score([Rollout("q1", "q1", "train", "", reply("yes"), metadata)])


def test_no_wrong_answer_may_beat_a_right_one():
    with pytest.raises(ValidationError, match="grounding_weight"):
        PubMedQASettings(grounding_weight=2.0)


pieces = st.lists(st.sampled_from([*TAGS, *LABELS, "Pain fell.", QUOTE, "\n"]), max_size=9).map(
    "".join
)
settings = st.fixed_dictionaries(
    {
        "correctness_weight": st.floats(1, 100),
        "tag_weight": st.floats(0.01, 100),
        "grounding_weight": st.floats(0, 0.99),
    }
)


@given(pieces, st.sampled_from(LABELS), settings)
def test_whatever_the_weights_a_broken_format_is_below_every_kept_one(broken, label, weights):
    environment = PubMedQAEnvironment(PubMedQASettings.model_validate(weights))
    kept, right, other = environment.score(
        [
            rollout(reply(label, '"Made up from here to there."')),
            rollout(reply("yes", QUOTE)),
            rollout(broken),
        ]
    )
    assert kept.value is not None
    assert other.value is not None
    if other.components["format"] < 4:
        assert other.value < kept.value
    assert other.value <= right.value
