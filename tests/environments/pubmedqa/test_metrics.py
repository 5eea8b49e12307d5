"""The metrics, against scikit-learn, by hand, and under resampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, recall_score

from environments.base import Rollout, Score
from environments.pubmedqa import LABELS
from environments.pubmedqa.metrics import measure_answers, official_predictions

Question = tuple[str, list[str | None]]  # gold, the answers of its generations


def reasoned(answer, *, gold="yes", kept=True, **reasons):
    plain = {"grounded": False, "false_quote": False, "false_number": False, "decisive": None}
    return {"gold": gold, "answer": answer, "keeps_format": kept} | plain | reasons


def measured(questions, options=LABELS):
    return measure_answers(*scored(questions), options)


def scored(questions):
    rollouts, scores = [], []
    for number, (gold, answers) in enumerate(questions):
        for answer in answers:
            rollouts.append(Rollout(f"q{number}", f"q{number}", "test", "", ""))
            outcome = reasoned(answer, gold=gold, kept=answer is not None)
            scores.append(Score(0.0, outcome=outcome))
    return rollouts, scores


answers = st.sampled_from(LABELS)
one_reply = st.lists(st.tuples(answers, st.lists(answers, min_size=1, max_size=1)), min_size=1)


@given(one_reply)
def test_accuracy_and_macro_f1_are_those_of_the_official_evaluator(questions):
    predicted = list(official_predictions(*scored(questions)).values())
    gold = [label for label, _ in questions]
    found = measured(questions).point_estimates()
    assert found["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))


@given(one_reply)
def test_recall_of_each_class(questions):
    gold, predicted = zip(*((label, given[0]) for label, given in questions), strict=True)
    expected = recall_score(gold, predicted, labels=LABELS, average=None, zero_division=np.nan)
    measurement = measured(questions)
    total = measurement.sums.sum(axis=0)
    by_class = measurement.breakdowns["by_class"]
    found = [float(by_class[label]["recall"].of_sums(total)) for label in LABELS]
    assert found == pytest.approx(expected, nan_ok=True)


QUESTIONS: list[Question] = [
    ("yes", ["yes"]),
    ("yes", ["no"]),
    ("yes", [None]),
    ("no", ["no"]),
    ("maybe", ["yes"]),
]


def test_confusion_matrix():
    measurement = measured(QUESTIONS)
    total = measurement.sums.sum(axis=0)
    rows = {
        gold: [float(metric.of_sums(total)) for metric in row.values()]
        for gold, row in measurement.breakdowns["confusion"].items()
    }
    assert rows == {"gold yes": [1, 1, 0, 1], "gold no": [0, 1, 0, 0], "gold maybe": [1, 0, 0, 0]}
    assert list(measurement.breakdowns["confusion"]["gold yes"]) == [
        "answered_yes",
        "answered_no",
        "answered_maybe",
        "unreadable",
    ]


SEVERAL: list[Question] = [
    ("yes", ["no", "yes", "yes"]),
    ("no", ["yes", "no", None]),
    ("maybe", [None, None, "maybe"]),
    ("yes", [None, None, None]),
]


def test_with_several_replies_the_vote_has_the_outcomes():
    measurement = measured(SEVERAL)
    found = measurement.point_estimates()
    assert found["accuracy"] == pytest.approx(4 / 12)
    assert found["vote_accuracy"] == pytest.approx(2 / 4)
    assert measurement.metrics["accuracy"].outcomes is None
    outcomes = measurement.metrics["vote_accuracy"].outcomes
    assert outcomes is not None
    assert outcomes.tolist() == [True, False, True, False]
    predicted = official_predictions(*scored(SEVERAL))
    assert predicted == {"q0": "yes", "q1": "yes", "q2": "maybe", "q3": "no"}


def test_two_classes_show_the_ceiling():
    found = measured(QUESTIONS, ("yes", "no")).point_estimates()
    assert found["ceiling"] == pytest.approx(4 / 5)
    assert "ceiling" not in measured(QUESTIONS).metrics


def of_reasons(outcomes):
    rollouts = [Rollout(f"q{n}", f"q{n}", "test", "", "") for n in range(len(outcomes))]
    return measure_answers(rollouts, [Score(0.0, outcome=outcome) for outcome in outcomes])


REASONS = [
    reasoned("yes", grounded=True, decisive=True),
    reasoned("yes", false_quote=True, false_number=True, decisive=False),
    reasoned("yes", decisive=False),
    reasoned("yes", false_quote=True, decisive=False),
    reasoned("no", grounded=True, decisive=True),  # wrong
    reasoned("no", false_number=True, decisive=False),  # wrong
    reasoned("yes", kept=False, decisive=False),  # right, but out of the format
]


def test_reasons_are_measured_among_right_answers_in_the_format():
    found = of_reasons(REASONS).point_estimates()
    assert found["grounded_rate"] == pytest.approx(2 / 7)
    assert found["false_quote_rate"] == pytest.approx(2 / 4)
    assert found["false_number_rate"] == pytest.approx(1 / 4)
    assert found["decisive_quote_rate"] == pytest.approx(1 / 4)


def test_what_decides_is_measured_where_it_is_known():
    unknown = [outcome | {"decisive": None} for outcome in REASONS]
    assert "decisive_quote_rate" not in of_reasons(unknown).metrics
    assert "false_quote_rate" in of_reasons(unknown).metrics
