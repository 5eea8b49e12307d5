"""What every engine does around its stages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_prep.files import read_json, write_json
from environments.base import UNPARSEABLE, Failure, Rollout, Score
from environments.measurement import Measurement, Metric
from equipoise.errors import EquipoiseError
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts, read_scored_rollouts, write_rollouts
from equipoise.stages.job import (
    Job,
    check_environment,
    keep_evaluation,
    keep_sources,
    refuse_without_signal,
)

Capture = pytest.CaptureFixture[str]


def sourced(root: Path, sources: dict[str, str] | None) -> Any:
    environment = SimpleNamespace() if sources is None else SimpleNamespace(sources=lambda: sources)
    return SimpleNamespace(run=RunDirectory(root), environment=environment)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_json(RunDirectory(tmp_path).provenance, {"task": "any"})
    return tmp_path


def test_sources_are_kept_and_may_stay_as_they_are(root: Path) -> None:
    keep_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    keep_sources(sourced(root, {"policy/tables.rego": "sha256:1"}))
    kept = read_json(RunDirectory(root).provenance)
    assert kept["task"] == "any"
    assert kept["sources"] == {"policy/tables.rego": "sha256:1"}


@pytest.mark.parametrize("now", [{"judge": "b"}, {}, {"judge": "a", "policy": "p"}], ids=str)
def test_a_run_does_not_go_on_with_another_reward(root: Path, now: dict[str, str]) -> None:
    keep_sources(sourced(root, {"judge": "a"}))
    with pytest.raises(EquipoiseError, match=r"since this run began, (judge|policy) changed"):
        keep_sources(sourced(root, now))
    assert read_json(RunDirectory(root).provenance)["sources"] == {"judge": "a"}


def test_an_environment_of_code_alone_has_none(root: Path) -> None:
    keep_sources(sourced(root, None))
    assert read_json(RunDirectory(root).provenance) == {"task": "any"}


class Judged:
    """Scores by a judge that is there or not."""

    name, scope = "judged", "rollout"

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem

    def check(self) -> str | None:
        return self.problem

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        failed = Score(None, error=Failure("transport_unreachable", str(self.problem)))
        return [failed if self.problem else Score(0.1) for _ in rollouts]

    def measure(self, rollouts: Sequence[Rollout], scores: Sequence[Score]) -> Measurement:
        rate = Metric(lambda total: total[..., 0], "higher")
        return Measurement(
            tuple(r.prompt_id for r in rollouts), np.ones((len(rollouts), 1)), {"n": rate}
        )


ROLLOUTS = [Rollout(f"p{i}", "s", "test", "Q", f"A{i}", {"gold": "A"}) for i in range(4)]


class TestAJudgeThatIsDown:
    """What was generated for it is not generated again."""

    def test_what_was_generated_is_scored_when_it_is_back(self, job: Job, capsys: Capture) -> None:
        down = replace(job, environment=Judged("connection refused"))
        with pytest.raises(EquipoiseError, match=r"4 of 4 rollouts .*connection"):
            keep_evaluation(down, "baseline", lambda: ROLLOUTS)
        assert read_rollouts(job.run.generations("baseline")) == ROLLOUTS
        keep_evaluation(replace(job, environment=Judged()), "baseline", _never)
        assert "scoring what was generated before" in capsys.readouterr().out
        kept, scores = read_scored_rollouts(job.run.rollouts("baseline"))
        assert kept == ROLLOUTS
        assert [score.value for score in scores] == [0.1] * 4
        assert not job.run.generations("baseline").exists()

    def test_the_result_is_that_of_a_judge_that_was_always_there(self, job: Job) -> None:
        with pytest.raises(EquipoiseError):
            keep_evaluation(replace(job, environment=Judged("no")), "baseline", lambda: ROLLOUTS)
        well = replace(job, environment=Judged())
        keep_evaluation(well, "baseline", _never)
        keep_evaluation(well, "final", lambda: ROLLOUTS)
        baseline, final = (job.run.rollouts(stage).read_bytes() for stage in ("baseline", "final"))
        assert baseline == final

    def test_it_is_told_before_anything_is_generated(self, job: Job) -> None:
        with pytest.raises(EquipoiseError, match="does not answer: judge: HTTP 401") as caught:
            check_environment(Judged("judge: HTTP 401"), job.reporter)
        assert "docs/judge-client.md" in caught.value.remedy
        check_environment(Judged(), job.reporter)
        check_environment(job.environment, job.reporter)  # which asks nobody


def _never() -> list[Rollout]:
    raise AssertionError("nothing is generated twice")


class TestSignal:
    """What the baseline promises of training is told before it begins."""

    ANSWERS = ("yes", "no", "yes", "no")

    @staticmethod
    def baseline(
        job: Job, replies: Sequence[str], values: Sequence[float], broken: str = ""
    ) -> Job:
        rollouts = [Rollout("p", "p", "test", "Q", text) for text in replies]
        evidence = {UNPARSEABLE: broken} if broken else {}
        scores = [Score(value, evidence=evidence) for value in values]
        write_rollouts(job.run.rollouts("baseline"), rollouts, scores)
        return job

    def test_a_signal_is_told_in_a_line(self, job: Job, capsys: Capture) -> None:
        refuse_without_signal(self.baseline(job, self.ANSWERS, (0, 1, 0, 1)))
        printed = capsys.readouterr().out
        assert "signal: in 0% of 1 prompts all generations score the same" in printed
        assert "rewards spread by 0.5" in printed

    def test_a_model_that_never_keeps_the_format_is_not_trained(self, job: Job) -> None:
        replies = ("Well,\nwell", "Hm", "Well,\nwell", "As an AI")
        with pytest.raises(EquipoiseError) as caught:
            refuse_without_signal(self.baseline(job, replies, (-5,) * 4, "no JSON object"))
        assert "nothing to learn from" in caught.value.message
        assert "100% of the replies could not be read" in caught.value.message
        assert "2x, no JSON object: 'Well, well'" in caught.value.message
        assert "stop_without_signal=false" in caught.value.remedy

    def test_a_model_that_is_always_right_is_not_trained(self, job: Job) -> None:
        with pytest.raises(EquipoiseError, match="4x, score 1: 'yes'"):
            refuse_without_signal(self.baseline(job, ("yes",) * 4, (1,) * 4))

    def test_the_configuration_may_want_to_go_on(self, job: Job, capsys: Capture) -> None:
        config = job.config
        wish = config.equipoise.model_copy(update={"stop_without_signal": False})
        changed = config.model_copy(update={"equipoise": wish})
        job = replace(job, loaded=replace(job.loaded, config=changed))
        refuse_without_signal(self.baseline(job, ("yes",) * 4, (1,) * 4))
        assert "warning: there is nothing to learn from" in capsys.readouterr().out

    def test_little_is_a_warning_with_examples(self, job: Job, capsys: Capture) -> None:
        refuse_without_signal(self.baseline(job, self.ANSWERS, (0, 1, 0, 1), "too short"))
        printed = capsys.readouterr().out
        assert "warning: there is little to learn from" in printed
        assert "2x, too short: 'yes'" in printed
