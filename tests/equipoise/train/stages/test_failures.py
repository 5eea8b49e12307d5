from environments.base import Failure, Score
from environments.chat import BudgetSpentError
from equipoise.train.stages.job import (
    FailureMonitor,
    refuse_failures,
    score_within_budget,
)
from tests.refusals import refusal

GOOD, BAD = None, Failure("transport_timeout", "judge timed out")


def test_the_run_stops_above_the_rate_not_at_it():
    monitor = FailureMonitor(max_rate=0.1, window=3)
    monitor.add([GOOD] * 9 + [BAD])
    assert not monitor.exceeded
    monitor.add([GOOD] * 8 + [BAD] * 2)
    assert monitor.exceeded
    assert "judge timed out (3x)" in str(monitor.error())


def test_only_the_last_steps_count():
    monitor = FailureMonitor(max_rate=0.1, window=2)
    monitor.add([BAD] * 10)
    for _ in range(2):
        monitor.add([GOOD] * 10)
    assert monitor.rate == 0


def test_a_run_without_rollouts_has_not_failed():
    assert not FailureMonitor(max_rate=0.1, window=2).exceeded


class Spent:
    """Its judge has nothing left to spend."""

    def score(self, rollouts):
        raise BudgetSpentError("endpoint.spent-budget", "the budget for judge is used up")


def test_a_budget_that_is_used_up_stops_the_run_whatever_the_rate():
    monitor = FailureMonitor(max_rate=1.0, window=3)
    monitor.add([GOOD] * 10)
    assert not monitor.exceeded
    monitor.add([score.error for score in score_within_budget(Spent(), ["rollout"] * 2)])
    assert monitor.exceeded
    assert str(monitor.error()).startswith(
        "the budget for judge is used up\nA checkpoint was saved"
    )


def test_an_evaluation_with_more_failures_than_may_be_is_none():
    scores = [Score(1.0)] * 9 + [Score(None, error=BAD)]
    refuse_failures(scores, 0.1, "the baseline evaluation")
    with refusal("evaluation.failed-scores", "2 of 11", "judge timed out (2x)"):
        refuse_failures([*scores, scores[-1]], 0.1, "the baseline evaluation")
