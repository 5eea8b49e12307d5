"""The environment of the rewriter: rewards, failures, metrics, the other modes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.base import Failure, PromptRecord, Rollout
from environments.chat import ChatReply, ModelSettings
from environments.rag import RagEnvironment, RagSettings
from environments.rag.environment import (
    Outcome,
    RewardSettings,
    broken_value,
    reward_components,
    reward_value,
)
from environments.rag.retrieval import fitting
from tests.environments.rag.conftest import GOLD, WRONG, queries, rollouts

BROKEN = "I would search for amber stones."


def built(index, **settings):
    return RagEnvironment(RagSettings.model_validate({"index": str(index), **settings}))


def scored(environment, *completions, **metadata):
    return environment.score(rollouts(*completions, **metadata))


def test_gain_is_against_the_plain_question(index):
    # With the question as the query the right passage is found as well.
    right, wrong = scored(built(index), GOLD, WRONG)
    assert (right.components["gain"], wrong.components["gain"]) == (0.0, -1.0)
    # With one whose three documents are notes it is not.
    vague = {"question": "The baker wrote page 1, page 2 and page 3 of the amber one."}
    right, wrong = scored(built(index, documents={"per_question": 3}), GOLD, WRONG, **vague)
    assert (right.components["gain"], wrong.components["gain"]) == (1.0, 0.0)


def test_defects_cost_a_third_of_the_penalty_each(index):
    found = built(index, reward={"outcome": "accuracy", "defect_penalty": 0.3})
    replies = [
        queries("amber ribbed origin", *rest)
        for rest in (("green", "page"), ("", "page"), ("", "ribbed amber origin"))
    ]
    values = [score.value for score in scored(found, *replies)]
    assert values == pytest.approx([1.2, 1.1, 1.0])


def test_recall_counts_where_relevant_documents_are_known(index):
    found = built(index, reward={"outcome": "accuracy", "recall_weight": 0.5})
    relevant = {"relevant": ["amber-origin", "nowhere"]}
    assert scored(found, GOLD, **relevant)[0].value == pytest.approx(1.2 + 0.25)
    unknown = scored(found, GOLD, relevant=[])[0]
    assert unknown.value == 1.2
    assert "recall" not in unknown.components


defects = st.lists(st.sampled_from([None, "empty", "repeated", "copied"]), min_size=3, max_size=3)
outcomes = st.builds(
    Outcome,
    *(st.booleans(), st.booleans(), st.none() | st.floats(0, 1), defects),
    *(st.booleans(), st.booleans()),
)
weights = st.builds(
    RewardSettings,
    outcome=st.sampled_from(["accuracy", "gain"]),
    format_weight=st.floats(0.01, 10),
    defect_penalty=st.floats(0, 10),
    recall_weight=st.floats(0, 10),
)


@given(outcomes, weights)
def test_every_kept_reply_is_above_a_broken_one(outcome, weights):
    kept = reward_value(reward_components(outcome, weights.outcome), weights)
    assert kept > broken_value(weights)


@given(outcomes, weights)
def test_no_reply_is_above_the_gold_one(outcome, weights):
    """Gold: right, every relevant document found, no defect, nothing beside the queries."""
    recall = None if outcome.recall is None else 1.0
    gold = Outcome(True, outcome.with_question, recall, (None,) * 3, False)
    best = reward_value(reward_components(gold, weights.outcome), weights)
    assert reward_value(reward_components(outcome, weights.outcome), weights) <= best


class Failing:
    """A chat model whose calls fail for prompts that hold a word."""

    identity = "failing"

    def __init__(self, word):
        self.word = word
        self.asked = 0

    def ask(self, requests):
        self.asked += len({request.messages[1]["content"] for request in requests})
        return [
            ChatReply(None, Failure("transport_timeout", "no answer"))
            if self.word in request.messages[1]["content"]
            else ChatReply('{"reasoning": "", "answer": "B"}')
            for request in requests
        ]


def with_model(index, word, **settings):
    found = built(index, generator={"model_name": "a/model"}, **settings)
    found.set_chat_model(Failing(word))
    return found


def test_a_failed_call_is_no_score(index):
    found = with_model(index, "green", reward={"outcome": "accuracy"})
    failed, answered = scored(found, GOLD, WRONG)
    assert failed.value is None
    assert failed.error == Failure("transport_timeout", "generator: no answer")
    assert "correct" not in failed.evidence
    assert answered.value == 1.2
    metrics = found.measure(rollouts(GOLD, WRONG), [failed, answered]).point_estimates()
    assert metrics["accuracy"] == 1.0
    assert metrics["format_rate"] == 1.0


def test_the_plain_question_is_asked_once_and_a_failure_again(index):
    found = with_model(index, "nothing like it")
    model = found._reader._model
    for _ in range(3):
        scored(found, WRONG)
    assert model.asked == 3 + 1
    model.word = "Question"
    scored(found, WRONG, question="Another?")
    scored(found, WRONG, question="Another?")
    assert model.asked == 4 + 2 * 2


def test_a_model_that_was_not_handed_in_is_a_bug(index):
    found = built(index, generator={"model_name": "a/model"})
    assert found.wanted_chat_model() == "a/model"
    with pytest.raises(ValueError, match="not handed in"):
        scored(found, GOLD)


def test_modes_are_on_the_same_questions(environment):
    other = Rollout("r", "r", "test", "", GOLD, rollouts(GOLD)[0].metadata | {"gold": "A"})
    found = [*rollouts(GOLD, WRONG), other]
    modes = environment.modes(found)
    assert list(modes.measured) == [
        "no_retrieval",
        "question",
        "question_more_documents",
        "question_without_its_first_sentence",
    ]
    assert all(m.clusters == ("q", "r") for m in modes.measured.values())
    nothing, question, more, _ = (m.point_estimates() for m in modes.measured.values())
    assert (question["documents_read"], more["documents_read"]) == (15, 25 + 19)
    assert nothing["accuracy"] == 0.5  # a reader without documents takes the first option
    assert math.isnan(nothing["retrieval_recall"])
    assert question["accuracy"] == 0.5
    assert question["retrieval_recall"] == 1.0
    assert set(modes.seconds) == {"search", "answer"}
    assert modes.notes == ()
    assert modes.sources["index"].startswith("bm25:")
    assert modes.sources["generator"] == "extractive-2"


@pytest.mark.parametrize(
    ("asked", "completion", "rate"),
    [
        (["origin", "provenance"], GOLD, 1.0),
        (["provenance"], GOLD, 0.0),
        (["Provenance"], queries("a", "b", "its provenance"), 1.0),
        (["origin"], BROKEN, 0.0),
        ([], GOLD, math.nan),
    ],
)
def test_whether_a_query_asks_for_what_the_question_asks_for(environment, asked, completion, rate):
    found = rollouts(completion, asked=asked)
    metrics = environment.measure(found, environment.score(found)).point_estimates()
    assert metrics["on_question_rate"] == pytest.approx(rate, nan_ok=True)


def test_strata_are_those_of_the_prompts(environment):
    found = [
        Rollout(name, name, "test", "", text, rollouts(text, stratum=stratum)[0].metadata)
        for name, text, stratum in (
            ("1", GOLD, "new"),
            ("2", WRONG, "old"),
            ("1", WRONG, "new"),
            ("3", BROKEN, "old"),
        )
    ]
    measured = environment.measure(found, environment.score(found))
    assert measured.clusters == ("1", "2", "3")
    assert measured.strata == ("new", "old", "old")
    total = measured.sums.sum(axis=0)
    by_stratum = {
        key: metrics["accuracy"].at(total)
        for key, metrics in measured.breakdowns["by_stratum"].items()
    }
    assert by_stratum == {"new": 0.5, "old": 0.0}
    assert measured.point_estimates()["accuracy"] == 0.25


def test_a_run_asks_once_for_each_reply_and_for_each_prompt_in_each_other_mode():
    records = [PromptRecord(str(n), "rag", (), str(n), "test") for n in range(3)]
    named = RagSettings(generator=ModelSettings(model_name="a/model"))
    assert named.model_calls(records, generations=10) == 10 + 4 * 3
    assert RagSettings().model_calls(records, generations=10) == 0


def test_documents_fit_into_their_budget(index):
    found = built(index, documents={"tokens": 64})
    assert len(scored(found, GOLD)[0].evidence["documents"]) == 5  # of 8 to 14 tokens each
    assert fitting(["x" * 100] * 3, 50) == 2
    assert fitting([], 50) == 0
    assert fitting(["x" * 300], 64) == 0


#: Says the answer, and finds the passage by it.
RECITED = queries("the answer is Arlen", "answer B", "option B Arlen is right")


def test_an_answer_in_a_query_reaches_the_reader_by_what_it_finds(index):
    found = scored(built(index, reward={"outcome": "accuracy"}), RECITED)[0]
    assert found.evidence["documents"] == ["amber-origin"]  # found, because it says Arlen
    assert found.evidence["correct"] is True
    model = Failing("the answer is Arlen")
    asked = built(index, generator={"model_name": "m"}, reward={"outcome": "accuracy"})
    asked.set_chat_model(model)
    assert scored(asked, RECITED)[0].error is None


def test_replies_that_carry_an_answer_are_measured(environment):
    found = rollouts(RECITED, GOLD, WRONG, BROKEN)
    metrics = environment.measure(found, environment.score(found)).point_estimates()
    assert metrics["answer_in_query"] == 1 / 4
    assert metrics["accuracy"] == 2 / 4
    assert metrics["accuracy_without_answer"] == 1 / 3
    alone = found[:1]
    alone_metrics = environment.measure(alone, environment.score(alone)).point_estimates()
    assert math.isnan(alone_metrics["accuracy_without_answer"])


def test_an_answer_in_a_query_can_be_left_unpaid(index):
    unpaid = {"outcome": "accuracy", "recall_weight": 0.5, "answer_in_query": "unpaid"}
    environment = built(index, reward=unpaid)
    recited, right, wrong = scored(environment, RECITED, GOLD, queries("page", "wrote", "baker"))
    assert recited.components == {"format": 1.0, "accuracy": 0.0, "defects": 0.0, "recall": 0.0}
    assert recited.value == wrong.value
    assert right.value == pytest.approx(1.0 + 0.2 + 0.5)
    assert recited.evidence["correct"] is True  # what is measured stays as it is
    found = rollouts(RECITED)
    assert environment.measure(found, [recited]).point_estimates()["accuracy"] == 1
    gains = scored(built(index, reward=unpaid | {"outcome": "gain"}), RECITED, GOLD)
    assert [score.components["gain"] for score in gains] == [-1.0, 0.0]
