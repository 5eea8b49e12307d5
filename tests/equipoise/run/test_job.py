"""Every engine records reward sources, checks scores, and limits the failures of a run."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from environments.base import Failure, Rollout, Score, ScoreError
from environments.chat import BudgetSpentError
from environments.contract import Environment
from equipoise.files.disk import read_json
from equipoise.run.directory import RunDirectory
from equipoise.run.job import (
    FailureMonitor,
    Job,
    check_environment,
    record_sources,
    refuse_failures,
    score_within_budget,
)
from equipoise.run.ledger import Provenance
from tests.refusals import refusal


class Plain(Environment):
    """Scores by its code alone."""

    score = measure = None


class Sourced(Plain):
    """Scores by what it says."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.by_name = sources

    def sources(self) -> dict[str, str]:
        return self.by_name


def sourced(root: Path, sources: dict[str, str] | None) -> Any:
    environment = Plain() if sources is None else Sourced(sources)
    return SimpleNamespace(run=RunDirectory(root), environment=environment)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    RunDirectory(tmp_path).ledger.create(Provenance(task="any"))
    return tmp_path


def test_sources_are_kept_and_may_stay_as_they_are(root: Path) -> None:
    record_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    record_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    kept = read_json(RunDirectory(root).provenance)
    assert kept["task"] == "any"
    assert kept["sources"] == {"policy/tables.rego": "sha256:1"}


@pytest.mark.parametrize("now", [{"judge": "b"}, {}, {"judge": "a", "policy": "p"}], ids=str)
def test_a_run_does_not_go_on_with_another_reward(root: Path, now: dict[str, str]) -> None:
    record_sources(sourced(root, {"judge": "a"}))
    with refusal("run.changed-reward"):
        record_sources(sourced(root, now))
    assert read_json(RunDirectory(root).provenance)["sources"] == {"judge": "a"}


class Judged(Plain):
    """Scores by a judge that is there or not."""

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem

    def check(self) -> str | None:
        return self.problem


def test_it_is_told_before_anything_is_generated(job: Job) -> None:
    with refusal("environment.no-answer", "judge: HTTP 401"):
        check_environment(Judged("judge: HTTP 401"))
    check_environment(Judged())
    check_environment(job.environment)  # which asks nobody


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_a_number_ends_the_run_with_the_environment_s_name(
    job: Job, number: float
) -> None:
    class Broken(type(job.environment)):
        def score(self, rollouts):
            return [Score(1.0, {"part": number}) for _ in rollouts]

    with refusal("score.not-finite", "toy", __name__, "part"):
        score_within_budget(Broken(), [Rollout("p", "p", "test", "Q", "A")])
    with pytest.raises(ScoreError, match="value"):
        Score(number)


# --- failures -------------------------------------------------------------------------------------


GOOD, BAD = None, Failure("transport_timeout", "judge timed out")


def test_the_run_stops_above_the_rate_not_at_it():
    monitor = FailureMonitor(max_rate=0.1, window=3)
    monitor.add([GOOD] * 9 + [BAD])
    assert not monitor.exceeded
    monitor.add([GOOD] * 8 + [BAD] * 2)
    assert monitor.exceeded
    assert "judge timed out (3x)" in str(monitor.error())


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


def test_only_the_last_steps_count():
    monitor = FailureMonitor(max_rate=0.1, window=2)
    monitor.add([BAD] * 10)
    for _ in range(2):
        monitor.add([GOOD] * 10)
    assert monitor.rate == 0
