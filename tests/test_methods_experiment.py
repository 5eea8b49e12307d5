"""docs/experiments/methods.py without its training: weights, pairs, the table, words."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from data_prep.pubmedqa import PromptSettings, build_prompts
from data_prep.records import write_prompts
from environments.base import TEST_SPLIT, TRAIN_SPLIT, PromptRecord, Rollout
from environments.fairness import RACES, FairnessEnvironment, FairnessSettings
from environments.pubmedqa import PubMedQAEnvironment, PubMedQASettings
from equipoise.files.disk import write_json
from equipoise.run.directory import RunDirectory
from equipoise.run.rollouts import read_rollouts, write_rollouts
from tests.environments.fairness.samples import decision_reply

pytestmark = pytest.mark.deep

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "experiments" / "methods.py"


@pytest.fixture(scope="module")
def methods() -> ModuleType:
    spec = importlib.util.spec_from_file_location("methods_experiment", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(SCRIPT.parent)  # as the script has it
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def job(tmp_path):
    """One set, in which the frozen model gives each race four times a reply of its own."""
    records = [
        PromptRecord(
            f"s/{race}",
            "fairness",
            ({"role": "user", "content": race},),
            "s",
            TRAIN_SPLIT,
            {"race": race},
        )
        for race in RACES
    ]
    reference = [
        Rollout(r.id, r.set_id, r.split, "", decision_reply(place), r.metadata)
        for place, r in enumerate(records)
        for _ in range(4)
    ]
    write_rollouts(tmp_path / "reference.jsonl", reference)
    return SimpleNamespace(
        environment=FairnessEnvironment(FairnessSettings()),
        config=SimpleNamespace(grpo=SimpleNamespace(seed=0)),
        split=lambda name: records,
        run=SimpleNamespace(reference=tmp_path / "reference.jsonl"),
    )


def test_the_table_has_the_change_from_the_untrained_model_and_no_row_that_did_not_run(
    methods, tmp_path
):
    case = methods.CASES["telling"]
    names = {column.metric for column in case.columns} - {"fixed_work"}

    def row(value: float) -> dict[str, object]:
        metrics = {name: {"value": value} for name in names}
        return {
            "fixed_work": 30.0,
            "metrics": metrics,
            "by_cue": {"named": metrics, "implied": metrics},
            "replies": metrics,
        }

    for seed, after in ((1, 0.5), (2, 0.7)):
        folder = tmp_path / str(seed) / "rows"
        folder.mkdir(parents=True)
        write_json(folder / "untrained.json", row(1.0))
        write_json(folder / "GRPO.json", row(after))
    lines = methods.table(case, tmp_path, [1, 2]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        ["| untrained", "no"],
        ["| GRPO", "yes"],
    ]
    cells = dict(zip(lines[0].split(" | ")[1:], lines[3].split(" | ")[1:], strict=True))
    assert cells["seeds"] == "2"
    assert cells["distance"].startswith("0.600 (")
    assert cells["severity, %"].startswith("-40 (")
    assert cells["emergencies, points"].startswith("-40 (")


def test_a_reply_tells_another_patient(methods):
    patient = {
        "race": "Asian",
        "age": "old",
        "gender": "cisgender woman",
        "occupation": "blue-collar",
    }

    def wrong(text: str) -> set[str]:
        return methods.told_wrong(Rollout("p", "s", TEST_SPLIT, "", text, patient))

    assert not wrong("61 years old, Asian, a cisgender woman, in a blue-collar job. Stepwise care.")
    assert not wrong("Raised in Koreatown.")
    assert wrong("61 years old, surname Garcia, a cisgender man, in a white-collar job.") == {
        *("race", "gender", "occupation")
    }
    assert wrong("28 years old.") == {"age"}


def test_the_classifier_answers_with_the_nearest_finding_and_learns_from_training_labels(
    methods, tmp_path
):
    settings = PromptSettings(source="synthetic", num_samples=600, seed=5)
    run = RunDirectory(tmp_path)
    write_prompts(run.prompts, build_prompts(settings), settings.model_dump(mode="json"))
    rollouts = methods.classified(run)
    environment = PubMedQAEnvironment(PubMedQASettings())
    outcomes = [score.outcome for score in environment.score(rollouts)]
    assert len(outcomes) == 120
    assert all(outcome["decisive"] for outcome in outcomes)
    right = sum(outcome["answer"] == outcome["gold"] for outcome in outcomes)
    assert right < 0.8 * len(outcomes)  # what decides is in no single word


def test_the_best_of_own_replies_is_imitated(methods, monkeypatch, job):
    own = {record.id: decision_reply(place) for place, record in enumerate(job.split(TRAIN_SPLIT))}

    def draw(records, generations, stage):
        return [
            Rollout(r.id, r.set_id, r.split, "", text, r.metadata)
            for r in records
            for text in ("unreadable", own[r.id], own[r.id])
        ]

    job.environment.set_reference(read_rollouts(job.run.reference))
    monkeypatch.setattr("equipoise.run.policy.sampler", lambda job, loaded: draw)
    monkeypatch.setattr(methods, "imitation", lambda pairs, *rest: {r.id: t for r, t in pairs})
    assert methods.expert_iteration(job, None, None, {}) == own


def test_every_method_is_a_valid_run(methods, tmp_path):
    for case in methods.CASES.values():
        for name, method in case.methods.items():
            loaded = methods.configuration(case, method, 3, tmp_path, probe=False)
            assert loaded.config.equipoise.probe.prompts == 0, name
            assert loaded.config.grpo.seed == 3
