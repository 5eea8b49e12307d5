"""Runs scored again: stages, policies without skill, other ways; and what says that it was not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_prep.files import read_json, write_text
from data_prep.records import manifest_path, write_prompts
from environments.base import Failure, Rollout, Score
from environments.contract import Environment
from environments.measurement import Modes
from equipoise.evaluate.rescore import Rescorer, omitted_parts, rescore
from equipoise.report.head import run_notes
from equipoise.report.run_files import read_run
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_scored_rollouts, write_rollouts
from equipoise.run.seals import open_run, record_files
from equipoise.train.stages.around_training import before_training, evaluate
from equipoise.train.stages.job import Job
from equipoise.train.stages.modes import write_modes
from equipoise.train.stages.probe import probe
from tests.equipoise.conftest import RECORDS, Toy
from tests.equipoise.report.conftest import write_finished, write_json
from tests.equipoise.sealing import seal_run


class Counted(Toy):
    """Pays for every A, or for every letter that it is told; knows another way through prompts."""

    def __init__(self, letter: str = "A") -> None:
        super().__init__()
        self.letter = letter
        self.scored: list[str] = []

    def score(self, rollouts: Sequence[Rollout]) -> list[Score]:
        self.scored += [rollout.completion for rollout in rollouts]
        return [
            Score(float(rollout.completion.count(self.letter)), outcome={}) for rollout in rollouts
        ]

    def modes(self, rollouts: Sequence[Rollout]) -> Modes:
        rewritten = [replace(rollout, completion=self.letter) for rollout in rollouts]
        measurement = self.measure(rewritten, self.score(rewritten))
        return Modes(
            {f"saying {self.letter}": measurement}, {"baseline": "before", "final": "after"}
        )


def drawing(replies: Sequence[str]) -> Callable[..., list[Rollout]]:
    """A model that gives each prompt these replies in turn."""

    def draw(records: Sequence[Any], generations: int, _: str) -> list[Rollout]:
        return [
            Rollout(r.id, r.set_id, r.split, "<Q>", replies[n % len(replies)])
            for r in records
            for n in range(generations)
        ]

    return draw


@pytest.fixture
def probed(job: Job) -> Job:
    """A finished run whose untrained model says AB, BB or C and whose trained one says AA."""
    job = replace(job, environment=Counted())
    write_text(job.run.config, job.loaded.to_yaml())
    write_prompts(job.run.prompts, RECORDS, {})
    untrained = drawing(["AB", "BB", "C"])
    before_training(job, untrained, None)
    probe(job, untrained, None)
    evaluate(job, "final", drawing(["AA"]))
    write_modes(job)
    record_files(job.run, job.run.config, job.run.prompts, manifest_path(job.run.prompts))
    return job


def again(job: Job, target: Path, *, failed: bool = False) -> Counted:
    environment = Counted("B")
    rescore(
        open_run(job.run.root), Rescorer(environment, job.loaded, failed, job.reporter), {}, target
    )
    return environment


def mean_rewards(content: Any) -> dict[str, float]:
    return {name: p["metrics"]["reward"]["value"] for name, p in content["policies"].items()}


def test_policies_without_skill_are_scored_again(probed: Job, tmp_path: Path) -> None:
    assert omitted_parts(probed.run) == []
    again(probed, tmp_path / "new")
    target = RunDirectory(tmp_path / "new")
    rewards = mean_rewards(read_json(target.probe / "probe.json"))
    assert rewards["untrained"] == pytest.approx(1.0)
    rollouts, scores = read_scored_rollouts(target.probe / "vote.jsonl")
    assert [s.value for s in scores] == [float(r.completion.count("B")) for r in rollouts]
    best, _ = read_scored_rollouts(target.probe / "best_of_n.jsonl")
    assert {rollout.completion for rollout in best} == {"BB"}, "chosen by the new scores"
    policies = read_json(target.root / "rescored.json")["policies"]
    rewards_before = mean_rewards(read_json(probed.run.probe / "probe.json"))
    assert {name: policy["reward_before"] for name, policy in policies.items()} == rewards_before
    assert {name: policy["reward_after"] for name, policy in policies.items()} == rewards


def test_what_was_chosen_by_the_old_scores_says_so(probed: Job, tmp_path: Path) -> None:
    again(probed, tmp_path / "new")
    before, after = (
        read_json(folder / "probe" / "probe.json") for folder in (probed.run.root, tmp_path / "new")
    )
    constant = before["constants"]["constant"]
    assert after["constants"]["constant"] == {**constant, "worth": None}
    assert after["policies"]["constant"]["note"].endswith("chosen by the old scores")
    assert "chosen by the old scores" in (tmp_path / "new" / "report.html").read_text()


def test_modes_are_made_again_from_both(probed: Job, tmp_path: Path) -> None:
    assert probed.environment.offers(Environment.modes)
    again(probed, tmp_path / "new")
    before, after = read_json(probed.run.modes), read_json(tmp_path / "new" / "modes.json")
    assert before["trivial"]["trained"]["reward"]["value"] == 2.0
    assert before["trivial"]["policies"]["vote"]["against"]["reward"]["difference"] > 0
    assert after["trivial"]["trained"]["reward"]["value"] == 0.0  # AA has no B
    assert after["trivial"]["policies"]["best_of_n"]["against"]["reward"]["difference"] == -2.0
    assert "untrained" in after["trivial"]["not_beaten"]
    assert "saying A" in before["modes"] and "saying B" in after["modes"]
    assert after["schema"] == before["schema"]


def test_the_old_probe_and_modes_are_kept(probed: Job, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in probed.run.probe.iterdir()}
    modes = probed.run.modes.read_bytes()
    again(probed, tmp_path / "new")
    assert {p.name: p.read_bytes() for p in (tmp_path / "new/probe/before").iterdir()} == before
    assert (tmp_path / "new" / "modes_before.json").read_bytes() == modes
    assert {p.name: p.read_bytes() for p in probed.run.probe.iterdir()} == before
    target = RunDirectory(tmp_path / "new")
    again(replace(probed, run=target), tmp_path / "third")
    assert not (tmp_path / "third/probe/before/before").exists()


def test_a_probe_without_its_replies_is_named(probed: Job, tmp_path: Path) -> None:
    (probed.run.probe / "vote.jsonl").unlink()
    seal_run(probed.run.root)
    assert omitted_parts(probed.run) == ["probe", "modes.json"]
    again(probed, tmp_path / "new")
    assert not (tmp_path / "new" / "probe").exists()
    assert not (tmp_path / "new" / "modes.json").exists()
    assert read_json(tmp_path / "new" / "rescored.json").get("policies") is None


def test_only_the_failed_replies_of_a_policy_are_scored_again(probed: Job, tmp_path: Path) -> None:
    path = probed.run.probe / "copying.jsonl"
    rollouts, scores = read_scored_rollouts(path)
    scores[1] = Score(None, error=Failure("server_error", "the judge was away"))
    write_rollouts(path, [replace(r, completion="BBB") for r in rollouts], scores)
    seal_run(probed.run.root)
    environment = again(probed, tmp_path / "new", failed=True)
    _, after = read_scored_rollouts(tmp_path / "new" / "probe" / "copying.jsonl")
    assert [score.value for score in after] == [0.0, 3.0, *[0.0] * (len(after) - 2)]
    assert environment.scored.count("BBB") == 1


def test_what_keeps_the_old_scores_is_named(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert omitted_parts(run) == []
    run.training.parent.mkdir(parents=True)
    run.modes.write_text("{}")
    assert omitted_parts(run) == ["modes.json", "training"]


def test_the_report_of_new_scores_says_what_is_of_the_old_ones(tmp_path: Path) -> None:
    run = write_finished(tmp_path / "run")
    before = run_notes(read_run(run, replies=False))
    metadata = {"of": "x", "time": "now", "left_out": ["probe", "modes.json"]}
    write_json(run / "provenance.json", {"rescored": metadata})
    notes = " ".join(run_notes(read_run(run, replies=False)))
    assert "The curves of training are of the old scores" in notes
    assert "probe, modes.json of the first run are of the old scores too" in notes
    assert not any("old scores" in note for note in before)
