"""What every engine does around its stages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_prep.files import read_json, write_json
from environments.base import UNPARSEABLE, Rollout, Score
from equipoise.errors import EquipoiseError
from equipoise.job import Job, keep_sources, refuse_without_signal
from equipoise.rollout_files import write_rollouts
from equipoise.run_directory import RunDirectory

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
    assert kept == {"task": "any", "sources": {"policy/tables.rego": "sha256:1"}}


@pytest.mark.parametrize("now", [{"judge": "b"}, {}, {"judge": "a", "policy": "p"}], ids=str)
def test_a_run_does_not_go_on_with_another_reward(root: Path, now: dict[str, str]) -> None:
    keep_sources(sourced(root, {"judge": "a"}))
    with pytest.raises(EquipoiseError, match=r"since this run began, (judge|policy) changed"):
        keep_sources(sourced(root, now))
    assert read_json(RunDirectory(root).provenance)["sources"] == {"judge": "a"}


def test_an_environment_of_code_alone_has_none(root: Path) -> None:
    keep_sources(sourced(root, None))
    assert read_json(RunDirectory(root).provenance) == {"task": "any"}


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
        assert "signal: in 0% of 1 groups all generations score the same" in printed
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
