"""A run at work: its stages, kept before they are scored, its sources, and its failures."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from environments.base import UNPARSEABLE, Failure, Rollout, Score, ScoreError
from environments.chat import BudgetSpentError
from environments.contract import Environment
from environments.measurement import Measurement, Metric
from equipoise.files.disk import read_json
from equipoise.run import job as evaluation
from equipoise.run.directory import RunDirectory
from equipoise.run.job import (
    FailureMonitor,
    begin_training,
    check_environment,
    evaluate,
    record_sources,
    refuse_failures,
    score_within_budget,
    take_reference,
)
from equipoise.run.ledger import Provenance
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts, write_rollouts
from equipoise.run.seals import Manifest, damage_of
from tests.equipoise.run.toy import Model
from tests.refusals import refusal


def test_a_reference_is_drawn_once_and_is_that_of_the_first_start(job):
    model = Model()
    take_reference(job, model)
    assert "reference.jsonl" in Manifest.read(job.run.root).parts()
    resumed = replace(job, environment=type(job.environment)())
    take_reference(resumed, never)
    assert [stage for stage, *_ in model.asked] == ["reference"]
    assert [r.completion for r in resumed.environment.reference] == ["A"] * 10
    job.run.reference.write_text(job.run.reference.read_text().replace('"A"', '"B"'))
    with refusal("run.changed-source", "reference"):
        take_reference(resumed, never)


class Judged(Environment):
    """Scores by a judge that is there or not."""

    name, scope = "judged", "rollout"

    def __init__(self, problem=None):
        self.problem = problem

    def check(self):
        return self.problem

    def score(self, rollouts):
        failed = Score(None, error=Failure("transport_unreachable", str(self.problem)))
        return [failed if self.problem else Score(0.1) for _ in rollouts]

    def measure(self, rollouts, scores):
        rate = Metric(lambda total: total[..., 0], "higher")
        return Measurement(
            tuple(r.prompt_id for r in rollouts), np.ones((len(rollouts), 1)), {"n": rate}
        )


ROLLOUTS = [Rollout(f"p{i}", "s", "test", "Q", f"A{i}", {"gold": "A"}) for i in range(4)]


def drawn(*_):
    return ROLLOUTS


def killed(*_, **__):
    raise KeyboardInterrupt


def never(*_):
    raise AssertionError("nothing is generated twice")


class TestAKillAtTheEndOfAStage:
    """The stage counts once it is sealed; what it was made of goes after that."""

    def test_a_stage_that_was_not_sealed_is_scored_again(self, job, monkeypatch):
        judged = replace(job, environment=Judged())
        monkeypatch.setattr(evaluation, "seal", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(judged, "baseline", drawn)
        assert job.run.evaluation("baseline").exists()
        assert not job.run.is_evaluated("baseline")
        monkeypatch.undo()
        evaluate(judged, "baseline", never)
        assert job.run.is_evaluated("baseline")
        assert damage_of(job.run, "baseline") == []
        assert set(Manifest.read(job.run.root).files) == {
            "baseline/evaluation.json",
            "baseline/rollouts.jsonl",
        }

    def test_a_sealed_stage_that_has_its_generations_is_scored_again(self, job, monkeypatch):
        judged = replace(job, environment=Judged())
        monkeypatch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(judged, "baseline", drawn)
        monkeypatch.undo()
        assert job.run.generations("baseline").exists()
        before = job.run.rollouts("baseline").read_bytes()
        evaluate(judged, "baseline", never)
        assert job.run.is_evaluated("baseline")
        assert job.run.rollouts("baseline").read_bytes() == before
        assert damage_of(job.run, "baseline") == []


class TestAJudgeThatIsDown:
    """Replies that were generated for the judge are not generated again."""

    def test_what_was_generated_is_scored_when_it_is_back(self, job, capsys):
        down = replace(job, environment=Judged("connection refused"))
        with refusal("evaluation.failed-scores", "4 of 4", "unreachable: connection"):
            evaluate(down, "baseline", drawn)
        assert read_rollouts(job.run.generations("baseline")) == ROLLOUTS
        evaluate(replace(job, environment=Judged()), "baseline", never)
        assert "scoring what was generated before" in capsys.readouterr().out
        kept, scores = read_scored_rollouts(job.run.rollouts("baseline"))
        assert kept == ROLLOUTS
        assert [score.value for score in scores] == [0.1] * 4
        assert not job.run.generations("baseline").exists()


class TestSignal:
    """The learning signal of the baseline is told before training begins."""

    ANSWERS = ("yes", "no", "yes", "no")

    @staticmethod
    def baseline(job, replies, values, broken=""):
        rollouts = [Rollout("p", "p", "test", "Q", text) for text in replies]
        evidence = {UNPARSEABLE: broken} if broken else {}
        scores = [Score(value, evidence=evidence) for value in values]
        write_rollouts(job.run.rollouts("baseline"), rollouts, scores)
        return job

    def test_a_model_that_never_keeps_the_format_is_not_trained(self, job):
        replies = ("Well,\nwell", "Hm", "Well,\nwell", "As an AI")
        with refusal(
            "training.no-signal",
            "100% of the replies could not be read",
            "2x, no JSON object: 'Well, well'",
        ):
            begin_training(self.baseline(job, replies, (-5,) * 4, "no JSON object"))

    def test_little_is_a_warning_with_examples(self, job, capsys):
        begin_training(self.baseline(job, self.ANSWERS, (0, 1, 0, 1), "too short"))
        printed = capsys.readouterr().out
        assert "warning: there is little to learn from" in printed
        assert "2x, too short: 'yes'" in printed


class Plain(Environment):
    """Scores by its code alone."""

    score = measure = None


class Sourced(Plain):
    """Scores by what it says."""

    def __init__(self, sources):
        self.by_name = sources

    def sources(self):
        return self.by_name


def sourced(root, sources):
    environment = Plain() if sources is None else Sourced(sources)
    return SimpleNamespace(run=RunDirectory(root), environment=environment)


@pytest.fixture
def root(tmp_path):
    RunDirectory(tmp_path).ledger.create(Provenance(task="any"))
    return tmp_path


def test_sources_are_kept_and_may_stay_as_they_are(root):
    record_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    record_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    kept = read_json(RunDirectory(root).provenance)
    assert kept["task"] == "any"
    assert kept["sources"] == {"policy/tables.rego": "sha256:1"}


@pytest.mark.parametrize("now", [{"judge": "b"}, {}, {"judge": "a", "policy": "p"}], ids=str)
def test_a_run_does_not_go_on_with_another_reward(root, now):
    record_sources(sourced(root, {"judge": "a"}))
    with refusal("run.changed-reward"):
        record_sources(sourced(root, now))
    assert read_json(RunDirectory(root).provenance)["sources"] == {"judge": "a"}


def test_it_is_told_before_anything_is_generated(job):
    with refusal("environment.no-answer", "judge: HTTP 401"):
        check_environment(Judged("judge: HTTP 401"))
    check_environment(Judged())
    check_environment(job.environment)  # which asks nobody


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_a_number_ends_the_run_with_the_environment_s_name(job, number):
    class Broken(type(job.environment)):
        def score(self, rollouts):
            return [Score(1.0, {"part": number}) for _ in rollouts]

    with refusal("score.not-finite", "toy", __name__, "part"):
        score_within_budget(Broken(), [Rollout("p", "p", "test", "Q", "A")])
    with pytest.raises(ScoreError, match="value"):
        Score(number)


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
